// The page: the token, the way from page to page, the state of the connection, and the keyboard.

import { PAGES, find } from "./pages.js";
import { age, attribute, count, h, text } from "./elements.js";
import { now, onChange, section, show, state, takeToken, token, topics } from "./feed.js";

const nav = document.getElementById("nav"), main = document.getElementById("page"), banner = document.getElementById("banner");
const live = document.getElementById("live"), dialog = document.getElementById("dialog");
const STALE = 5;

// How much older than the cluster what a page shows may be: topics are asked for up to every five seconds.
const BEHIND = 12;

let update = () => {}, shown = null, pending = false, asked = [];

function route() {
  const given = location.hash.match(/^#token=([A-Za-z0-9]+)$/);
  if (given) {
    // The token does not stay in the address, where it would be copied along.
    takeToken(given[1]);
    history.replaceState(null, "", "#/");
  }
  if (!token()) { askForToken("Open the address that understudy dashboard has printed: the token in it admits you."); return; }
  const [path = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  let name = "";
  try { name = decodeURIComponent(rest.join("/")); } catch { /* no name, no page */ }
  const page = find(path, name), key = `${path}/${name}`;
  if (key === shown) return;
  const first = shown === null;
  shown = key;
  main.replaceChildren();
  update = page.build(main);
  document.title = `${page.title} · Understudy`;
  for (const one of nav.querySelectorAll("a")) attribute(one, "aria-current", one.dataset.path === (page.under ?? path) ? "page" : null);
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (!first) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  asked = page.topics;
  show(["cluster", ...asked]);
  draw();
}

function askForToken(why) {
  shown = null;
  update = () => {};
  const input = h("input", { id: "token", autocomplete: "off", spellcheck: "false", required: true });
  main.replaceChildren(h("form", { class: "admit", onsubmit: (event) => { event.preventDefault(); takeToken(input.value.trim().replace(/^.*#token=/, "")); state.link = "connecting"; route(); } },
    h("h1", {}, "Which token?"), h("p", {}, why), h("label", { for: "token" }, "Token, or the whole address"), input, h("button", { class: "act" }, "Open the dashboard")));
  asked = [];
  text(live.lastElementChild, "Not admitted");
  attribute(live, "class", "bad");
  input.focus();
}

function draw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    status();
    try { update(); } catch (error) { console.error(error); }
  });
}

function status() {
  if (state.link === "token") {
    if (shown !== null) askForToken(`${state.text} Each start of the dashboard has a new token, unless UNDERSTUDY_DASHBOARD_TOKEN says which.`);
    return;
  }
  const connection = section("connection", "connection").cluster, cluster = topics.get("cluster");
  text(document.getElementById("cluster"), connection?.cluster ?? "");
  const total = section("cluster", "totals").cluster, old = cluster ? now() - cluster.at : 0;
  const waited = asked.some((topic) => !topics.has(topic)), behind = Math.max(0, ...asked.map((topic) => now() - (topics.get(topic)?.at ?? now())));
  let tone = "good", word = "Live", late = "", trouble = "";
  if (state.link === "connecting") { tone = "dim"; word = "Connecting"; }
  else if (state.link === "lost") {
    tone = "bad"; word = "Not connected";
    trouble = `${state.text} Trying again.`;
  } else if (connection?.state === "lost") {
    tone = "bad"; word = "Cluster lost";
    trouble = `The cluster does not answer: ${connection.problem}. Trying ${connection.address} and every node that was known.`;
  } else if (!cluster || waited) { tone = "dim"; word = "Asking the nodes"; }
  else if (old > STALE) { tone = "warn"; late = age(old); word = "old"; }
  else if (behind > BEHIND) { tone = "warn"; late = age(behind); word = "old on this page"; }
  else if (total?.store_away) { tone = "bad"; word = "Store away"; }
  else if (total?.silent) { tone = "quiet"; word = `${count(total.silent)} of ${count(total.nodes)} nodes silent`; }
  attribute(live, "class", tone);
  // Seconds are not read aloud, here and in the banner: there is another one each second.
  text(live.querySelector(".late"), late);
  text(live.lastElementChild, word);
  banner.hidden = !trouble;
  text(banner.firstElementChild, trouble);
  text(banner.lastElementChild, cluster ? ` What is shown is ${age(old)} old.` : "");
  document.body.classList.toggle("old", Boolean(trouble));
}

function help() {
  dialog.replaceChildren(h("h2", {}, "Keys"), h("dl", { class: "keys" },
    PAGES.map((page, place) => h("div", {}, h("dt", {}, h("kbd", {}, KEYS[place])), h("dd", {}, page.title))),
    h("div", {}, h("dt", {}, h("kbd", {}, "/")), h("dd", {}, "Filter")), h("div", {}, h("dt", {}, h("kbd", {}, "?")), h("dd", {}, "This help"))),
  h("p", { class: "choices" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

const KEYS = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "-", "="];

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || event.target.closest?.("input, textarea, select")) {
    if (event.key === "Escape" && event.target.matches?.("input")) event.target.blur();
    return;
  }
  const page = PAGES[KEYS.indexOf(event.key)];
  if (page) location.hash = `#/${page.path}`;
  else if (event.key === "/") { const input = main.querySelector("input[type=search]"); if (input) { event.preventDefault(); input.focus(); } }
  else if (event.key === "?") help();
});
document.addEventListener("redraw", draw);

nav.append(h("ul", {}, PAGES.map((page, place) => h("li", {}, h("a", { href: `#/${page.path}`, "data-path": page.path, title: `${page.title} (key ${KEYS[place]})` }, page.title)))),
  h("button", { type: "button", class: "help", onclick: help, title: "Keys (?)" }, "Keys"));
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
onChange(draw);
setInterval(draw, 1000);
route();
