// The pages. Each says what it is about, which topics it shows, and how it is brought up to date.

import { ClusterMap } from "./map.js";
import { EventList, TimeLine } from "./timeline.js";
import {
  Problems, Spark, Table, actorLink, age, attribute, badge, breakable, bytes, count, duration, empty, h, link, nodeLink, panel, rate, roughAge, roving,
  shortClass, text, when,
} from "./elements.js";
import { act, now, section, topics } from "./feed.js";

const cluster = (name) => section("cluster", name);
// Which others a node has lost that answers all the same; a node that does not answer is told of as such.
const cutOff = (row) => (row.state === "up" ? row.unseen_by : []);
// For how long it has not answered; none if it does, or never has.
const silence = (row) => (row.state === "silent" && row.heard ? ` for ${roughAge(now() - row.heard)}` : "");
const isHere = (row) => row.state !== "gone" && row.state !== "left";
const mayAct = () => Boolean(section("connection", "connection").cluster?.actions);

function heading(title, about) { return h("div", { class: "heading" }, h("h1", {}, title), h("p", {}, about)); }

// ----------------------------------------------------------------------------------------------
function tile(label, spark) {
  const value = h("b", {}, "–"), note = h("small", {}, "\u00a0");
  return { root: h("div", { class: "tile" }, h("span", {}, label), value, note, spark?.root ?? null), value, note, spark };
}

const MOST_LOST = 4;

/** What a partition is, in a sentence: which nodes cannot reach which, and what that means. */
function partition(lost) {
  const pairs = lost.flatMap((row) => cutOff(row).map((other) => [row.name, other].sort().join(" and ")));
  const found = [...new Set(pairs)], more = found.length - MOST_LOST;
  return `${found.slice(0, MOST_LOST).join(", ")} ${found.length === 1 ? "have" : more > 0 ? `and ${count(more)} more pairs have` : "have"} lost each other: calls between them wait, within their deadlines, until they can connect again. Nothing is moved while both keep their leases.`;
}

/** That the store is away, in a sentence; and what that means where most nodes do not answer either. */
function storeAway(total) {
  const far = 2 * total.silent >= total.nodes ? ` ${count(total.silent)} of ${count(total.nodes)} nodes do not answer here either: if the network is divided and the store is on their side, the leases of the nodes on this side end, and supervisors place their actors over there.` : "";
  return `The store does not answer, as ${count(total.store_away)} of the ${count(total.nodes - total.silent)} nodes that answer say: named actors pause at two thirds of their lease, and nothing is placed anew. The page of the store has more.${far}`;
}

const MOST_CLOCKS = 4;

/** Clocks of nodes that differ from that of the dashboard, in a sentence for each; none for those that agree. */
function clocks() {
  const odd = Object.values(cluster("nodes")).filter((row) => row.ahead && isHere(row));
  const told = odd.slice(0, MOST_CLOCKS).map((row) => ({ text: `The clock of ${row.name} is ${age(Math.abs(row.ahead))} ${row.ahead > 0 ? "ahead of" : "behind"} the dashboard's: the times of its log lines and deaths are off by as much. Calls, leases and deadlines do not go by it.` }));
  return odd.length > MOST_CLOCKS ? [...told, { text: `The clocks of ${count(odd.length - MOST_CLOCKS)} more nodes differ as well.` }] : told;
}

function clusterPage(root) {
  const nodes = tile("Nodes"), actors = tile("Actors"), calls = tile("Calls served a second", new Spark("Calls served a second", { width: 220, height: 34, format: rate }));
  const waiting = tile("Calls waiting", new Spark("Calls waiting", { width: 220, height: 34 })), received = tile("Received a second", new Spark("Bytes received a second", { width: 220, height: 34, format: bytes }));
  const map = new ClusterMap(), line = new TimeLine(), events = new EventList();
  const legend = h("p", { class: "key" });
  const problems = new Problems();
  const mapPanel = panel("Map", map.root, legend), linePanel = panel("Last five minutes", line.root, line.key), eventPanel = panel("Events", events.root);
  root.append(heading("Cluster", "Who is there, what runs where, and what has just happened."), problems.root,
    h("div", { class: "tiles" }, [nodes, actors, calls, waiting, received].map((one) => one.root)),
    mapPanel, h("div", { class: "pair" }, linePanel, eventPanel));
  let classes = "";
  return () => {
    const data = topics.get("cluster");
    if (!data) return;
    const total = cluster("totals").cluster, history = data.history.cluster;
    const lost = Object.values(cluster("nodes")).filter((row) => cutOff(row).length);
    problems.update([...(lost.length ? [{ text: partition(lost) }] : []), ...clocks(), ...(total.store_away ? [{ text: storeAway(total) }] : [])]);
    text(nodes.value, count(total.nodes));
    text(nodes.note, total.silent ? `${total.silent} not answering` : lost.length ? `${lost.length} cut off` : total.nodes_left_out ? `${total.nodes_left_out} left out` : "all answer");
    attribute(nodes.note, "class", total.silent || lost.length ? "quiet" : null);
    text(actors.value, count(total.actors));
    text(actors.note, `${count(total.running)} at work`);
    text(calls.value, rate(total.rate));
    text(waiting.value, count(total.waiting));
    text(received.value, bytes(total.received));
    calls.spark.update(history.map((one) => [one[0], one[1]]));
    waiting.spark.update(history.map((one) => [one[0], one[2]]));
    received.spark.update(history.map((one) => [one[0], one[3]]));
    map.update(cluster("nodes"), cluster("actors"), cluster("links"), data.rates);
    text(mapPanel.note, total.actors_left_out ? `${count(total.actors_left_out)} actors are counted, but not drawn` : "");
    line.update(cluster("nodes"), cluster("events"), now());
    events.update(cluster("events"));
    const key = [...map.classes.keys()].join();
    if (key !== classes) {
      classes = key;
      legend.replaceChildren(h("span", {}, h("i", { class: "swatch ring" }), "supervisor"),
        ...[...map.classes].filter(([path]) => !map.supervising.has(path)).slice(0, 8).map(([path, kind]) => h("span", { title: path }, h("i", { class: `swatch c${kind}` }), cluster("classes")[path]?.role || shortClass(path))));
    }
  };
}

