// Creates elements. Text from models, tools and datasets is always inserted as text, never as markup.

const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ufdd0-\\ufdef\\ud800-\\udfff\\u{e0000}-\\u{e0fff}]", "gu");

const name = (character) =>
  `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Text for attributes: control and direction characters and lone surrogates are replaced by their names. */
export const visibleText = (text) => String(text).replace(HIDDEN, name);

/** Text as nodes: hidden characters are replaced by their names, each name in its own element. */
export function visible(text) {
  const all = String(text), nodes = [];
  let end = 0;
  for (const found of all.matchAll(HIDDEN)) {
    if (found.index > end) nodes.push(all.slice(end, found.index));
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = name(found[0]);
    nodes.push(mark);
    end = found.index + found[0].length;
  }
  if (end < all.length) nodes.push(all.slice(end));
  return nodes;
}

/** Create an element. Properties that start with `on` are listeners; `style` is an object. Text children are
    converted by `visible`. */
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

/** Replace the children. If a new element has the id of the focused old element, it gets the focus. */
export function fill(node, ...children) {
  const focused = node.contains(document.activeElement) && document.activeElement.id;
  node.replaceChildren();
  add(node, children);
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}

/** Shorten long text, with a button that shows the rest. */
export function cut(text, limit = 1500) {
  const all = String(text);
  if (all.length <= limit) return visible(all);
  const holder = el("span", {}, all.slice(0, limit), "… ");
  const button = el("button.more", {type: "button", onclick: () => fill(holder, all)},
    `show all ${all.length.toLocaleString("en")} characters`);
  holder.append(button);
  return [holder];
}

export const short = (text, limit = 60) => {
  const all = String(text);
  return all.length > limit ? `${all.slice(0, limit)}…` : all;
};

/** Format a number with four significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? value.toLocaleString("en") : value.toExponential(3);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export const seconds = (value) => value >= 1 || value === 0 ? `${number(value)} s` : `${number(1e3 * value)} ms`;

/** Rewards by name, `score` first, without guards that were not raised. */
export const worthShowing = (rewards) => Object.entries(rewards)
  .filter(([name, value]) => !name.startsWith("guard/") || value !== 0)
  .sort(([a], [b]) => (b === "score") - (a === "score"));
