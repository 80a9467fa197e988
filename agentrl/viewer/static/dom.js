// Elements made of text only: what a model, a tool or a dataset wrote is never markup.

const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ufdd0-\\ufdef\\ud800-\\udfff\\u{e0000}-\\u{e0fff}]", "gu");

const name = (character) =>
  `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Text whose control and direction characters, and halves of surrogate pairs, are named: for attributes. */
export const visibleText = (text) => String(text).replace(HIDDEN, name);

/** The same as nodes, the names set apart from what was written. */
export function visible(text) {
  const whole = String(text), nodes = [];
  let end = 0;
  for (const found of whole.matchAll(HIDDEN)) {
    if (found.index > end) nodes.push(whole.slice(end, found.index));
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = name(found[0]);
    nodes.push(mark);
    end = found.index + found[0].length;
  }
  if (end < whole.length) nodes.push(whole.slice(end));
  return nodes;
}

/** An element. Properties that begin with `on` are listeners, `style` is an object; text among the children is made
    visible. */
export function el(tag, properties = {}, ...children) {
  const [kind, ...classes] = tag.split(".");
  const node = document.createElement(kind || "div");
  node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [part, set] of Object.entries(value)) node.style.setProperty(part, set);
    else if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key, visibleText(value));
  }
  add(node, children);
  return node;
}

export function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) node.append(child);
    else node.append(...visible(child));
  }
}

/** Other children. The new element with the id of the focused one is focused. */
export function fill(node, ...children) {
  const focused = node.contains(document.activeElement) && document.activeElement.id;
  node.replaceChildren();
  add(node, children);
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}

/** Long text cut, with a button that shows the rest. */
export function cut(text, limit = 1500) {
  const whole = String(text);
  if (whole.length <= limit) return visible(whole);
  const holder = el("span", {}, whole.slice(0, limit), "… ");
  const button = el("button.more", {type: "button", onclick: () => fill(holder, whole)},
    `show all ${whole.length.toLocaleString("en")} characters`);
  holder.append(button);
  return [holder];
}

export const short = (text, limit = 60) => {
  const whole = String(text);
  return whole.length > limit ? `${whole.slice(0, limit)}…` : whole;
};

/** A number for a person: four significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? value.toLocaleString("en") : value.toExponential(3);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export const seconds = (value) => value >= 1 || value === 0 ? `${number(value)} s` : `${number(1e3 * value)} ms`;

/** Rewards by name, `score` first; a guard that was not raised says nothing. */
export const worthShowing = (rewards) => Object.entries(rewards)
  .filter(([name, value]) => !name.startsWith("guard/") || value !== 0)
  .sort(([a], [b]) => (b === "score") - (a === "score"));