// ----------------------------------------------------------------------------------------------
const nodeSparks = new Map();
function spark(name) {
  if (!nodeSparks.has(name)) nodeSparks.set(name, new Spark(`Calls a second on ${name}`, { width: 110, height: 22, format: rate }));
  return nodeSparks.get(name);
}

function nodesPage(root) {
  const table = new Table([
    { id: "name", head: "Node", value: (row) => row.name, show: (row) => nodeLink(row.name), width: "l" },
    { id: "state", head: "State", value: (row) => (cutOff(row).length ? "cut" : row.state), key: (row) => `${row.state} ${cutOff(row).length} ${silence(row)}`, show: (row) => h("span", {}, badge(cutOff(row).length ? "cut" : row.state), silence(row)), width: "st", wraps: true },
    { id: "actors", head: "Actors", value: (row) => row.actors, format: count, number: true, width: "xs", low: 1 },
    { id: "rate", head: "Calls/s", value: (row) => row.rate, format: rate, number: true, width: "xs" },
    { id: "spark", head: "Three minutes", value: () => null, key: () => 0, show: (row) => spark(row.name).root, low: 1 },
    { id: "waiting", head: "Waiting", value: (row) => row.waiting, format: count, number: true, width: "xs" },
    { id: "links", head: "Links", value: (row) => row.links_up, key: (row) => `${row.links_up}/${row.links}`, show: (row) => `${row.links_up} of ${row.links}`, number: true, width: "xs", low: 2 },
    { id: "received", head: "Received", value: (row) => row.received, show: (row) => (row.received === null ? "–" : `${bytes(row.received)}/s`), number: true, width: "s", low: 2 },
    { id: "address", head: "Address", value: (row) => row.address, low: 2, width: "address", wraps: true },
  ], { label: "Nodes", row: (row) => (isHere(row) ? (row.state === "silent" ? "silent" : "") : "gone") });
  root.append(heading("Nodes", "Every process that hosts actors. A node that does not answer keeps its last values, with their age."), panel("Members", table.root));
  return () => {
    const data = topics.get("cluster");
    if (!data) return;
    for (const [name, points] of Object.entries(data.history.nodes)) spark(name).update(points.map((one) => [one[0], one[1]]));
    table.update(cluster("nodes"), cluster("totals").cluster.nodes_left_out);
  };
}

function facts(pairs) {
  const cells = new Map(), list = h("dl", { class: "facts" });
  for (const name of pairs) { const cell = h("dd", {}, "–"); cells.set(name, cell); list.append(h("div", {}, h("dt", {}, name), cell)); }
  return { root: list, set: (name, value) => {
    const cell = cells.get(name);
    if (value instanceof Node) { if (cell.textContent !== value.textContent || !cell.firstElementChild) cell.replaceChildren(value); } else text(cell, value ?? "–");
  } };
}

function actorColumns(place) {
  return [
    { id: "name", head: "Actor", value: (row) => row.name, show: (row) => actorLink(row.name), width: "xl" },
    { id: "class", head: "Class", value: (row) => row.role || shortClass(row.class), low: 1 },
    ...(place ? [{ id: "node", head: "Node", value: (row) => row.node, show: (row) => nodeLink(row.node) }] : []),
    { id: "state", head: "State", value: (row) => row.state, show: (row) => badge(row.state), low: 1, width: "st" },
    { id: "waiting", head: "Waiting", value: (row) => row.waiting, format: count, number: true, width: "xs" },
    { id: "running", head: "Running", value: (row) => row.running, format: count, number: true, width: "xs", low: 2 },
    { id: "rate", head: "Calls/s", value: (row) => row.rate, format: rate, number: true, width: "xs" },
    { id: "served", head: "Served", value: (row) => row.served, format: count, number: true, width: "s", low: 2 },
    { id: "epoch", head: "Epoch", value: (row) => row.epoch, format: count, number: true, width: "xs", low: 2 },
  ];
}

const noActors = () => empty("No actors", "Start one with node.spawn(…) or a supervisor; it appears here within a second.");

