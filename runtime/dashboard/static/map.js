// The map: nodes as circles, their actors as dots in them, links between. A node that dies is left
// hollow, and its actors cross over to where they are placed again.

import { attribute, count, rate, roughAge, s, shortClass, text } from "./elements.js";
import { now } from "./feed.js";

const MOST_DOTS = 60;
const LINKED = 24;
// Half the width of the text below a circle; on narrow maps it is shorter.
const HALF = 60, NARROW_HALF = 40;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const NARROW = 600;
const GOLDEN = Math.PI * (3 - Math.sqrt(5));

export class ClusterMap {
  constructor() {
    // What the lines and dots show, the pages of links and actors say in words.
    this.links = s("g", { class: "links", "aria-hidden": "true" });
    this.discs = s("g", { class: "discs" });
    this.dots = s("g", { class: "dots", "aria-hidden": "true" });
    this.root = s("svg", { class: "map", role: "group", "aria-label": "Map of the nodes, their actors and links" }, this.links, this.discs, this.dots);
    this.nodes = new Map();
    this.actors = new Map();
    this.paths = new Map();
    this.order = [];
    this.classes = new Map();
    this.supervising = new Set();
    this.size = "";
    new ResizeObserver(() => { if (this.last) this.update(...this.last); }).observe(this.root);
  }

  update(nodes, actors, links, rates) {
    this.last = [nodes, actors, links, rates];
    const width = this.root.clientWidth, height = this.root.clientHeight;
    if (!width) return;
    // A place is kept as long as its node is shown; a new node takes one that is free, or a new one.
    this.order = this.order.map((name) => (name && nodes[name] ? name : null));
    for (const name of Object.keys(nodes).sort((a, b) => a.localeCompare(b, "en", { numeric: true }))) {
      if (this.order.includes(name)) continue;
      const free = this.order.indexOf(null);
      if (free >= 0) this.order[free] = name; else this.order.push(name);
    }
    while (this.order.length && this.order.at(-1) === null) this.order.pop();
    const places = layout(this.order.length, width, height);
    this.radius = places.radius;
    this.narrow = width < NARROW;
    const size = `${width} ${height} ${this.order.length}`;
    attribute(this.root, "viewBox", `0 0 ${width} ${height}`);
    this.still = this.size !== size && this.size.split(" ").slice(0, 2).join() !== size.split(" ").slice(0, 2).join();
    this.size = size;
    this.root.classList.toggle("still", this.still);
    this.at = new Map(this.order.flatMap((name, place) => (name ? [[name, places.points[place]]] : [])));
    this.drawLinks(nodes, links, rates, width, height);
    this.drawNodes(nodes);
    this.drawActors(nodes, actors);
  }

  drawLinks(nodes, links, rates, width, height) {
    const pairs = new Map();
    for (const [key, row] of Object.entries(links)) {
      if (!this.at.has(row.node) || !this.at.has(row.peer) || row.node === row.peer) continue;
      const ends = [row.node, row.peer].sort(), pair = ends.join("\n");
      const found = pairs.get(pair) ?? { ends, connected: true, stale: false, rate: 0 };
      found.connected &&= row.connected;
      found.stale ||= row.stale || nodes[row.peer].state === "silent";
      found.rate += rates[key] ?? 0;
      pairs.set(pair, found);
    }
    const many = this.order.length > LINKED;
    for (const [pair, { ends, connected, stale, rate: flow }] of pairs) {
      const broken = !connected || nodes[ends[0]].unreachable.includes(ends[1]) || nodes[ends[1]].unreachable.includes(ends[0]);
      if (many && !broken) { pairs.delete(pair); continue; }
      let path = this.paths.get(pair);
      if (!path) {
        path = s("path", {}, s("title"));
        this.paths.set(pair, path);
        this.links.append(path);
      }
      const [a, b] = ends.map((name) => this.at.get(name));
      const mx = (a.x + b.x) / 2, my = (a.y + b.y) / 2, bend = 0.16;
      const way = `M${a.x} ${a.y}Q${mx + (width / 2 - mx) * bend} ${my + (height / 2 - my) * bend} ${b.x} ${b.y}`;
      if (path.getAttribute("d") !== way) {
        path.setAttribute("d", way);
        // Nodes take their time to move: meanwhile a line would lead to where none is yet.
        if (this.nodes.size && !this.still && !STILL.matches) path.animate?.([{ opacity: 0 }, { opacity: 0, offset: 0.6 }, {}], { duration: 1400 });
      }
      attribute(path, "class", broken ? "broken" : stale ? "stale" : "whole");
      path.style.strokeWidth = `${1 + Math.min(3.5, Math.log10(1 + flow / 500))}px`;
      text(path.firstChild, `${ends.join(" – ")}: ${broken ? "not connected" : stale ? "one end does not answer" : "connected"}`);
    }
    for (const [pair, path] of this.paths) if (!pairs.has(pair)) { path.remove(); this.paths.delete(pair); }
  }

