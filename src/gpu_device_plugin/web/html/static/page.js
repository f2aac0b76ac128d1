"use strict";
// Filters, order, keys, what is open beside the nodes, and the parts that the server sends when they change.
// What is shown is drawn and escaped by the server; this only puts it in place.

const find = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const filters = find("#filters"), nodes = find("#all"), detail = find("#detail"), age = find("#age");
let shown = []; // the nodes that the filters leave, in their order

// Filters. They are in the address too, so that a view can be passed on.

function wanted() {
  return Object.fromEntries([...new FormData(filters)].map(([key, value]) => [key, value.trim().toLowerCase()]));
}

// What a text is looked for in: the node and its cards, or one of its pods.
function isOfNode(node, text) {
  node.own ??= [node.dataset.name, ...all(".card", node).map((card) => card.title)].join("\n").toLowerCase();
  return node.own.includes(text);
}

function isOfPod(pod, want, ofNode) {
  const isThere = !want.namespace || pod.startsWith(want.namespace + "/");
  return isThere && (ofNode || pod.includes(want.text));
}

// Whether a card has room for a container that asks for so much; a mode that divides compute refuses one that asks for none.
function hasRoom(card, want) {
  const [units, percent, least] = (card.dataset.room ?? "-1 -1 0").split(" ");
  return units >= Number(want.units) && percent >= Number(want.percent) && Number(want.percent) >= least;
}

function matches(node, want) {
  const { states } = node.dataset;
  if (want.state && !states.split(" ").includes(want.state)) return false;
  if (asksRoom(want) && !all(".card", node).some((card) => hasRoom(card, want))) return false;
  const ofNode = isOfNode(node, want.text);
  if (ofNode && !want.namespace) return true;
  node.pods ??= all("[data-pod]", node).map((each) => each.dataset.pod);
  return node.pods.some((pod) => isOfPod(pod, want, ofNode));
}

const asksRoom = (want) => Boolean(want.units || want.percent);

// Of a node that is shown, the slices that are not looked for step back, and cards with room stand out.
function dim(node, want) {
  const ofNode = isOfNode(node, want.text), ofPods = Boolean(want.namespace) || !ofNode;
  for (const each of all(".slice", node)) each.classList.toggle("dim", !isOfPod(each.dataset.pod, want, ofNode));
  for (const each of all(".card", node)) {
    each.classList.toggle("room", asksRoom(want) && hasRoom(each, want));
    each.classList.toggle("found", want.text.length > 3 && each.dataset.uuid.includes(want.text));
    each.classList.toggle("other", ofPods && !find(".slice:not(.dim)", each));
  }
}

// The pods without a card that are looked for; the server sends no more than some, and says how many are beyond them.
function listWaiting(unplaced, want) {
  if (unplaced.matches(".trouble")) return; // it could not be drawn
  const asked = all("li", unplaced).filter((each) => {
    each.hidden = true;
    each.found = each.dataset.pods.split(" ").filter((pod) => isOfPod(pod, want, false));
    return each.found.length;
  });
  const pods = (lines) => lines.reduce((sum, each) => sum + each.found.length, 0);
  const beyond = Number(unplaced.dataset.beyond ?? 0), isSearch = want.text || want.namespace;
  unplaced.hidden = !asked.length && !beyond;
  if (unplaced.hidden) return;
  for (const each of asked.slice(0, 50)) lead(each);
  const count = pods(asked) + (isSearch ? 0 : beyond), left = count - pods(asked.slice(0, 50));
  find("h2", unplaced).textContent = `Without a card${count > 1 ? `: ${count} pods` : ""}`;
  const rest = [left > 0 && `and ${left} more`, isSearch && beyond && `${beyond} more are not searched`];
  find(".hint", unplaced).textContent = rest.filter(Boolean).join("; ");
}

// A line of pods has the first that is looked for as its link, and counts the others that are.
function lead(line) {
  const [first, ...others] = line.found, link = find("a", line), more = find(".more", line);
  line.hidden = false;
  link.textContent = link.dataset.pod = first;
  link.href = `/pod/${first}`;
  if (!more) return;
  more.hidden = !others.length;
  find("span", more).textContent = others.length;
}

