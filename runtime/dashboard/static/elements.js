// Parts of pages. What comes from the cluster enters as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  const one = document.createElement(tag);
  set(one, attributes);
  one.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return one;
}

export function s(tag, attributes = {}, ...children) {
  const one = document.createElementNS(SVG, tag);
  set(one, attributes);
  one.append(...children);
  return one;
}

function set(one, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) one.addEventListener(name.slice(2), value);
    else one.setAttribute(name, value === true ? "" : value);
  }
}

/** One row of a list is reached by Tab, and the others from it by the arrow keys: a thousand rows are no thousand stops. `links`: Tab goes on
 *  from that row to its links. Returns what is to be called when the rows have changed; with true, Tab leads to the first row again. */
export function roving(list, links = false) {
  let reached = null;
  const stop = (row, value) => { for (const one of row ? [row, ...(links ? row.querySelectorAll("a") : [])] : []) one.setAttribute("tabindex", value); };
  const reach = (row) => { if (reached !== row) { stop(reached, "-1"); reached = row; stop(row, "0"); } };
  list.addEventListener("focusin", (event) => reach(event.target.closest("li")));
  list.addEventListener("keydown", (event) => {
    if (event.target.closest("button")) return;
    const rows = [...list.querySelectorAll("li:not([hidden])")], place = rows.indexOf(event.target.closest("li"));
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined || !rows[to]) return;
    event.preventDefault();
    rows[to].focus();
  });
  return (anew = false) => { if (anew || !reached?.isConnected || reached.hidden) reach(list.querySelector("li:not([hidden])")); };
}

/** Change a text only if it differs, so that a selection survives. */
export function text(one, value) {
  const wanted = String(value ?? "");
  if (one.textContent !== wanted) one.textContent = wanted;
}

