// What the dashboard sends: a snapshot of each topic, then differences. One stream for one page;
// none while nobody can see the page, because the cluster is asked only while a page is open.

const KEY = `understudy-token:${location.pathname}`;
const LEAST_PAUSE = 1000, LONGEST_PAUSE = 10000;
// The dashboard says every ten seconds that it lives.
const SILENCE = 25000;
// Before each message it says the time: a snapshot may be older than its sending.
const NOW = ": now ";
const POINTS = 180;
const NOTHING = Object.freeze(Object.create(null));

export const topics = new Map();
export const state = { link: "connecting", text: "", offset: 0, heard: 0 };

let listener = () => {};
let current = null;

export function onChange(call) { listener = call; }

export function token() {
  try { return localStorage.getItem(KEY) ?? ""; } catch { return memory; }
}
let memory = "";

export function takeToken(text) {
  memory = text;
  // Without storage the token lasts as long as this page.
  try { localStorage.setItem(KEY, text); } catch { /* see `memory` */ }
}

/** Seconds since 1970 by the clock of the dashboard. */
export function now() { return Date.now() / 1000 + state.offset; }

export function section(topic, name) { return topics.get(topic)?.sections[name] ?? NOTHING; }

/** Show these topics from now on. */
export function show(names) {
  const before = current;
  for (const name of topics.keys())
    if (name.startsWith("actor/") && !names.includes(name)) topics.delete(name);
  current = new Stream(names, () => before?.stop());
  if (document.hidden) before?.stop(); else current.run();
}

document.addEventListener("visibilitychange", () => {
  if (!current) return;
  if (document.hidden) current.stop();
  else { current = new Stream(current.names, () => {}); current.run(); }
});

class Stream {
  constructor(names, began) {
    this.names = names;
    this.began = began;
    this.stopped = false;
    this.control = new AbortController();
  }

  stop() {
    this.stopped = true;
    this.control.abort();
    // Stopped before its first message: the one before it, which it was to replace, is still open.
    this.began();
  }

  async run() {
    let pause = LEAST_PAUSE;
    while (!this.stopped) {
      try {
        await this.read();
        pause = LEAST_PAUSE;
        if (this.stopped) return;
        this.say("lost", "The connection to the dashboard was closed.");
      } catch (error) {
        if (this.stopped) return;
        if (error instanceof Refused) {
          this.say(error.status === 401 ? "token" : "lost", error.message);
          if (error.status === 401 || error.status === 400) { this.began(); return; }
        } else {
          this.say("lost", "The dashboard does not answer. If it has ended, start it again: understudy dashboard");
        }
      }
      this.began();
      await new Promise((resolve) => setTimeout(resolve, pause * (0.7 + 0.6 * Math.random())));
      pause = Math.min(LONGEST_PAUSE, pause * 1.7);
    }
  }

  say(link, text) {
    state.link = link;
    state.text = text;
    listener();
  }

  async read() {
    this.control = new AbortController();
    const query = this.names.map((name) => `topic=${encodeURIComponent(name)}`).join("&");
    const answer = await fetch(`api/events?${query}`, {
      headers: { Authorization: `Bearer ${token()}` }, signal: this.control.signal, cache: "no-store",
    });
    if (!answer.ok) {
      let told = {};
      try { told = await answer.json(); } catch { /* what stands before the dashboard has answered */ }
      throw new Refused(answer.status, told.detail ? `${told.detail}: ${told.next ?? ""}` : `HTTP ${answer.status}`);
    }
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    let text = "", watch = 0;
    const lives = () => {
      clearTimeout(watch);
      watch = setTimeout(() => { if (!this.stopped) this.control.abort(); }, SILENCE);
    };
    try {
      for (;;) {
        lives();
        const { done, value } = await reader.read();
        if (done) return;
        text += decoder.decode(value, { stream: true });
        const parts = text.split("\n\n");
        text = parts.pop();
        for (const part of parts) {
          if (part.startsWith(NOW)) state.offset = part.slice(NOW.length) - Date.now() / 1000;
          else if (part.startsWith("data: ")) this.take(JSON.parse(part.slice(6), bare));
        }
        if (this.stopped) return;
        state.link = "open";
        state.heard = Date.now();
        this.began();
        listener();
      }
    } finally { clearTimeout(watch); }
  }

  take(message) {
    if (message.sections) {
      topics.set(message.topic, { at: message.at, sections: message.sections, history: message.history, rates: Object.create(null) });
    } else {
      const known = topics.get(message.topic);
      if (!known) return;
      apply(known, message);
    }
    if (message.topic === "cluster") grow(topics.get("cluster"), Boolean(message.sections));
  }
}

/** An object without a prototype: the keys are names of the cluster, such as "constructor". */
function bare(key, value) {
  return value && typeof value === "object" && !Array.isArray(value) ? Object.assign(Object.create(null), value) : value;
}

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

function apply(known, { at, changed, gone }) {
  known.before = known.at;
  known.at = at;
  for (const [name, rows] of Object.entries(changed)) {
    const kept = (known.sections[name] ??= Object.create(null));
    for (const [key, fields] of Object.entries(rows)) kept[key] = Object.assign(Object.create(null), kept[key], fields);
  }
  for (const [name, keys] of Object.entries(gone))
    for (const key of keys) delete known.sections[name]?.[key];
}

// The histories of a snapshot go on here, a point with each message.
function grow(cluster, whole) {
  const { sections, history } = cluster;
  if (!whole) {
    const add = (list, row) => {
      // Where the clock of the dashboard was set back, what went before moves along.
      const back = Math.max(0, (list.at(-1)?.[0] ?? 0) - cluster.at);
      if (back) for (const one of list) one[0] -= back;
      list.push([cluster.at, row.rate, row.waiting, row.received]);
      if (list.length > POINTS) list.splice(0, list.length - POINTS);
    };
    for (const row of Object.values(sections.nodes)) {
      if (row.state === "gone" || row.state === "left") continue;
      const silent = row.state === "silent";
      add((history.nodes[row.name] ??= []), silent ? { rate: null, waiting: null, received: null } : row);
    }
    for (const name of Object.keys(history.nodes)) if (!sections.nodes[name]) delete history.nodes[name];
    add(history.cluster, sections.totals.cluster);
  }
  // Bytes a second of each link, from its count.
  const counted = cluster.counted ?? Object.create(null);
  cluster.counted = Object.create(null);
  for (const [key, row] of Object.entries(sections.links)) {
    cluster.counted[key] = [cluster.at, row.bytes_received];
    const was = counted[key];
    if (was && cluster.at > was[0]) cluster.rates[key] = Math.max(0, (row.bytes_received - was[1]) / (cluster.at - was[0]));
  }
}

/** Ask the dashboard to do something; returns what was done. Throws an Error with what went wrong. */
export async function act(action) {
  const answer = await fetch("api/actions", {
    method: "POST", body: JSON.stringify(action),
    headers: { Authorization: `Bearer ${token()}`, "Content-Type": "application/json" },
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(`${told.detail}: ${told.next ?? ""}`);
  return told.done;
}
