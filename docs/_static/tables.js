// On a phone a row of a wide table becomes a block: its first cell is the heading, and the others
// stand below it, each with the name of its column. So does one of a table of two columns that has
// code too long for half of a phone; and, without the name, one whose second column has long texts.
// site.css does this for what is marked here. Tables of numbers stay as they are, and are scrolled.
const LONG = 120;
const LONG_WORD = 20;
document.addEventListener('DOMContentLoaded', () => {
  for (const table of document.querySelectorAll('.content table.docutils')) {
    const names = [...table.querySelectorAll('thead th')].map(cell => cell.textContent.trim());
    const texts = [...table.querySelectorAll('tbody td:last-child')];
    const explains = names.length === 2 && texts.some(cell => cell.textContent.length > LONG);
    const isWide = names.length > 2 || [...table.querySelectorAll('td code')].some(
      code => code.textContent.split(/\s/).some(word => word.length > LONG_WORD));
    if (!isWide && !explains || table.querySelector('td.text-right')) continue;
    table.classList.add('stacked');
    for (const row of table.querySelectorAll('tbody tr'))
      [...row.cells].forEach((cell, column) => {
        cell.dataset.column = explains ? '' : names[column] ?? '';
        cell.classList.toggle('blank', !cell.textContent.trim());
      });
  }
});