function filter() {
  const want = wanted(), isPlain = !want.text && !want.namespace && !asksRoom(want);
  shown = arranged(want).filter((node) => {
    node.hidden = !matches(node, want);
    if (!node.hidden && (!isPlain || find(".dim, .room, .other, .found", node))) dim(node, want);
    return !node.hidden;
  });
  for (const each of all(".group", nodes)) each.hidden = !shown.some((node) => placeOf(node, want) === each.dataset.place);
  const unplaced = find("#unplaced");
  listWaiting(unplaced, want);
  rove([...(unplaced.hidden ? [] : [unplaced]), ...shown]);
  const total = all(".node", nodes).length;
  const found = shown.flatMap((node) => all(".room", node)).length;
  const rooms = asksRoom(want) ? `, ${found} card${found === 1 ? "" : "s"} with room` : "";
  find("#shown").value = `${shown.length} of ${total} nodes${rooms}`;
  for (const each of all("#legend button")) each.ariaPressed = String(each.dataset.namespace === want.namespace);
  find("#none").hidden = shown.length > 0 || total === 0;
  find("#nothing").hidden = total > 0 || Boolean(age.dataset.trouble);
  choose(total);
  size(want);
  const query = new URLSearchParams(Object.entries(want).filter(([, value]) => value));
  history.replaceState(null, "", (query.size ? `?${query}` : location.pathname) + location.hash);
  for (const key of ["text", "namespace", "state", "units", "percent"]) query.delete(key);
  find("#none a").search = query;
}

// Order and groups.

const FIRST = {
  free: (node) => -node.dataset.free,
  fragmented: (node) => node.dataset.largest - node.dataset.free, // units free beside those of its best card
  name: () => 0,
};
const byText = new Intl.Collator("en", { numeric: true }).compare;
const placeOf = (node, want) => (want.group && node.dataset[want.group]) || `no ${want.group}`;

// The nodes in their order, with a heading before each group; the document is touched only where that differs.
function arranged(want) {
  const first = FIRST[want.sort] ?? ((node) => -(node.dataset.marks > 0)), list = all(".node", nodes);
  const groupOf = (node) => (want.group ? placeOf(node, want) : "");
  list.sort((a, b) => byText(groupOf(a), groupOf(b)) || first(a) - first(b) || byText(a.dataset.name, b.dataset.name));
  const inPlace = want.group ? list.flatMap((node, at) => [...heading(list, at, groupOf), node]) : list;
  if (inPlace.length !== nodes.children.length || inPlace.some((each, at) => each !== nodes.children[at])) {
    const held = document.activeElement;
    nodes.replaceChildren(...inPlace);
    if (nodes.contains(held)) held.focus({ preventScroll: true });
  }
  return list;
}

function heading(list, at, groupOf) {
  const place = groupOf(list[at]);
  if (at > 0 && groupOf(list[at - 1]) === place) return [];
  const members = list.filter((node) => groupOf(node) === place);
  const free = members.reduce((sum, node) => sum + Number(node.dataset.free), 0);
  const made = Object.assign(document.createElement("h2"), { className: "group" });
  made.dataset.place = place;
  made.textContent = `${place}: ${members.length} node${members.length === 1 ? "" : "s"}, ${free} units free`;
  return [made];
}

// The view where nobody has chosen one: bars up to so many nodes, one line for each up to so many, the heat map from
// there on. It goes back only at a fifth fewer, in this tab also after a reload: nodes come and go.

const VIEWS = ["bars", "compact", "heat"], MOST = [20, 100];
const kept = (() => { try { return sessionStorage; } catch { return {}; } })(); // it throws where a person blocks cookies
let fitting = Math.max(0, VIEWS.indexOf(kept.view));

function choose(total) {
  while (total > MOST[fitting]) fitting += 1;
  while (total && total <= 0.8 * MOST[fitting - 1]) fitting -= 1;
  kept.view = VIEWS[fitting];
  const [auto, ...views] = filters.elements.view.options;
  auto.text = `auto: ${views[fitting].text}`;
}

// The heat map: the largest squares with which it fits the window, with the nodes' names where they fit too; where
// none fit, those that fill its width.

function size(want) {
  nodes.className = want.view || VIEWS[fitting];
  if (!nodes.matches(".heat") || !shown.length) return;
  const most = Math.max(1, ...shown.map((node) => find(".cards", node).childElementCount));
  const across = Math.min(most, 8), lines = Math.ceil(most / across);
  const groups = Object.values(Object.groupBy(shown, (node) => (want.group ? placeOf(node, want) : "")));
  const height = innerHeight - nodes.getBoundingClientRect().top - scrollY - 16 - (want.group ? 28 * groups.length : 0);
  const width = nodes.clientWidth + 3, columns = (square) => Math.max(1, Math.floor(width / (across * (square + 1) + 8)));
  const fits = ([square, name]) => {
    const rows = groups.reduce((sum, group) => sum + Math.ceil(group.length / columns(square)), 0);
    return rows * (lines * (square + 1) + name + 8) <= height + 3; // the last has no gap below it
  };
  const filling = Math.floor((width / columns(10) - 8) / across) - 1;
  const [square, name] = SIZES.find(fits) ?? [filling, NAME];
  nodes.style.setProperty("--square", `${square}px`);
  nodes.style.setProperty("--across", across);
  nodes.classList.toggle("named", name > 0);
}