  drawNodes(nodes) {
    const radius = this.radius, known = this.nodes.size > 0;
    for (const [name, { x, y }] of this.at) {
      const row = nodes[name];
      let node = this.nodes.get(name);
      if (!node) {
        const disc = s("circle", { class: "disc" }), cross = s("path", { class: "cross" });
        const label = s("text", { class: "name" }), note = s("text", { class: "under" }), title = s("title");
        const root = s("a", { href: `#/node/${encodeURIComponent(name)}` }, title, disc, cross, label, note);
        // One that joins is seen when those that make room for it have moved.
        node = { root, disc, cross, label, note, title, late: known ? " late" : "" };
        this.nodes.set(name, node);
        this.discs.append(root);
      }
      attribute(node.root, "class", `node ${row.state}${row.unseen_by.length ? " unseen" : ""}${node.late}`);
      node.root.style.transform = `translate(${x}px, ${y}px)`;
      attribute(node.disc, "r", radius);
      const arm = radius * 0.32;
      attribute(node.cross, "d", `M${-arm} ${-arm}L${arm} ${arm}M${arm} ${-arm}L${-arm} ${arm}`);
      attribute(node.label, "y", radius + 17);
      attribute(node.note, "y", radius + 32);
      const room = Math.max(8, Math.floor(radius / 3.1));
      text(node.label, name.length > room ? `${name.slice(0, room - 1)}…` : name);
      text(node.note, under(row, radius < 48 || this.narrow));
      text(node.title, `${name}: ${row.problem || (row.state === "up" && row.unseen_by.length ? `cut off from ${row.unseen_by.join(", ")}` : under(row))}`);
      attribute(node.root, "aria-label", node.title.textContent);
    }
    for (const [name, node] of this.nodes) if (!this.at.has(name)) { node.root.remove(); this.nodes.delete(name); }
  }

  drawActors(nodes, actors) {
    const placed = new Map();
    for (const [name, row] of Object.entries(actors)) {
      if (!this.at.has(row.node)) continue;
      const list = placed.get(row.node) ?? [];
      list.push(name);
      placed.set(row.node, list);
    }
    const shown = new Set();
    for (const [node, names] of placed) {
      const { x, y } = this.at.get(node);
      // An actor keeps its place in the circle; a new one takes the lowest that is free.
      const taken = new Set(), late = [];
      for (const name of names) {
        const known = this.actors.get(name);
        if (known && known.node === node && known.place < MOST_DOTS) taken.add(known.place); else late.push(name);
      }
      let next = 0;
      for (const name of late) {
        while (taken.has(next)) next++;
        if (next >= MOST_DOTS) break;
        taken.add(next);
        this.move(name, node, next);
      }
      const highest = Math.max(11, ...taken) + 1;
      const step = (this.radius * 0.84) / Math.sqrt(highest);
      for (const name of names) {
        const known = this.actors.get(name);
        if (!known || known.node !== node) continue;
        shown.add(name);
        const distance = step * Math.sqrt(known.place + 0.35), turn = known.place * GOLDEN;
        this.paint(known, actors[name], x + distance * Math.cos(turn), y + distance * Math.sin(turn), Math.max(1.6, Math.min(5, step * 0.5)));
      }
    }
    for (const [name, known] of this.actors) if (!shown.has(name)) { known.root.remove(); this.actors.delete(name); }
  }

  move(name, node, place) {
    let known = this.actors.get(name);
    if (!known) {
      const title = s("title"), dot = s("circle");
      const root = s("g", { class: "actor" }, title, dot);
      root.addEventListener("click", () => { location.hash = `#/actor/${encodeURIComponent(name)}`; });
      known = { root, dot, title, epoch: null };
      this.actors.set(name, known);
      this.dots.append(root);
    } else this.dots.append(known.root);
    known.node = node;
    known.place = place;
  }