export function attribute(one, name, value) {
  if (value === null || value === undefined || value === false) {
    if (one.hasAttribute(name)) one.removeAttribute(name);
  } else if (one.getAttribute(name) !== String(value)) one.setAttribute(name, value);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export function count(value) { return value === null || value === undefined ? "–" : whole.format(value); }

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(1) : whole.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${unit === "B" || amount >= 100 ? Math.round(amount) : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) seconds = 0;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return age(seconds);
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const value = Math.max(0, Math.floor(seconds));
  if (value < 60) return `${value} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${String(value % 60).padStart(2, "0")} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

/** The same in its largest unit alone. */
export function roughAge(seconds) { return age(seconds).split(" ").slice(0, 2).join(" "); }

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });

/** The time by the reader's clock, with its date unless that is today. */
export function time(seconds) {
  const at = new Date(seconds * 1000), date = day.format(at);
  return date === day.format(new Date()) ? clock.format(at) : `${date} ${clock.format(at)}`;
}

/** The same as an element; its title is UTC, as the commands and logs write it. */
export function when(seconds) {
  const utc = new Date(seconds * 1000).toISOString();
  return h("time", { datetime: utc, title: `${utc.slice(0, 19)}Z` }, time(seconds));
}

/** `shop:Counter` of `package.shop:Counter`. */
export function shortClass(path) { return path ? path.split(":").pop() : ""; }

// A path that is too long for its place goes on in the next line behind a dot, and not within a word.
export function breakable(path) { return h("span", {}, (path ?? "–").match(/[^.:_]*[.:_]?/g).filter(Boolean).flatMap((part) => [part, h("wbr")])); }

export const STATES = {
  up: "up", joining: "joining", draining: "draining", silent: "does not answer", cut: "cut off", gone: "died", left: "left",
  new: "starting", running: "running", starting: "starting", restarting: "restarting", stopping: "stopping",
  stopped: "stopped", exited: "exited", paused: "paused: its node's lease is in doubt", "does not answer": "does not answer", waiting: "waiting",
};

const TONES = {
  up: "good", running: "good", joining: "warn", draining: "warn", starting: "warn", new: "warn", restarting: "warn",
  stopping: "warn", paused: "warn", waiting: "dim", cut: "bad", silent: "quiet", "does not answer": "quiet", gone: "bad", exited: "dim",
  stopped: "dim", left: "dim",
};

export function tone(state) { return TONES[state] ?? "dim"; }

export function badge(state) {
  return h("span", { class: `badge ${tone(state)}` }, h("span", { class: "dot" }), STATES[state] ?? state);
}

export function link(href, label, title) { return h("a", { href, title }, label); }
export function actorLink(name, label = name) { return link(`#/actor/${encodeURIComponent(name)}`, label, name); }
export function nodeLink(name) { return name ? link(`#/node/${encodeURIComponent(name)}`, name, name) : "–"; }

/** A panel with a heading; `note` stands beside it. */
export function panel(title, ...children) {
  const note = h("span", { class: "note" });
  const one = h("section", { class: "panel" }, h("h2", {}, title, " ", note), ...children);
  one.note = note;
  return one;
}

/** What is shown where there is nothing: what it means, and what to do. */
export function empty(title, hint) {
  return h("div", { class: "empty" }, h("p", { class: "lead" }, title), h("p", {}, hint));
}

export class Problems {
  constructor() { this.root = h("ul", { class: "problems", hidden: true }); }

  update(rows) {
    const texts = Object.values(rows).map((row) => row.text);
    const key = texts.join("\n");
    if (this.key === key) return;
    this.key = key;
    this.root.hidden = !texts.length;
    this.root.replaceChildren(...texts.slice(0, 20).map((one) => h("li", {}, one)));
    if (texts.length > 20) this.root.append(h("li", {}, `and ${texts.length - 20} more`));
  }
}

/** A line of the last minutes: pairs of time and value; a missing value is a gap. */
export class Spark {
  constructor(label, { width = 120, height = 28, format = count } = {}) {
    this.width = width;
    this.height = height;
    this.format = format;
    this.area = s("path", { class: "area" });
    this.line = s("path", { class: "line" });
    this.root = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", preserveAspectRatio: "none", width, height });
    this.root.append(this.area, this.line);
    this.label = label;
    this.told = "";
    this.name = s("title");
    this.root.append(this.name);
  }

  update(points, seconds = 180) {
    const last = points.at(-1)?.[0];
    if (last === undefined) return;
    const shown = points.filter(([at]) => at > last - seconds);
    const most = Math.max(1e-9, ...shown.map(([, value]) => value ?? 0));
    const { width, height } = this, greatest = most < 1e-6 ? 0 : most, latest = shown.at(-1)[1] ?? null;
    const x = (at) => width - ((last - at) / seconds) * width;
    const y = (value) => height - 2 - (value / most) * (height - 5);
    let line = "", area = "", open = null, previous = null;
    for (const [at, value] of shown) {
      if (value === null || value === undefined) { if (open !== null) area += `L${previous} ${height}Z`; open = null; continue; }
      const px = x(at).toFixed(1), py = y(value).toFixed(1);
      if (open === null) { line += `M${px} ${py}`; area += `M${px} ${height}L${px} ${py}`; open = px; }
      else { line += `L${px} ${py}`; area += `L${px} ${py}`; }
      previous = px;
    }
    if (open !== null) area += `L${previous} ${height}Z`;
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
    // What the line says, for those who read it beside the line, and for those who cannot see it.
    const known = shown.some(([, value]) => (value ?? null) !== null), minutes = `${Math.round(seconds / 60)} min`;
    this.told = known ? `${latest === null ? "not known now" : `now ${this.format(latest)}`}, at most ${this.format(greatest)} in ${minutes}` : `not known in the last ${minutes}`;
    text(this.name, `${this.label}: ${this.told}`);
    attribute(this.root, "aria-label", this.name.textContent);
  }
}

const REORDER = 3000;

/**
 * A table whose rows stay where they are while their values change: it is put in order at most
 * every three seconds, and never under a pointer or while a link in it has the focus.
 * Columns: {id, head, value(row), show(row) | undefined, key(row) | undefined, format, number, wraps, low, width}.
 * The first column and those with `wraps` take more lines rather than cut a text; the others cut it.
 */
export class Table {
  constructor(columns, { sort, down = false, filter = "", most = 300, label, row, blank } = {}) {
    this.columns = columns;
    this.sort = sort ?? columns[0].id;
    this.down = down;
    this.most = most;
    this.rowClass = row ?? (() => "");
    this.rows = new Map();
    this.order = [];
    this.ordered = 0;
    this.blank = blank ?? empty("Nothing here yet", "Rows appear as soon as the cluster has some.");
    this.blank.hidden = true;
    this.heads = columns.map((column) => h("th", { scope: "col", class: this.kind(column) },
      h("button", { type: "button", onclick: () => this.sortBy(column) }, column.head)));
    this.body = h("tbody");
    const widths = h("colgroup", {}, columns.map((column) => h("col", { class: `${column.low ? `low${column.low}` : ""} w-${column.width ?? "m"}` })));
    this.table = h("table", { "aria-label": label }, widths, h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.more = h("p", { class: "more" });
    this.filter = filter && h("input", { type: "search", placeholder: filter, "aria-label": filter, oninput: () => { this.ordered = 0; this.draw(); } });
    this.frame = h("div", { class: "scroll", tabindex: "-1" }, this.table);
    this.root = h("div", { class: "table" }, this.filter || null, this.frame, this.blank, this.more);
    this.body.addEventListener("pointerenter", () => { this.held = true; });
    this.body.addEventListener("pointerleave", () => { this.held = false; });
    this.reached = null;
    this.body.addEventListener("focusin", (event) => this.reach(event.target.closest("tr")));
    this.body.addEventListener("keydown", (event) => this.move(event));
    this.marks();
  }

  kind(column) { return [column.number && "number", column.low && `low${column.low}`, column.wraps && "wraps"].filter(Boolean).join(" "); }

  sortBy(column) {
    this.down = this.sort === column.id ? !this.down : Boolean(column.number);
    this.sort = column.id;
    this.ordered = 0;
    this.reach(null);
    this.marks();
    this.draw();
  }

  // The links of one row are reached by Tab, and those of the others from there by the arrow keys: see `roving`.
  reach(row) {
    if (this.reached !== row) for (const one of this.reached?.querySelectorAll("a") ?? []) attribute(one, "tabindex", "-1");
    this.reached = row;
    for (const one of row?.querySelectorAll("a") ?? []) attribute(one, "tabindex", null);
  }

  move(event) {
    // A column that a narrow window leaves out has links that take no focus.
    const links = (row) => [...row.querySelectorAll("a")].filter((one) => one.offsetParent);
    const rows = [...this.body.rows].filter((row) => links(row).length), here = event.target.closest("tr"), place = rows.indexOf(here);
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined || place < 0 || !rows[to]) return;
    event.preventDefault();
    const there = links(rows[to]), column = links(here).indexOf(event.target);
    there[Math.min(Math.max(column, 0), there.length - 1)].focus();
  }

  marks() {
    this.columns.forEach((column, place) => attribute(this.heads[place], "aria-sort",
      column.id === this.sort ? (this.down ? "descending" : "ascending") : null));
  }

  update(rows, leftOut = 0) {
    this.data = rows;
    this.leftOut = leftOut;
    this.draw();
  }

  draw() {
    const data = this.data ?? {}, words = (this.filter?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    let keys = Object.keys(data);
    if (words.length) keys = keys.filter((key) => {
      const all = this.columns.map((column) => column.value(data[key]) ?? "").join(" ").toLowerCase();
      return words.every((word) => all.includes(word));
    });
    keys = this.inOrder(keys, data);
    const shown = keys.slice(0, this.most), wanted = new Set(shown);
    for (const [key, row] of this.rows) if (!wanted.has(key)) { row.root.remove(); this.rows.delete(key); }
    let before = null;
    for (const key of shown) {
      let row = this.rows.get(key);
      if (!row) {
        const cells = this.columns.map((column, place) => h(place ? "td" : "th", { scope: place ? null : "row", class: this.kind(column) }));
        row = { root: h("tr", {}, cells), cells, seen: [] };
        this.rows.set(key, row);
      }
      this.fill(row, data[key]);
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== row.root) this.body.insertBefore(row.root, next);
      before = row.root;
    }
    if (!this.reached?.isConnected || !this.reached.querySelector("a")) this.reach([...this.body.rows].find((row) => row.querySelector("a")) ?? null);
    const missing = keys.length - shown.length + (this.leftOut ?? 0);
    text(this.more, missing > 0 ? `${count(missing)} more are left out${this.filter ? "; the filter looks at those that were told" : ""}.` : "");
    this.blank.hidden = this.data === undefined || keys.length > 0;
    this.frame.hidden = this.data !== undefined && keys.length === 0;
  }

  inOrder(keys, data) {
    const column = this.columns.find((one) => one.id === this.sort), place = new Map(this.order.map((key, index) => [key, index]));
    // A row that is moved loses the focus of a link in it.
    const held = this.held || this.body.contains(document.activeElement);
    const resort = !this.ordered || (Date.now() - this.ordered > REORDER && !held);
    if (resort) {
      const sign = this.down ? -1 : 1;
      keys.sort((a, b) => {
        const left = column.value(data[a]), right = column.value(data[b]);
        const none = (left ?? null) === null, other = (right ?? null) === null;
        if (none || other) return none === other ? (a < b ? -1 : 1) : none ? 1 : -1;
        if (left === right) return a < b ? -1 : 1;
        if (typeof left === "string") return sign * left.localeCompare(right, "en", { numeric: true });
        return sign * (left < right ? -1 : 1);
      });
      this.ordered = Date.now();
    } else {
      keys.sort((a, b) => (place.get(a) ?? 1e9) - (place.get(b) ?? 1e9));
    }
    this.order = keys;
    return keys;
  }

  fill(row, data) {
    attribute(row.root, "class", this.rowClass(data) || null);
    this.columns.forEach((column, place) => {
      const value = column.value(data), cell = row.cells[place];
      const seen = column.key ? column.key(data) : value;
      if (row.seen[place] === seen && row.seen.length > place) return;
      row.seen[place] = seen;
      if (column.show) {
        const shown = column.show(data);
        if (shown instanceof Node) {
          cell.replaceChildren(shown);
          if (row.root !== this.reached) for (const one of cell.querySelectorAll("a")) one.setAttribute("tabindex", "-1");
        }
        else text(cell, shown);
      } else text(cell, column.format ? column.format(value) : value ?? "–");
      if (!column.number && !(cell.firstElementChild)) attribute(cell, "title", cell.textContent);
    });
  }
}