const NAME = 15; // pixels, as in the stylesheet
const SIZES = [NAME, 0].flatMap((name) => [24, 22, 20, 18, 16, 14, 12, 11, 10, ...(name ? [] : [9, 8, 7])].map((square) => [square, name]));

function options() {
  const names = new Set(all(".node", nodes).flatMap((node) => node.dataset.namespaces.split(" ")));
  const list = find("[name=namespace]", filters);
  for (const each of all("#unplaced [data-pod]")) names.add(each.dataset.pod.split("/")[0]);
  names.add(list.value);
  names.delete("");
  const known = all("option", list).slice(1).map((each) => each.value).join(" ");
  const sorted = [...names].sort();
  if (known !== sorted.join(" ")) {
    const value = list.value;
    list.replaceChildren(list.options[0], ...sorted.map((name) => new Option(name)));
    list.value = value;
  }
}

// Parts of the page, by id; an empty one is gone. A new node stands last until the order is made.

function place(id, html) {
  const old = document.getElementById(id);
  if (!html) return old?.remove();
  const made = document.createElement("template");
  made.innerHTML = html; // escaped by the server; the policy runs no script of it
  const part = made.content.firstElementChild;
  if (old) old.replaceWith(part);
  else nodes.append(part);
}

function take(parts) {
  const held = document.activeElement, inNode = held?.closest?.(".node");
  const link = held?.getAttribute?.("href");
  for (const [id, html] of Object.entries(parts)) place(id, html);
  options();
  filter();
  if (inNode && !inNode.isConnected) {
    const node = document.getElementById(inNode.id);
    const again = link && node && find(`[href="${CSS.escape(link)}"]`, node);
    (again || node)?.focus({ preventScroll: true });
  }
  mark();
  performance.mark("parts");
}

function tell({ trouble, seconds }) {
  if (age.dataset.trouble !== trouble) {
    age.dataset.trouble = trouble;
    filter();
  }
  age.classList.toggle("stale", Boolean(trouble));
  age.textContent = trouble ? `not current for ${seconds} s: ${trouble}` : "live";
}