function nodePage(root, name) {
  const title = heading(name, "One node of the cluster.");
  const state = h("p", { class: "stateline" }), told = facts(["State", "Address", "Process", "Incarnation", "Up for", "Clock", "Python", "Labels", "Resources", "Store", "References"]);
  const calls = new Spark(`Calls a second on ${name}`, { width: 600, height: 60, format: rate }), waits = new Spark(`Calls waiting on ${name}`, { width: 600, height: 60 });
  const table = new Table(actorColumns(false), { label: `Actors on ${name}`, sort: "waiting", down: true, filter: "Filter actors", blank: noActors(), row: (row) => (row.state === "silent" ? "silent" : row.state === "gone" ? "gone" : "") });
  const drain = actionButton("Drain and leave", () => ({ action: "drain-node", name }), `${name} takes no new work, moves its actors, and leaves the cluster.`);
  const held = panel("Actors", table.root), served = panel("Calls served a second", calls.root), waiting = panel("Calls waiting", waits.root);
  const parts = [panel("Facts", told.root, drain.root), h("div", { class: "pair" }, served, waiting), held];
  root.append(title, state, ...parts);
  return () => {
    const data = topics.get("cluster"), row = cluster("nodes")[name];
    if (!data) return;
    drain.update(Boolean(row) && row.state !== "gone" && row.state !== "left");
    for (const part of parts) part.hidden = !row;
    if (!row) { text(state, `No node called ${name} is in the cluster. It may have left; the list of nodes shows who is there.`); return; }
    text(state, row.gone_at ? `Gone for ${age(now() - row.gone_at)}. Its actors are placed on other nodes if a supervisor has them.`
      : row.problem ? `It does not answer: ${row.problem.replace(/[.?!]+$/, "")}. What is shown is ${row.heard ? `${age(now() - row.heard)} old` : "only what other nodes know"}. If its lease ends it counts as dead, and supervisors place its actors elsewhere; understudy stack ${name} says what blocks it, if that is known.`
        : cutOff(row).length ? `Cut off from ${cutOff(row).join(", ")}: calls between them wait for the link.` : "");
    told.set("State", badge(row.state));
    told.set("Address", row.address);
    told.set("Process", `pid ${row.pid}`);
    told.set("Incarnation", row.incarnation);
    // By its own clock, if that is ahead.
    told.set("Up for", `${age(now() - (row.joined > now() ? row.joined - row.ahead : row.joined))}`);
    told.set("Clock", row.ahead ? `${age(Math.abs(row.ahead))} ${row.ahead > 0 ? "ahead of" : "behind"} the dashboard's` : "as the dashboard's");
    told.set("Python", row.python || "–");
    told.set("Labels", Object.entries(row.labels).map((pair) => pair.join("=")).join(", ") || "none");
    told.set("Resources", Object.entries(row.resources).map((pair) => pair.join("=")).join(", ") || "none");
    told.set("Store", !row.heard && row.problem ? "–" : row.store.away ? "away: named actors pause" : `${row.store.kind ?? "–"}, reachable`);
    told.set("References", row.references.owned === undefined ? "–" : `${count(row.references.owned)} owned, ${bytes(row.references.bytes)}`);
    const points = data.history.nodes[name] ?? [];
    calls.update(points.map((one) => [one[0], one[1]]));
    waits.update(points.map((one) => [one[0], one[2]]));
    text(served.note, calls.told);
    text(waiting.note, waits.told);
    table.update(Object.fromEntries(Object.entries(cluster("actors")).filter(([, one]) => one.node === name)), row.actors_left_out);
    // Of a node that has never answered an empty table would say that it has no actors.
    held.hidden = Boolean(row.problem) && !row.heard;
  };
}

function actorsPage(root) {
  const table = new Table(actorColumns(true), { label: "Actors", sort: "waiting", down: true, filter: "Filter by name, class or node", blank: noActors(), row: (row) => (row.state === "silent" ? "silent" : row.state === "gone" ? "gone" : "") });
  const classes = new Table([
    // The name first: on a telephone the module is what is cut.
    { id: "class", head: "Class", value: (row) => row.class, show: (row) => h("span", { title: row.class }, row.role || shortClass(row.class), " ", h("span", { class: "dim" }, row.role ? "" : row.class.split(":")[0])), width: "xl" },
    { id: "actors", head: "Actors", value: (row) => row.actors, format: count, number: true, width: "s" },
    { id: "waiting", head: "Waiting", value: (row) => row.waiting, format: count, number: true, width: "s" },
    { id: "running", head: "Running", value: (row) => row.running, format: count, number: true, width: "s", low: 2 },
    { id: "served", head: "Served", value: (row) => row.served, format: count, number: true, width: "s" },
  ], { label: "Classes", sort: "actors", down: true, blank: noActors() });
  root.append(heading("Actors", "Supervisors and the busiest actors of each node, up to 200 a node; the classes count all."), panel("By class", classes.root), panel("Actors", table.root));
  return () => {
    if (!topics.get("cluster")) return;
    classes.update(cluster("classes"));
    table.update(cluster("actors"), cluster("totals").cluster.actors_left_out);
  };
}

// ----------------------------------------------------------------------------------------------
function callColumns(actor) {
  return [
    ...(actor ? [{ id: "actor", head: "Actor", value: (row) => row.actor, show: (row) => actorLink(row.actor), width: "l" }] : []),
    { id: "method", head: "Method", value: (row) => row.method, wraps: true },
    { id: "state", head: "State", value: (row) => row.state, show: (row) => badge(row.state), width: "st" },
    { id: "seconds", head: "For", value: (row) => row.seconds, format: duration, number: true, width: "s", wraps: true },
    { id: "left", head: "Deadline in", value: (row) => row.left, format: duration, number: true, low: 1 },
    { id: "caller", head: "Called by", value: (row) => row.caller ?? row.from_node, low: 1, width: "l", wraps: true },
    ...(actor ? [{ id: "node", head: "On", value: (row) => row.node, show: (row) => nodeLink(row.node), low: 2 }] : []),
  ];
}

// Seconds after which one asks what a call is doing.
const LONG = 5;

