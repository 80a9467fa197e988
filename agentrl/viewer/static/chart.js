// A line chart: one line a run, warnings as marks, and the values under the pointer.

import {el, fill, number} from "./dom.js";

const WIDTH = 380, HEIGHT = 150, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20, MAX_POINTS = 500;
const SVG = "http://www.w3.org/2000/svg";

/** `lines`: for each run {name, steps, values}; `warnings`: steps. */
export function chart(title, lines, warnings = []) {
  const points = lines.map(({steps, values}) =>
    steps.map((step, at) => [step, values[at]]).filter(([, value]) => value !== null && value !== undefined));
  const all = points.flat();
  const x = scale(all.map(([step]) => step), LEFT, WIDTH - RIGHT), y = scale(all.map(([, value]) => value), HEIGHT - BOTTOM, TOP, 0.06);
  const readout = el("span.readout");
  const rest = () => fill(readout, points.map((line, at) => line.length > 0 &&
    el("span", {}, lines.length > 1 && el(`i.swatch.s${at}`), el("b", {}, number(line.at(-1)[1])))));
  const cross = svg("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  const picture = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title},
    ...grid(x, y), ...warnings.filter((step) => step >= x.low && step <= x.high).map((step) => warning(x(step))),
    ...points.flatMap((line, at) => [path(thin(line), x, y, at), ...dots(line, x, y, at)]), cross);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const step = x.back((event.clientX - box.left) / box.width * WIDTH);
    const near = points.map((line) => nearest(line, step));
    const at = near.find(Boolean);
    if (!at) return;
    for (const end of ["x1", "x2"]) cross.setAttribute(end, x(at[0]));
    cross.setAttribute("visibility", "visible");
    fill(readout, el("span.soft", {}, `step ${at[0]}`), near.map((point, line) => point &&
      el("span", {}, lines.length > 1 && el(`i.swatch.s${line}`), el("b", {}, number(point[1])))));
  });
  picture.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); rest(); });
  rest();
  return el("figure.chart", {"data-metric": title}, el("figcaption", {}, el("span.name", {title}, title), readout), picture);
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function scale(values, from, to, room = 0) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) [low, high] = [0, 1];
  const apart = high - low || Math.abs(high) || 1;
  if (low === high) [low, high] = [low - apart / 2, high + apart / 2];
  const margin = room * (high - low);
  low -= margin; high += margin;
  const place = (value) => from + (value - low) / (high - low) * (to - from);
  place.back = (at) => low + (at - from) / (to - from) * (high - low);
  place.low = low; place.high = high;
  return place;
}

function grid(x, y) {
  const lines = ticks(y.low, y.high, 4).flatMap((value) => [
    svg("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value)}),
    label(LEFT - 6, y(value) + 3.5, value, "end")]);
  return [...lines, ...ticks(x.low, x.high, 5).filter(Number.isInteger).map((step) => label(x(step), HEIGHT - 5, step, "middle"))];
}

function label(x, y, value, anchor) {
  const node = svg("text", {x, y, "text-anchor": anchor});
  node.textContent = number(value);
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / (count + 1), size = 10 ** Math.floor(Math.log10(rough));
  const step = size * ([1, 2, 2.5, 5, 10].find((factor) => factor * size >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high && found.length < 20; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

const warning = (x) => svg("path", {class: "warning", d: `M${x} ${TOP}V${HEIGHT - BOTTOM}M${x - 4} ${HEIGHT - BOTTOM + 6}h8l-4-7z`});

const path = (line, x, y, at) => svg("path", {class: `line s${at}`, d: line.map(([step, value], place) =>
  `${place ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("")});

const dots = (line, x, y, at) => line.length > 16 ? [] : line.map(([step, value]) =>
  svg("circle", {class: `dot s${at}`, cx: x(step), cy: y(value), r: 2.4}));

/** Least and greatest of each stretch, so that no peak is lost. */
function thin(line) {
  if (line.length <= MAX_POINTS) return line;
  const size = Math.ceil(2 * line.length / MAX_POINTS), kept = [];
  for (let start = 0; start < line.length; start += size) {
    const part = line.slice(start, start + size).sort((a, b) => a[1] - b[1]);
    kept.push(...[part[0], part.at(-1)].sort((a, b) => a[0] - b[0]));
  }
  return kept;
}

function nearest(line, step) {
  let best = null;
  for (const point of line) if (!best || Math.abs(point[0] - step) < Math.abs(best[0] - step)) best = point;
  return best;
}
