"use strict";
// Filters, keys, the pod beside the nodes, and the parts that the server sends when they change.
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

function matches(node, want) {
  const { name, states } = node.dataset;
  if (want.node && !name.includes(want.node)) return false;
  if (want.state && !states.split(" ").includes(want.state)) return false;
  const ofNode = isOfNode(node, want.text);
  if (ofNode && !want.namespace) return true;
  node.pods ??= all("[data-pod]", node).map((each) => each.dataset.pod);
  return node.pods.some((pod) => isOfPod(pod, want, ofNode));
}

// Of a node that is shown, the slices that are not looked for step back.
function dim(node, want) {
  const ofNode = isOfNode(node, want.text);
  for (const each of all(".slice", node)) each.classList.toggle("dim", !isOfPod(each.dataset.pod, want, ofNode));
}

function filter() {
  const want = wanted(), isPlain = !want.text && !want.namespace;
  shown = [];
  for (const node of nodes.children) {
    const isShown = matches(node, want);
    node.hidden = !isShown;
    if (isShown) shown.push(node);
    if (isShown && (!isPlain || find(".dim", node))) dim(node, want);
  }
  find("#shown").value = `${shown.length} of ${nodes.children.length} nodes`;
  for (const each of all("#legend button")) each.ariaPressed = String(each.dataset.namespace === want.namespace);
  find("#none").hidden = shown.length > 0 || nodes.children.length === 0;
  const query = new URLSearchParams(Object.entries(want).filter(([, value]) => value)).toString();
  history.replaceState(null, "", (query ? "?" + query : location.pathname) + location.hash);
}

function options() {
  const names = new Set(), list = find("[name=namespace]", filters);
  for (const node of nodes.children) for (const each of node.dataset.namespaces.split(" ")) names.add(each);
  names.add(list.value);
  names.delete("");
  const known = all("option", list).slice(1).map((each) => each.value).join(" ");
  const sorted = [...names].sort();
  if (known !== sorted.join(" ")) {
    const value = list.value;
    list.replaceChildren(list.options[0], ...sorted.map((name) => new Option(name)));
    list.value = value;
  }
  const hosts = [...nodes.children].map((node) => node.dataset.name);
  if (find("#nodes").childElementCount !== hosts.length) {
    find("#nodes").replaceChildren(...hosts.map((name) => new Option("", name)));
  }
}

// Parts of the page, by id; an empty one is gone.

function place(id, html) {
  const old = document.getElementById(id);
  if (!html) return old?.remove();
  const made = document.createElement("template");
  made.innerHTML = html; // escaped by the server; the policy runs no script of it
  const part = made.content.firstElementChild;
  if (old) return old.replaceWith(part);
  const name = part.dataset.name;
  nodes.insertBefore(part, [...nodes.children].find((each) => each.dataset.name > name) ?? null);
}

function take(parts) {
  const held = document.activeElement, inNode = held?.closest?.(".node");
  const pod = held?.dataset?.pod;
  for (const [id, html] of Object.entries(parts)) place(id, html);
  if (inNode && !inNode.isConnected) {
    const node = document.getElementById(inNode.id);
    const again = pod && node && all(".slice", node).find((each) => each.dataset.pod === pod);
    (again || node)?.focus({ preventScroll: true });
  }
  options();
  filter();
  mark();
  performance.mark("parts");
}

function tell({ trouble, seconds }) {
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
    age.textContent = `no connection since ${lost.toLocaleTimeString()}: what you see is of then`;
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
}

// The pod beside the nodes.

// A large cluster changes all the time, and each story is two questions to the API server.
const AGAIN_MS = 1000;
let open = "", opener = null, told = "", again = null;

function reload() {
  again = null;
  if (open) load(open);
}

async function load(pod) {
  const answer = await fetch(`/pod/${pod}?part`).catch(() => null);
  if (answer?.status === 401) return location.reload();
  const text = answer ? await answer.text() : "";
  if (pod !== open || (text && text === told)) return;
  told = text;
  const found = new DOMParser().parseFromString(text, "text/html");
  const story = find("article", found) ?? find("main p", found);
  if (find(`article[data-pod="${CSS.escape(pod)}"]`, detail)) keepFolds(found);
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

async function show(pod, from) {
  open = pod;
  opener = from;
  told = "";
  detail.hidden = false;
  mark();
  await load(pod);
  detail.focus({ preventScroll: true });
}

function close() {
  const pod = open;
  open = "";
  detail.hidden = true;
  detail.replaceChildren();
  mark();
  const again = opener?.isConnected ? opener : all(".slice").find((each) => each.dataset.pod === pod);
  again?.focus({ preventScroll: true });
}

function mark() {
  for (const each of all(".slice.open")) each.classList.remove("open");
  if (open) for (const each of all(`.slice[data-pod="${CSS.escape(open)}"]`)) each.classList.add("open");
}

document.addEventListener("click", (event) => {
  const namespace = event.target.closest("[data-namespace]")?.dataset.namespace;
  if (namespace) {
    const list = find("[name=namespace]", filters);
    list.value = list.value === namespace ? "" : namespace;
    return filter();
  }
  const pod = event.target.closest("[data-pod]");
  if (event.target.closest(".close")) return close();
  if (!pod || pod.matches("article") || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  show(pod.dataset.pod, pod);
});

const REACHED = ".slice:not(.dim), .waiting a";

// Keys: j and k from node to node, h and l from slice to slice of a node.

function step(list, from, by) {
  const at = list.indexOf(from);
  return list[at < 0 ? 0 : Math.min(Math.max(at + by, 0), list.length - 1)];
}

function move(key) {
  const node = document.activeElement?.closest?.(".node");
  const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
  if (by) {
    const next = step(shown, node, by);
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  } else if (node) {
    const forward = key === "l" || key === "ArrowRight";
    step(all(REACHED, node), document.activeElement, forward ? 1 : -1)?.focus();
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
    const first = find(REACHED, event.target);
    if (first) show(first.dataset.pod, first);
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
  const field = filters.elements[key];
  if (key === "namespace" && value) field.add(new Option(value));
  if (field) field.value = value;
}
filters.addEventListener("input", filter);
filters.addEventListener("submit", (event) => event.preventDefault());
find("#theme").textContent = `theme: ${document.documentElement.dataset.theme || "system"}`;
age.classList.toggle("stale", Boolean(age.dataset.trouble));
options();
filter();
listen();
performance.mark("ready");
