(() => {
  const id = name => document.getElementById(name);
  const rows = [...document.querySelectorAll("#events tbody tr")], filter = id("filter"), calls = id("calls");
  let texts = null, later = 0, zoom = 1;
  const apply = () => {
    texts ??= rows.map(row => [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase());
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every(word => texts[i].includes(word));
      if (!row.hidden && (calls.checked || row.className !== "c")) shown++;
    });
    id("shown").textContent = shown + " of " + rows.length + " rows shown";
  };
  filter.addEventListener("input", () => { clearTimeout(later); later = setTimeout(apply, 150); });
  calls.addEventListener("change", apply);
  const line = id("line"), box = line.parentElement, scale = factor => {
    const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
    zoom = Math.min(64, Math.max(1, zoom * factor));
    line.style.width = zoom * 100 + "%";
    box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
  };
  id("in").addEventListener("click", () => scale(2));
  id("out").addEventListener("click", () => scale(0.5));
  line.addEventListener("mousemove", event => {
    const place = line.getBoundingClientRect(), share = (event.clientX - place.left) / place.width;
    id("now").textContent = "pointer at " + (Math.min(1, Math.max(0, share)) * line.dataset.end).toFixed(3) + " s";
  });
  const at = id("at"), future = id("future"), until = id("until");
  const said = rows.filter(row => row.className !== "c").map(row => [...row.cells].map(cell => cell.textContent));
  const scrub = () => {
    const share = at.value / at.max, now = share * line.dataset.end;
    future.setAttribute("x", share * 100 + "%");
    future.setAttribute("width", (1 - share) * 100 + "%");
    id("when").textContent = now.toFixed(2) + " s";
    until.replaceChildren(...said.filter(cells => cells[0] <= now).slice(-5).map(([when, node, kind, text]) => {
      const item = document.createElement("li");
      item.textContent = Number(when).toFixed(2) + " s  " + [node, kind, text].filter(Boolean).join(" · ");
      return item;
    }));
  };
  at.addEventListener("input", scrub);
  scrub();
  for (const tool of document.querySelectorAll(".script")) tool.hidden = false;
  if (filter.value || calls.checked) apply();
})();