function actorPage(root, name) {
  const topic = `actor/${name}`, told = facts(["State", "Class", "Node", "Epoch", "Supervisor", "Served", "Mailbox", "Oldest waits", "Saved state", "Process"]);
  const problems = new Problems();
  const calls = new Table(callColumns(false), { label: "Calls", sort: "seconds", down: true, blank: empty("Idle", "It runs nothing, and nothing waits in its mailbox.") });
  const deaths = new DeathList(5, "No recorded end", "Nodes and supervisors remember the last ends that were not in order; of this actor there is none.");
  const stop = actionButton("Stop", () => ({ action: "stop-actor", name, epoch: section(topic, "facts")[name]?.epoch }), `${name} is stopped. A supervisor starts it again as its restart type says.`);
  const own = h("pre", { tabindex: "0" }), says = panel("What it says of its state", own);
  says.hidden = true;
  const hint = h("p", { class: "more" });
  const known = panel("Facts", told.root, stop.root), open = panel("Calls", calls.root, hint);
  root.append(heading(name, "One actor."), problems.root, known, open, says, panel("Last ends", deaths.root));
  return () => {
    const data = topics.get(topic), row = section(topic, "facts")[name], seen = cluster("actors")[name];
    stop.update(Boolean(row));
    if (!data) return;
    problems.update(section(topic, "problems"));
    // Of an actor that nobody has, or whose node is silent, an empty table of calls would say that it is idle.
    known.hidden = !row && !seen;
    open.hidden = !row;
    if (row) {
      told.set("State", badge(row.paused ? "paused" : row.started ? "up" : "new"));
      told.set("Class", breakable(row.class));
      told.set("Node", nodeLink(row.node));
      told.set("Epoch", row.epoch);
      told.set("Supervisor", row.supervisor && row.supervisor[0] !== "@" ? actorLink(row.supervisor) : row.supervisor || "none");
      told.set("Served", `${count(row.served)}${seen?.rate ? `, ${rate(seen.rate)} a second` : ""}`);
      told.set("Mailbox", `${count(row.waiting)} of ${count(row.mailbox_limit)}`);
      told.set("Oldest waits", duration(row.oldest_seconds));
      told.set("Saved state", row.saved?.problem ? `not known: ${row.saved.problem}` : row.saved ? (row.saved.bytes === null ? "none" : bytes(row.saved.bytes)) : "–");
      told.set("Process", row.pid ? `its own, pid ${row.pid}` : "that of its node");
      const state = row.actor_state;
      says.hidden = !state || (state.text === null && !state.problem);
      if (!says.hidden) text(own, state.text === null ? state.problem : state.text + (state.is_cut ? "\n… and more, which is not shown" : ""));
    } else {
      says.hidden = true;
      told.set("State", badge(seen?.state ?? "does not answer"));
    }
    calls.update(section(topic, "calls"));
    const long = Object.values(section(topic, "calls")).some((call) => call.state === "running" && call.seconds > LONG);
    text(hint, long ? `Where it waits, line by line: understudy stack ${name}. For which calls: understudy why ${name}.` : "");
    deaths.update(Object.fromEntries(Object.entries(section("tree", "deaths")).filter(([, one]) => one.name === name)), Boolean(topics.get("tree")));
  };
}

const OUTCOMES = [["value", "value", "good"], ["raised", "raised", "warn"], ["not_executed", "not executed", "dim"], ["unknown", "unknown", "bad"], ["cancelled", "cancelled", "faint"]];

function outcomes(row) {
  const total = OUTCOMES.reduce((sum, [name]) => sum + (row[name] ?? 0), 0);
  const bar = h("span", { class: "share", role: "img", "aria-label": OUTCOMES.map(([name, word]) => `${word} ${row[name] ?? 0}`).join(", ") },
    OUTCOMES.filter(([name]) => row[name]).map(([name, word, colour]) => {
      const part = h("i", { class: colour, title: `${word}: ${count(row[name])}` });
      part.style.flexGrow = Math.max(0.02, row[name] / total);
      return part;
    }));
  return bar;
}

function callsPage(root) {
  const problems = new Problems();
  const methods = new Table([
    { id: "method", head: "Method", value: (row) => `${shortClass(row.class)}.${row.method}`, width: "l" },
    { id: "rate", head: "Calls/s", value: (row) => row.rate, format: rate, number: true, width: "xs" },
    { id: "p50", head: "p50", value: (row) => row.p50, format: duration, number: true, width: "xs", low: 1 },
    { id: "p99", head: "p99", value: (row) => row.p99, format: duration, number: true, width: "xs" },
    { id: "wait", head: "Wait p99", value: (row) => row.wait, format: duration, number: true, width: "xs", low: 2 },
    { id: "turn", head: "Turn p99", value: (row) => row.turn, format: duration, number: true, width: "xs", low: 2 },
    { id: "outcomes", head: "Outcomes", value: (row) => row.failed, key: (row) => OUTCOMES.map(([name]) => row[name]).join(), show: outcomes },
    { id: "raised", head: "Raised", value: (row) => row.raised, format: count, number: true, width: "xs", low: 1 },
    { id: "not", head: "Not exec.", value: (row) => row.not_executed, format: count, number: true, width: "xs", low: 1 },
    { id: "unknown", head: "Unknown", value: (row) => row.unknown, format: count, number: true, width: "xs", low: 1 },
  ], { label: "Methods", sort: "rate", down: true, filter: "Filter methods", blank: empty("No calls measured yet", "Nodes begin to measure when this page is opened. Rates appear after two answers, in about four seconds.") });
  const methodPanel = panel("Methods", methods.root, h("p", { class: "key" }, OUTCOMES.map(([, word, colour]) => h("span", {}, h("i", { class: `swatch flat ${colour}` }), word))));
  const calls = new Table(callColumns(true), { label: "Open calls", sort: "seconds", down: true, filter: "Filter calls", blank: empty("No call is open", "Calls that run or wait at the moment are listed here, the longest first.") });
  const cycles = h("ul", { class: "problems", hidden: true });
  const open = panel("Open calls", calls.root);
  root.append(heading("Calls", "How many, how long, and how they end, by method; and what runs and waits now."), cycles, problems.root, methodPanel, open);
  return () => {
    if (!topics.get("calls")) return;
    problems.update(section("calls", "problems"));
    const found = Object.values(section("calls", "cycles"));
    cycles.hidden = !found.length;
    cycles.replaceChildren(...found.map((one) => h("li", {}, "A cycle of actors that wait for each other: ", ...one.actors.flatMap((name) => [actorLink(name), " → "]), one.actors[0])));
    const measured = topics.get("calls").sections.methods;
    methodPanel.hidden = measured === undefined;
    if (measured) methods.update(measured, section("calls", "totals").calls.methods_left_out ?? 0);
    const total = section("calls", "totals").calls;
    if (total) text(open.note, `${count(total.running)} running, ${count(total.waiting)} waiting`);
    calls.update(section("calls", "calls"), total?.left_out);
  };
}

