// The time line: a lane for each node, its life as a bar, and what happened as marks.

import { attribute, h, s, text, time, when } from "./elements.js";

// The shapes of the time line of `understudy simulate --html`.
const GLYPHS = {
  joined: "M-3-5V5L5 0Z", leaving: "M3-5V5L-5 0Z", left: "M3-5V5L-5 0Z", gone: "M-5-5L5 5M5-5L-5 5",
  silent: "M-2.5-5V5M2.5-5V5", back: "M-5-5V5M-1 0H5M2-3L5 0L2 3", restarted: "M-4-4V4M-1-4V4L5 0Z",
  cut: "M-6 0H-2M2 0H6M-2-5V5M2-5V5", found: "M-5 0H5M0-5V5", moved: "M-5 0H4M1-3L4 0L1 3", death: "M-3.5-3.5L3.5 3.5M3.5-3.5L-3.5 3.5",
};
const WORDS = {
  joined: "a node joined", leaving: "drains", left: "left", gone: "a node died", silent: "stopped answering",
  back: "answers again", cut: "two nodes lost each other", found: "they found each other", restarted: "an actor was restarted", moved: "an actor was placed elsewhere", death: "an actor ended",
};
const LANE = 26, HEAD = 20, SPAN = 300, MOST_LANES = 40, MARGIN = 7;

export class TimeLine {
  constructor() {
    this.svg = s("svg", { class: "timeline", role: "img", "aria-label": "Time line of the last five minutes" });
    this.names = h("ol", { class: "lanes" });
    this.key = h("p", { class: "key" }, ["gone", "silent", "back", "cut", "found", "moved", "restarted", "death"].map((kind) =>
      h("span", {}, glyph(kind), WORDS[kind])));
    this.root = h("div", { class: "lined" }, this.names, h("div", { class: "lanesvg" }, this.svg));
    this.order = [];
  }

  update(nodes, events, now) {
    const width = this.svg.clientWidth || 600;
    for (const name of Object.keys(nodes).sort()) if (!this.order.includes(name)) this.order.push(name);
    // A node of which nothing is left in the window gives its lane back.
    const recent = new Set(Object.values(events).filter((one) => one.at > now - SPAN).flatMap((one) => [one.node, one.peer]));
    this.order = this.order.filter((name) => nodes[name] || recent.has(name));
    const lanes = this.order.slice(0, MOST_LANES), height = HEAD + LANE * Math.max(1, lanes.length);
    // The mark of what has just happened is as wide as the margin on each of its sides.
    const x = (at) => Math.max(0, (width - MARGIN) * (1 - (now - at) / SPAN));
    attribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    const parts = [];
    for (let back = 0; back <= SPAN; back += 60) {
      const at = x(now - back);
      parts.push(s("line", { class: "grid", x1: at, x2: at, y1: HEAD - 4, y2: height }));
      // Where minutes are narrow the outermost has no room beside the next.
      if (back === SPAN - 60 && width < 560) continue;
      parts.push(s("text", { class: "tick", x: Math.min(width - 2, at + (back ? 0 : MARGIN) + (back === SPAN ? 2 : -4)), y: 11, "text-anchor": back === SPAN ? "start" : "end" }));
      parts.at(-1).textContent = back ? `−${back / 60} min` : "now";
    }
    lanes.forEach((name, place) => parts.push(...this.lane(name, HEAD + place * LANE + LANE / 2, nodes[name], events, now, x)));
    this.svg.replaceChildren(...parts);
    const wanted = lanes.join("\n");
    if (this.shown !== wanted) {
      this.shown = wanted;
      this.names.replaceChildren(...lanes.map((name) => h("li", { title: name }, name)));
    }
  }

  lane(name, y, row, events, now, x) {
    const own = Object.values(events).filter((one) => (one.node === name || one.peer === name) && one.at > now - SPAN - 5).sort((a, b) => a.at - b.at);
    const parts = [];
    // Lives and silences, from the events and the present state backwards.
    let life = row && row.state !== "gone" && row.state !== "left" ? now : null;
    let silent = row?.state === "silent" ? now : null;
    const bar = (from, to, kind) => parts.push(s("rect", { class: kind, x: x(from), y: y - 4, width: Math.max(1, x(to) - x(from)), height: 8, rx: 4 }));
    const silences = [];
    for (const one of [...own].reverse()) {
      if (one.kind === "gone" || one.kind === "left") life ??= one.at;
      if (one.kind === "back") silent = one.at;
      if (one.kind === "silent") { silences.push([one.at, silent ?? life ?? one.at]); silent = null; }
      if (one.kind === "joined" && life !== null) { bar(one.at, life, "life"); life = null; }
    }
    // A node whose clock is ahead has joined in the future, by its own word.
    if (life !== null) bar(Math.max(now - SPAN, row ? (row.joined > now ? row.joined - row.ahead : row.joined) : 0), life, "life");
    if (silent !== null && silent !== undefined) silences.push([now - SPAN, silent]);
    for (const [from, to] of silences) bar(from, to, "silence");
    for (const one of own) {
      const mark = s("g", { class: `mark ${one.kind}`, transform: `translate(${x(one.at).toFixed(1)} ${y})` }, s("path", { d: GLYPHS[one.kind] ?? "M-3 0H3" }), s("title"));
      text(mark.lastChild, `${time(one.at)} ${one.text}`);
      parts.push(mark);
    }
    return parts;
  }
}

export function glyph(kind) {
  return s("svg", { class: `glyph mark ${kind}`, viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true" }, s("path", { d: GLYPHS[kind] ?? "M-3 0H3" }));
}

/** The events in words, the latest first. */
export class EventList {
  constructor(most = 60) {
    this.most = most;
    this.root = h("ol", { class: "events", tabindex: "0", "aria-label": "Events, the latest first" });
    this.blank = h("p", { class: "dim" }, "Nothing has happened since a page was opened. Joins, deaths, partitions, restarts and moves will be listed here.");
  }

  update(events) {
    const shown = Object.entries(events).sort(([, a], [, b]) => b.at - a.at).slice(0, this.most);
    const key = shown.map(([id]) => id).join();
    if (key === this.shown) return;
    this.shown = key;
    this.root.replaceChildren(...(shown.length ? shown.map(([, one]) => h("li", {},
      when(one.at), glyph(one.kind), h("span", {}, one.text))) : [this.blank]));
  }
}