  paint(known, row, x, y, radius) {
    known.root.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
    attribute(known.dot, "r", row.supervises ? radius + 0.6 : radius);
    if (row.supervises) this.supervising.add(row.class);
    const kind = row.supervises ? 0 : this.kind(row.class), busy = row.running > 0 ? " busy" : "", mail = row.waiting > 0 ? " mail" : "";
    const fresh = known.epoch !== null && known.epoch !== row.epoch;
    attribute(known.root, "class", `actor c${kind} ${row.state}${row.supervises ? " supervises" : ""}${busy}${mail}`);
    if (fresh) known.dot.animate?.([{ r: `${radius * 3}px`, opacity: 0.2 }, { r: `${radius}px`, opacity: 1 }], { duration: 1200, easing: "ease-out" });
    known.epoch = row.epoch;
    text(known.title, `${row.name} (${row.role || shortClass(row.class)}) on ${row.node}, epoch ${row.epoch}${row.waiting ? `, ${row.waiting} waiting` : ""}`);
  }

  /** The colour of a class: one of six, in the order in which classes are seen. */
  kind(path) {
    if (!this.classes.has(path)) this.classes.set(path, this.classes.size % 8);
    return this.classes.get(path);
  }
}

function under(row, short = false) {
  if (row.state === "silent") return short || !row.heard ? "does not answer" : `no answer for ${roughAge(now() - row.heard)}`;
  if (row.state === "gone") return "died";
  if (row.state === "left") return "left";
  if (row.state !== "up") return row.state;
  if (row.unseen_by.length) return `cut off from ${row.unseen_by.length > 1 ? `${row.unseen_by.length} nodes` : row.unseen_by[0].length > 9 ? "a node" : row.unseen_by[0]}`;
  const actors = `${count(row.actors)} actor${row.actors === 1 ? "" : "s"}`;
  if (row.rate === null) return actors;
  return short ? `${count(row.actors)} · ${rate(row.rate)}/s` : `${actors}, ${rate(row.rate)} calls/s`;
}

function layout(number, width, height) {
  const label = 40, half = width < NARROW ? NARROW_HALF : HALF;
  if (number <= 1) {
    const radius = Math.min(64, height / 2 - label);
    return { radius, points: [{ x: width / 2, y: height / 2 - label / 3 }] };
  }
  if (number <= 10) {
    // The largest circles of which no two touch, on an ellipse.
    for (let radius = 62; ; radius -= 2) {
      const rx = Math.min(width / 2 - radius - 14, 330), ry = Math.max(0, (height - label) / 2 - radius - 4);
      const points = [];
      for (let i = 0; i < number; i++) {
        const turn = (i / number) * 2 * Math.PI - Math.PI / 2 + (number === 2 ? -Math.PI / 2 : 0);
        points.push({ x: width / 2 + rx * Math.cos(turn), y: (height - label) / 2 + ry * Math.sin(turn) });
      }
      const clear = points.every((a, i) => points.every((b, k) => i === k || apart(a, b, radius, half)));
      if (clear || radius <= 16) return { radius, points };
    }
  }
  const columns = Math.max(1, Math.ceil(Math.sqrt((number * width) / (height + number))));
  const rows = Math.ceil(number / columns), dx = width / columns, dy = height / rows;
  const radius = Math.max(6, Math.min(40, dx / 2 - 6, dy / 2 - 20));
  const points = [];
  for (let i = 0; i < number; i++)
    points.push({ x: ((i % columns) + 0.5) * dx, y: (Math.floor(i / columns) + 0.5) * dy - 10 });
  return { radius, points };
}

// No circle touches another one, or the text that stands below it.
function apart(a, b, radius, half) {
  const dx = Math.abs(a.x - b.x), above = b.y - (a.y + radius + 36), below = a.y + radius - b.y;
  const fromText = Math.hypot(Math.max(0, dx - half), Math.max(0, above, below));
  return Math.hypot(dx, a.y - b.y) > 2 * radius + 12 && fromText > radius + 12 && (dx > 2 * half || Math.abs(a.y - b.y) > 36);
}