// ----------------------------------------------------------------------------------------------
function treePage(root) {
  const problems = new Problems(), list = h("ul", { class: "tree", role: "tree", "aria-label": "Supervision tree" });
  const blank = empty("No supervisors", "Start a Supervisor with its children: it, and what it restarts, will be drawn here.");
  const loose = h("p", { class: "dim" });
  // Before the first answer it is not known that there are none.
  blank.hidden = true;
  const one = panel("Supervisors and their children", list, blank, loose);
  root.append(heading("Supervision", "Who restarts whom, live. A row that has just changed is marked for a moment."), problems.root, one);
  const rows = new Map(), folded = new Set();
  const keepStop = roving(list);
  return () => {
    const data = topics.get("tree");
    if (!data) return;
    problems.update(section("tree", "problems"));
    hideUnknown(one, section("tree", "problems"), section("tree", "branches"));
    const branches = Object.entries(section("tree", "branches")).sort(([, a], [, b]) => a.place - b.place);
    blank.hidden = branches.length > 0;
    const seen = new Set(branches.map(([key]) => key));
    for (const [key, row] of rows) if (!seen.has(key)) { row.root.remove(); rows.delete(key); }
    let before = null;
    for (const [key, branch] of branches) {
      let row = rows.get(key);
      if (!row) rows.set(key, (row = treeRow(key, folded)));
      row.update(branch);
      row.root.hidden = [...folded].some((above) => branch.parent === above || branch.parent.startsWith(`${above}\n`));
      const next = before ? before.nextSibling : list.firstChild;
      if (next !== row.root) list.insertBefore(row.root, next);
      before = row.root;
    }
    keepStop();
    const total = section("tree", "totals").tree, others = Object.keys(section("tree", "loose")).length + (total?.loose_left_out ?? 0);
    text(loose, [others ? `${count(others)} ${others === 1 ? "actor has" : "actors have"} no supervisor.` : "", total?.branches_left_out ? `${count(total.branches_left_out)} branches are left out.` : ""].join(" "));
  };
}

function treeRow(key, folded) {
  const title = h("span", { class: "who" }), state = h("span", { class: "what" }), where = h("span", { class: "where" }), note = h("span", { class: "why" });
  const fold = h("button", { type: "button", class: "fold", tabindex: "-1", "aria-hidden": "true" });
  const start = actionButton("Start", () => ({ action: "start-child", supervisor: row.supervisor, name: row.id }), "The supervisor starts this child, which has no actor.");
  const root = h("li", { role: "treeitem", tabindex: "-1" }, fold, title, state, where, note, start.root);
  let row = null, epoch = null;
  const turn = (open) => {
    if (open) folded.delete(key); else folded.add(key);
    text(fold, open ? "▾" : "▸");
    document.dispatchEvent(new Event("redraw"));
  };
  fold.addEventListener("click", () => turn(folded.has(key)));
  root.addEventListener("keydown", (event) => {
    if (event.target !== root) return;
    const open = { " ": folded.has(key), ArrowLeft: false, ArrowRight: true }[event.key];
    if (event.key === "Enter") title.firstElementChild.click();
    else if (open === undefined) return;
    else if (row.kind === "supervisor") turn(open);
    event.preventDefault();
  });
  return { root, update: (branch) => {
    row = branch;
    root.style.setProperty("--depth", branch.depth);
    attribute(root, "aria-level", branch.depth + 1);
    attribute(root, "aria-expanded", branch.kind === "supervisor" ? String(!folded.has(key)) : null);
    attribute(root, "class", `${branch.kind}${branch.depth ? "" : " top"}`);
    fold.style.visibility = branch.kind === "supervisor" ? "visible" : "hidden";
    if (!fold.textContent) text(fold, "▾");
    if (title.dataset.for !== branch.name + branch.id) { title.dataset.for = branch.name + branch.id; title.replaceChildren(actorLink(branch.name, branch.depth ? branch.id : branch.name)); title.firstElementChild.setAttribute("tabindex", "-1"); }
    if (state.dataset.for !== branch.state) { state.dataset.for = branch.state; state.replaceChildren(badge(branch.state)); }
    text(where, branch.node ?? "–");
    const restarts = branch.restarts ? `${count(branch.restarts)} restart${branch.restarts === 1 ? "" : "s"}` : "";
    const recent = branch.kind === "supervisor" && branch.intensity !== null && branch.intensity !== undefined ? `${branch.strategy}, ${branch.recent} of ${branch.intensity} restarts used` : "";
    const failed = branch.problem || (branch.state !== "running" && branch.last ? `last: ${branch.last}` : "");
    text(note, [branch.role, recent, restarts, branch.waiting ? `${count(branch.waiting)} waiting` : "", failed].filter(Boolean).join(" · "));
    attribute(note, "title", branch.last ? `last end: ${branch.last}` : null);
    start.update(["stopped", "exited"].includes(branch.state) && Boolean(branch.supervisor));
    if (epoch !== null && epoch !== branch.epoch) root.animate?.([{ backgroundColor: "var(--mark)" }, { backgroundColor: "transparent" }], { duration: 2500 });
    epoch = branch.epoch;
  } };
}

// ----------------------------------------------------------------------------------------------
/** Ends, the latest first. Those of one actor for one reason are one row with their number: an actor that crashes again and again hides no other. */
class DeathList {
  constructor(most, title, hint) {
    this.most = most;
    this.blank = empty(title, hint);
    this.blank.hidden = true;
    this.list = h("ol", { class: "deaths" });
    this.root = h("div", {}, this.list, this.blank);
    this.rows = new Map();
  }