function listen() {
  const source = new EventSource("/events?after=" + document.body.dataset.at);
  source.addEventListener("parts", (event) => {
    take(JSON.parse(event.data));
    if (open) again ??= setTimeout(reload, AGAIN_MS);
  });
  source.addEventListener("age", (event) => tell(JSON.parse(event.data)));
  source.addEventListener("restart", () => location.reload());
  let lost = null;
  source.onopen = () => (lost = null);
  source.onerror = () => {
    lost ??= new Date();
    age.classList.add("stale");
    age.textContent = `no connection since ${lost.toLocaleTimeString()}: the page shows the state of that time`;
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
}

// The pod or node beside the nodes, by its address, `/pod/...` or `/node/...`.

// A large cluster changes all the time, and each story is two questions to the API server.
const AGAIN_MS = 1000;
let open = "", opener = null, told = "", again = null;

function reload() {
  again = null;
  if (open) load(open);
}

async function load(link) {
  const answer = await fetch(`${link}?part`).catch(() => null);
  if (answer?.status === 401) return location.reload();
  const text = answer ? await answer.text() : "";
  if (link !== open || (text && text === told)) return;
  const isSame = Boolean(told);
  told = text;
  const found = new DOMParser().parseFromString(text, "text/html");
  const story = find("article", found) ?? find("main p", found);
  if (isSame) keepFolds(found);
  const hadFocus = detail.contains(document.activeElement);
  detail.replaceChildren(story ?? "the page's server does not answer");
  if (!find(".close", detail)) detail.prepend(Object.assign(document.createElement("button"), { className: "close", textContent: "×" }));
  if (hadFocus) detail.focus({ preventScroll: true });
}

// What a person has folded or unfolded stays so.
function keepFolds(story) {
  const isOpen = new Map(all("details", detail).map((each) => [find("b", each).textContent, each.open]));
  for (const each of all("details", story)) each.open = isOpen.get(find("b", each).textContent) ?? each.open;
}

async function show(link, from, card) {
  open = link;
  if (!detail.contains(from)) opener = from;
  told = "";
  detail.hidden = false;
  mark();
  await load(link);
  detail.focus({ preventScroll: true });
  const at = card ? all(".card", card.parentElement).indexOf(card) : 0;
  if (link !== open) return;
  detail.scrollTop = 0;
  if (at > 0) all("h3", detail)[at]?.scrollIntoView();
}

function close() {
  const link = open;
  open = "";
  detail.hidden = true;
  detail.replaceChildren();
  mark();
  const again = opener?.isConnected ? opener : find(`main [href="${CSS.escape(link)}"]`);
  again?.focus({ preventScroll: true });
}

function mark() {
  for (const each of all(".slice.open")) each.classList.remove("open");
  if (open) for (const each of all(`.slice[href="${CSS.escape(open)}"]`)) each.classList.add("open");
}

document.addEventListener("click", (event) => {
  const namespace = event.target.closest("[data-namespace]")?.dataset.namespace;
  if (namespace) {
    const list = find("[name=namespace]", filters);
    list.value = list.value === namespace ? "" : namespace;
    return filter();
  }
  if (event.target.closest(".close")) return close();
  if (event.ctrlKey || event.metaKey) return;
  const node = event.target.closest(".heat .node"); // too small there to hit a slice
  const link = event.target.closest("a[href^='/pod/'], a[href^='/node/']");
  const card = event.target.closest(".card"), from = node ?? link ?? card?.closest(".node");
  if (!from) return;
  event.preventDefault();
  show(linkOf(from), from, from === link ? null : card);
});

const linkOf = (from) => from.getAttribute("href") ?? `/node/${from.dataset.name}`;

// Keys: j and k from node to node, h and l from slice to slice of a node; in the heat map by rows and by nodes. Pods
// without a card are the first of the nodes. Tab reaches the one that had the focus last, at first the first.

const REACHED = ".slice:not(.dim), .waiting a, li:not([hidden]) a";

function step(list, from, by) {
  const at = list.indexOf(from);
  return list[at < 0 ? 0 : Math.min(Math.max(at + by, 0), list.length - 1)];
}

let stop = null, stops = [];

function rove(list, group = list.find((each) => each.id === stop?.id) ?? list[0]) {
  if (stop) stop.tabIndex = -1;
  if (group) group.tabIndex = 0;
  [stop, stops] = [group, list];
}

function move(key) {
  const group = document.activeElement?.closest?.(".node, .unplaced");
  const isSquare = group?.matches(".heat .node");
  const row = isSquare ? getComputedStyle(nodes).gridTemplateColumns.split(" ").length : 1;
  const aside = isSquare ? { l: 1, ArrowRight: 1, h: -1, ArrowLeft: -1 } : {};
  const by = { j: row, ArrowDown: row, k: -row, ArrowUp: -row, ...aside }[key];
  if (by) {
    const next = step(stops, group, by);
    rove(stops, next);
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  } else if (group) {
    const forward = key === "l" || key === "ArrowRight";
    step(all(REACHED, group), document.activeElement, forward ? 1 : -1)?.focus();
  }
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else if (open) close();
    else document.activeElement?.blur();
  } else if (isTyping) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    find("[name=text]", filters).select();
  } else if (/^([jkhl]|Arrow(Up|Down|Left|Right))$/.test(event.key) && !detail.contains(event.target)) {
    event.preventDefault();
    move(event.key);
  } else if (event.key === "Enter" && event.target.matches(".node")) {
    show(linkOf(event.target), event.target);
  }
});

// Light and dark.

find("#theme").addEventListener("click", () => {
  const root = document.documentElement, order = ["", "dark", "light"];
  const theme = order[(order.indexOf(root.dataset.theme ?? "") + 1) % order.length];
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  document.cookie = `gpu-page-theme=${theme}; SameSite=Strict; Path=/; Max-Age=${theme ? 31536000 : 0}`;
  find("#theme").textContent = `theme: ${theme || "system"}`;
});

for (const [key, value] of new URLSearchParams(location.search)) {
  const field = find(`[name="${CSS.escape(key)}"]`, filters);
  if (key === "namespace" && value) field.add(new Option(value));
  if (field) field.value = value;
  if (field?.selectedIndex === -1) field.selectedIndex = 0;
}
filters.addEventListener("input", filter);
addEventListener("resize", () => size(wanted()));
filters.addEventListener("submit", (event) => event.preventDefault());
find("#theme").textContent = `theme: ${document.documentElement.dataset.theme || "system"}`;
age.classList.toggle("stale", Boolean(age.dataset.trouble));
options();
filter();
listen();
performance.mark("ready");