  update(rows, known) {
    const groups = new Map();
    for (const row of Object.values(rows).sort((a, b) => b.at - a.at)) {
      const key = [row.name, row.kind, row.text].join("\n"), group = groups.get(key);
      if (group) group.number++; else groups.set(key, { row, number: 1 });
    }
    const shown = [...groups].slice(0, this.most), wanted = new Set(shown.map(([key]) => key));
    for (const [key, one] of this.rows) if (!wanted.has(key)) { one.root.remove(); this.rows.delete(key); }
    let before = null;
    for (const [key, group] of shown) {
      let one = this.rows.get(key);
      if (!one) this.rows.set(key, (one = death(group.row)));
      one.update(group);
      const next = before ? before.nextSibling : this.list.firstChild;
      // One that is moved loses the focus: the others move around it.
      if (next !== one.root && !one.root.contains(document.activeElement)) this.list.insertBefore(one.root, next);
      before = one.root;
    }
    this.blank.hidden = !known || shown.length > 0;
  }
}

function death(first) {
  const at = h("span"), where = h("span", { class: "where" }), kind = h("span", { class: "kind" }), trace = first.traceback ? h("pre", { tabindex: "0" }) : null;
  const head = [at, h("span", { class: "who" }, first.name), kind, h("span", { class: "why" }, first.text, where)];
  const root = h("li", {}, trace ? h("details", {}, h("summary", {}, head), trace) : h("div", { class: "plain" }, head));
  let seen = null;
  return { root, update: ({ row, number }) => {
    if (seen !== row.at) { seen = row.at; at.replaceChildren(when(row.at)); }
    text(kind, number > 1 ? `${row.kind}, ${count(number)} on record` : row.kind);
    const after = row.lived === null ? "" : `, after ${duration(row.lived)}`;
    text(where, row.node ? `${row.node}${row.epoch === null ? "" : `, epoch ${row.epoch}`}${after}${row.supervisor ? `, child of ${row.supervisor}` : ""}` : "never started");
    if (trace) text(trace, row.traceback.trimEnd());
  } };
}

function deathsPage(root) {
  const problems = new Problems(), list = new DeathList(200, "No deaths on record", "Nodes and supervisors remember the last ends that were not in order, with tracebacks. There is none yet.");
  const one = panel("Last ends", list.root);
  root.append(heading("Deaths", "How actors ended, the latest first; open one to see its traceback."), problems.root, one);
  return () => {
    if (!topics.get("tree")) return;
    problems.update([...clocks(), ...Object.values(section("tree", "problems"))]);
    hideUnknown(one, section("tree", "problems"), section("tree", "deaths"));
    list.update(section("tree", "deaths"), true);
    const more = section("tree", "totals").tree?.deaths_left_out;
    text(one.note, more ? `${count(more)} older ones are left out` : "");
  };
}

// ----------------------------------------------------------------------------------------------
/** Without an answer an empty list would say that there is nothing. */
function hideUnknown(part, problems, rows) { part.hidden = Object.keys(problems).length > 0 && !Object.keys(rows).length; }

function linksPage(root) {
  const table = new Table([
    { id: "node", head: "Node", value: (row) => row.node, show: (row) => nodeLink(row.node) },
    { id: "peer", head: "Peer", value: (row) => row.peer, show: (row) => (cluster("nodes")[row.peer] ? nodeLink(row.peer) : row.peer) },
    { id: "state", head: "State", width: "st", value: (row) => (row.stale ? "1" : row.connected ? "2" : "0"), show: (row) => (row.stale ? badge("silent") : h("span", { class: `badge ${row.connected ? "good" : "bad"}` }, h("span", { class: "dot" }), row.connected ? "connected" : "not connected")) },
    { id: "connections", head: "Connections", value: (row) => row.connections, format: count, number: true, low: 1 },
    { id: "rate", head: "Received/s", value: (row) => row.rate, format: bytes, number: true, width: "m" },
    { id: "bytes", head: "Received", value: (row) => row.bytes_received, format: bytes, number: true, low: 1 },
  ], { label: "Links", filter: "Filter links", blank: empty("No links", "Nodes connect when they first call each other.") });
  root.append(heading("Links", "Sessions between nodes, as each end sees them. A broken connection is dialled again, and its calls wait; more than one connection says how often that was."), panel("Links", table.root));
  return () => {
    const data = topics.get("cluster");
    if (data) table.update(Object.fromEntries(Object.entries(cluster("links")).map(([key, row]) => [key, { ...row, rate: data.rates[key] ?? null }])));
  };
}

function referencesPage(root) {
  const problems = new Problems();
  const owners = new Table([
    { id: "node", head: "Owner", value: (row) => row.node, show: (row) => nodeLink(row.node) },
    { id: "values", head: "Values", value: (row) => row.values, format: count, number: true, width: "s" },
    { id: "bytes", head: "Size", value: (row) => row.bytes, format: bytes, number: true },
  ], { label: "Owners" });
  const values = new Table([
    { id: "reference", head: "Reference", value: (row) => row.reference, width: "l" },
    { id: "owner", head: "Owner", value: (row) => row.owner, show: (row) => nodeLink(row.owner) },
    { id: "size", head: "Size", value: (row) => row.size, show: (row) => (row.size === null ? row.state : bytes(row.size)), number: true, width: "s", wraps: true },
    { id: "age", head: "Age", value: (row) => row.age, format: age, number: true, width: "s", wraps: true },
    { id: "holders", head: "Held by", value: (row) => row.holders.join(", ") || "its owner", low: 1, wraps: true },
    { id: "method", head: "Made by", value: (row) => row.method, low: 1, width: "l", wraps: true },
    { id: "site", head: "Where", value: (row) => row.site || "–", low: 2, width: "l", wraps: true },
  ], { label: "Values", sort: "size", down: true, filter: "Filter values", blank: empty("No references", "A value appears when a call is made with .remote(…), or put; it goes when its last reference goes. Nodes with the option --trace-references also show the line that made it.") });
  const listed = panel("Values", values.root);
  root.append(heading("References", "Values that nodes keep as long as a reference to them is held, the largest first."), problems.root, panel("Owners", owners.root), listed);
  return () => {
    if (!topics.get("references")) return;
    problems.update(section("references", "problems"));
    hideUnknown(listed, section("references", "problems"), section("references", "values"));
    owners.update(section("references", "owners"));
    values.update(section("references", "values"), section("references", "totals").references?.left_out);
  };
}

function poolsPage(root) {
  const problems = new Problems(), table = new Table([
    { id: "name", head: "Pool", value: (row) => row.name, show: (row) => actorLink(row.name), width: "l" },
    { id: "what", head: "Of", value: (row) => row.what, low: 1, width: "l", wraps: true },
    { id: "size", head: "Wanted", value: (row) => row.size, number: true, width: "s" },
    { id: "members", head: "Members", value: (row) => row.members, format: count, number: true, width: "s" },
    { id: "draining", head: "Draining", value: (row) => row.draining, format: count, number: true, low: 1, width: "s" },
    { id: "nodes", head: "Where", value: (row) => Object.entries(row.nodes).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([node, members]) => `${members} on ${node}`).join(", "), low: 1, width: "l", wraps: true },
    { id: "problem", head: "Problem", value: (row) => row.problem || "none", width: "l", wraps: true },
  ], { label: "Pools", blank: empty("No pools are open", "Open one with node.pool(…); its members and where they are will be listed here.") });
  const listed = panel("Pools", table.root);
  root.append(heading("Pools", "Members over the nodes that work on items: how many there should be, and are."), problems.root, listed);
  return () => {
    if (!topics.get("pools")) return;
    problems.update(section("pools", "problems"));
    hideUnknown(listed, section("pools", "problems"), section("pools", "pools"));
    table.update(section("pools", "pools"));
  };
}

function storePage(root) {
  const problems = new Problems(), told = facts(["Kind", "Served by", "Address", "Answer took", "Revision", "Members registered", "Identity"]);
  const points = [], spark = new Spark("Milliseconds of an answer of the store", { width: 600, height: 60, format: (value) => `${value.toFixed(1)} ms` });
  const table = new Table([
    { id: "name", head: "Node", value: (row) => row.name, show: (row) => nodeLink(row.name) },
    { id: "away", head: "Store, as it sees it", value: (row) => (row.store.away ? 0 : 1), show: (row) => h("span", { class: `badge ${row.store.away ? "bad" : "good"}` }, h("span", { class: "dot" }), row.store.away ? "away" : "reachable"), width: "l" },
  ], { label: "The store as nodes see it" });
  const took = panel("Time of an answer", spark.root);
  let last = 0;
  root.append(heading("Store", "Where names, leases and placement are kept. While it is away, named actors pause at two thirds of their lease, and go on when it is back."), problems.root,
    panel("Store", told.root), took, panel("As the nodes see it", table.root));
  return () => {
    const data = topics.get("store"), row = section("store", "store").store;
    table.update(Object.fromEntries(Object.entries(cluster("nodes")).filter(([, one]) => isHere(one) && one.state !== "silent")));
    if (!data || !row) return;
    problems.update(section("store", "problems"));
    told.set("Kind", row.kind);
    told.set("Served by", row.kind === "embedded" ? nodeLink(row.node) : "etcd");
    told.set("Address", row.address || "that of its node");
    told.set("Answer took", row.milliseconds === null ? "no answer" : `${row.milliseconds.toFixed(1)} ms`);
    told.set("Revision", row.revision === null ? "–" : count(row.revision));
    told.set("Members registered", row.members === null ? "–" : count(row.members));
    told.set("Identity", row.identity);
    if (data.at !== last) { last = data.at; points.push([data.at, row.milliseconds]); if (points.length > 100) points.shift(); spark.update(points); text(took.note, spark.told); }
  };
}

function jobsPage(root) {
  const missing = (row) => [...(row.silent ?? []).map((one) => `${one} (silent)`), ...(row.gone ?? []).map((one) => `${one} (gone)`)];
  const state = (row) => (row.problem ? "unreadable" : row.finished ? "finished" : row.closed ? "closed" : row.complete ? "round complete" : "round open");
  const problems = new Problems(), table = new Table([
    { id: "name", head: "Job", value: (row) => row.name, width: "l" },
    { id: "state", head: "State", value: (row) => (missing(row).length ? `${state(row)}, ${count(missing(row).length)} not heard from` : state(row)), wraps: true },
    { id: "round", head: "Round", value: (row) => row.round, format: count, number: true, width: "s" },
    { id: "participants", head: "Agents in it", value: (row) => row.participants?.length ?? null, show: (row) => `${row.participants?.length ?? "–"} of ${row.min_nodes}–${row.max_nodes}`, key: (row) => `${row.participants?.length} ${row.min_nodes} ${row.max_nodes}`, number: true, wraps: true, width: "s" },
    { id: "waiting", head: "Waiting", value: (row) => row.waiting, format: count, number: true, width: "s", low: 1 },
    { id: "spares", head: "Spares", value: (row) => row.spares, format: count, number: true, width: "s", low: 1 },
    { id: "agents", head: "Agents alive", value: (row) => row.agents, format: count, number: true, low: 1 },
    { id: "silent", head: "Not heard from", value: (row) => missing(row).join(", ") || "–", low: 2, width: "l", wraps: true },
    { id: "why", head: "Closed because", value: (row) => row.closed || row.problem || "–", low: 2, width: "l", wraps: true },
  ], { label: "Elastic jobs", blank: empty("No elastic jobs", "Start one with understudy run --rdzv-endpoint and the address of this cluster; its rounds and agents will be listed here.") });
  const listed = panel("Jobs", table.root);
  root.append(heading("Elastic jobs", "Jobs whose agents meet in this cluster's store: rounds, who takes part, who waits."), problems.root, listed);
  return () => {
    if (!topics.get("jobs")) return;
    problems.update(section("jobs", "problems"));
    hideUnknown(listed, section("jobs", "problems"), section("jobs", "jobs"));
    table.update(section("jobs", "jobs"), section("jobs", "totals").jobs?.left_out);
  };
}

const LEVELS = [[0, "all levels"], [20, "info and above"], [30, "warnings and above"], [40, "errors"]];

function logsPage(root) {
  const problems = new Problems(), list = h("ol", { class: "lines", "aria-label": "Log lines, the latest first" });
  const filter = h("input", { type: "search", placeholder: "Filter by node, actor or text", "aria-label": "Filter lines" });
  const level = h("select", { "aria-label": "Level" }, LEVELS.map(([value, word]) => h("option", { value }, word)));
  const blank = empty("No lines", "Nodes keep the latest lines of their loggers. Choose another level or filter, or start nodes with --log-memory.");
  const one = panel("The latest 500 lines", h("p", { class: "choose" }, filter, level), list, blank);
  blank.hidden = true;
  root.append(heading("Logs", "Of all nodes, the latest first; nodes that have ended show what they wrote to the store. understudy logs --follow has the same in a terminal."), problems.root, one);
  const rows = new Map(), keepStop = roving(list, true);
  let seen = null;
  const redraw = () => { seen = null; document.dispatchEvent(new Event("redraw")); };
  filter.addEventListener("input", redraw);
  level.addEventListener("change", redraw);
  return () => {
    const data = topics.get("logs");
    if (!data || seen === data.at) return;
    seen = data.at;
    problems.update([...clocks(), ...Object.values(section("logs", "problems"))]);
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean), least = Number(level.value);
    const shown = Object.entries(section("logs", "lines")).filter(([, line]) => line.level >= least && words.every((word) =>
      `${line.node} ${line.actor} ${line.method} ${line.logger} ${line.text}`.toLowerCase().includes(word))).sort(([, a], [, b]) => b.at - a.at);
    const wanted = new Set(shown.map(([key]) => key));
    for (const [key, line] of rows) if (!wanted.has(key)) { line.remove(); rows.delete(key); }
    let before = null;
    for (const [key, line] of shown) {
      let row = rows.get(key);
      if (!row) rows.set(key, (row = logLine(line)));
      const next = before ? before.nextSibling : list.firstChild;
      if (next !== row) list.insertBefore(row, next);
      before = row;
    }
    // From elsewhere Tab leads to the latest line.
    keepStop(!list.contains(document.activeElement));
    blank.hidden = shown.length > 0;
    list.hidden = !shown.length;
  };
}

function logLine(line) {
  const word = line.level >= 40 ? "error" : line.level >= 30 ? "warning" : line.level >= 20 ? "info" : "debug";
  const row = h("li", { class: word, tabindex: "-1" }, when(line.time), h("span", { class: "level" }, word), h("span", { class: "where" }, nodeLink(line.node)),
    h("span", { class: "text" }, line.actor ? [actorLink(line.actor), line.method ? `.${line.method} ` : " "] : `${line.logger} `, line.text));
  for (const one of row.querySelectorAll("a")) one.setAttribute("tabindex", "-1");
  return row;
}

// ----------------------------------------------------------------------------------------------
function actionButton(label, action, consequence) {
  const told = h("span", { class: "told", role: "status" });
  const button = h("button", { type: "button", class: "act" }, label);
  const root = h("p", { class: "actions", hidden: true }, button, told);
  button.addEventListener("click", () => {
    const dialog = document.getElementById("dialog");
    const go = h("button", { type: "button", class: "act" }, label), keep = h("button", { type: "button" }, "Keep it as it is");
    keep.addEventListener("click", () => dialog.close());
    go.addEventListener("click", async () => {
      dialog.close();
      text(told, "Asking …");
      try { text(told, `${await act(action())}.`); } catch (error) { text(told, error.message); }
    });
    dialog.replaceChildren(h("h2", {}, `${label}?`), h("p", {}, consequence), h("p", { class: "choices" }, keep, go));
    dialog.showModal();
    keep.focus();
  });
  return { root, update: (possible) => { root.hidden = !(possible && mayAct()); } };
}

export const PAGES = [
  { path: "", title: "Cluster", topics: [], build: clusterPage },
  { path: "nodes", title: "Nodes", topics: [], build: nodesPage },
  { path: "tree", title: "Supervision", topics: ["tree"], build: treePage },
  { path: "actors", title: "Actors", topics: [], build: actorsPage },
  { path: "calls", title: "Calls", topics: ["calls"], build: callsPage },
  { path: "deaths", title: "Deaths", topics: ["tree"], build: deathsPage },
  { path: "links", title: "Links", topics: [], build: linksPage },
  { path: "references", title: "References", topics: ["references"], build: referencesPage },
  { path: "pools", title: "Pools", topics: ["pools"], build: poolsPage },
  { path: "store", title: "Store", topics: ["store"], build: storePage },
  { path: "jobs", title: "Jobs", topics: ["jobs"], build: jobsPage },
  { path: "logs", title: "Logs", topics: ["logs"], build: logsPage },
];

export function find(path, name) {
  if (path === "node" && name) return { title: name, under: "nodes", topics: [], build: (root) => nodePage(root, name) };
  if (path === "actor" && name) return { title: name, under: "actors", topics: [`actor/${name}`, "tree"], build: (root) => actorPage(root, name) };
  return PAGES.find((page) => page.path === path) ?? { title: "Not found", topics: [], build: (root) => {
    root.append(heading("Not found", "There is no page at this address."), h("p", {}, link("#/", "Go to the cluster")));
    return () => {};
  } };
}
