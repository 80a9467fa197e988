// Line chart: one line per run, marks for warnings, values at the pointer, zoom by dragging.

import {el, fill, number} from "./dom.js";
import {linear, logarithmic, tickText} from "./scale.js";

const WIDTH = 400, HEIGHT = 196, LEFT = 56, RIGHT = 10, TOP = 8, BOTTOM = 36, MAX_POINTS = 500, LEAST_DRAG = 8;
const SVG = "http://www.w3.org/2000/svg";

/** `lines`: per run {slot, x, values}; `view`: {log, smooth, zoom, xTitle, xText, onZoom}; `warnings`: x values. */
export function chart(title, lines, view, warnings = []) {
  const inside = ([at]) => !view.zoom || (at >= view.zoom[0] && at <= view.zoom[1]);
  const raw = lines.map(({x, values}) => x.map((at, row) => [at, values[row]])
    .filter(([, value]) => value !== null && value !== undefined));
  const points = raw.map((line) => line.filter(inside));
  const smooth = raw.map((line) => view.smooth ? averaged(line, view.smooth).filter(inside) : null);
  const values = [...points, ...smooth].flat().filter(Boolean).map(([, value]) => value), unit = unitOf(title);
  const x = linear(view.zoom ?? points.flat().map(([at]) => at), LEFT, WIDTH - RIGHT, "x");
  const y = (view.log && logarithmic(values, HEIGHT - BOTTOM, TOP)) || linear(values, HEIGHT - BOTTOM, TOP, unit);
  const drawn = points.map((line) => line.filter(([, value]) => value >= y.low && value <= y.high));
  const readout = el("span.readout"), read = (shown) => fill(readout, shown.map((value, at) => value !== undefined &&
    el("span", {}, lines.length > 1 && el(`i.swatch.s${lines[at].slot}`), el("b", {}, number(value)))));
  const rest = () => read((view.smooth ? smooth : points).map((line) => line.at(-1)?.[1]));
  const cross = svg("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  const band = svg("rect", {class: "band", y: TOP, height: HEIGHT - BOTTOM - TOP, visibility: "hidden"});
  const picture = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title},
    ...grid(x, y, view), ...titles(view.xTitle, unit === "share" ? "share" : unit ?? "value", view.log),
    ...warnings.filter((at) => at >= x.low && at <= x.high).map((at) => warning(x(at))),
    ...drawn.flatMap((line, at) => [path(thin(line), x, y, lines[at].slot, smooth[at] && "faint"),
      ...(smooth[at] ? [path(thin(smooth[at].filter(([, value]) => value >= y.low && value <= y.high)), x, y, lines[at].slot)]
        : dots(line, x, y, lines[at].slot))]), band, cross);
  pointing(picture, x, band, view.onZoom, (place) => {
    const near = (view.smooth ? smooth : points).map((line) => nearest(line, place)), at = near.find(Boolean);
    cross.setAttribute("visibility", at ? "visible" : "hidden");
    if (!at) return rest();
    for (const end of ["x1", "x2"]) cross.setAttribute(end, x(at[0]));
    read(near.map((point) => point?.[1]));
    readout.prepend(el("span.soft", {}, `${view.xWord} ${view.xText(at[0])}`));
  }, rest);
  rest();
  return el("figure.chart", {"data-metric": title}, el("figcaption", {}, el("span.name", {title}, title), readout), picture);
}

/** Handles the pointer: shows values; a drag zooms into a range of x; a double click resets the zoom. */
function pointing(picture, x, band, zoom, tell, rest) {
  let from = null;
  const place = (event) => {
    const box = picture.getBoundingClientRect();
    return Math.max(LEFT, Math.min(WIDTH - RIGHT, (event.clientX - box.left) / box.width * WIDTH));
  };
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = place(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    tell(x.back(place(event)));
    if (from === null) return;
    const [low, high] = [from, place(event)].sort((a, b) => a - b);
    for (const [name, value] of [["x", low], ["width", high - low], ["visibility", "visible"]]) band.setAttribute(name, value);
  });
  const drop = () => { from = null; band.setAttribute("visibility", "hidden"); };
  picture.addEventListener("pointerup", (event) => {
    const ends = from === null ? [] : [from, place(event)].sort((a, b) => a - b);
    drop();
    if (ends.length && ends[1] - ends[0] >= LEAST_DRAG) zoom(ends.map(x.back));
  });
  picture.addEventListener("pointercancel", drop); // a touch gesture scrolls the page instead
  picture.addEventListener("dblclick", () => zoom(null));
  picture.addEventListener("pointerleave", () => tell(null));
}

/** Unit of a metric, derived from its name; null if unknown. "share" is a number from 0 to 1. */
export function unitOf(metric) {
  const [first, ...rest] = metric.replace(/^val\//, "").split("/"), last = rest.at(-1) ?? first;
  if (first === "success" || first === "stop" || first === "rollouts" || metric.includes("/guard/")) return "share";
  if (/(^|_)share$|frac(_lower)?$|^accuracy$|^zero_variance$|_idle$/.test(last)) return "share";
  if (first === "timing_s" || first === "rollout_s" || /_s$/.test(last) && !/per_s$/.test(last)) return "seconds";
  if (first === "response_length" || /^tokens_per_call$/.test(last)) return "tokens";
  if (/tokens_per_s$/.test(last)) return "tokens / second";
  if (first === "num_turns") return "turns";
  if (first === "tool_calls" || last === "calls") return "calls";
  if (/kl|entropy/.test(last) || first === "kl" || first === "mismatch") return "nats";
  return first === "reward" ? "reward" : null;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function grid(x, y, view) {
  const across = y.ticks.flatMap((value) => [
    svg("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value)}),
    label(LEFT - 6, y(value) + 3.5, tickText(value), "end")]);
  return [...across, ...x.ticks.filter((at) => !view.integers || Number.isInteger(at))
    .map((at) => label(x(at), HEIGHT - BOTTOM + 14, view.xText(at), "middle"))];
}

const titles = (xTitle, yTitle, log) => [
  label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, xTitle, "middle", "title"),
  label(0, 0, log ? `${yTitle} (log)` : yTitle, "middle", "title", `translate(11 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`)];

function label(x, y, text, anchor, kind = "tick", transform = null) {
  const node = svg("text", {x, y, "text-anchor": anchor, class: kind, ...(transform && {transform})});
  node.textContent = text;
  return node;
}

const warning = (x) => svg("path", {class: "warning", d: `M${x} ${TOP}V${HEIGHT - BOTTOM}M${x - 4} ${HEIGHT - BOTTOM + 6}h8l-4-7z`});

const path = (line, x, y, slot, kind = "") => svg("path", {class: `line s${slot} ${kind || ""}`, d: line.map(([at, value], place) =>
  `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("")});

const dots = (line, x, y, slot) => line.length > 16 ? [] : line.map(([at, value]) =>
  svg("circle", {class: `dot s${slot}`, cx: x(at), cy: y(value), r: 2.4}));

/** Exponential moving average with bias correction. */
export function averaged(line, weight) {
  let sum = 0, weights = 0;
  return line.map(([at, value]) => {
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return [at, sum / weights];
  });
}

/** Reduce a line to the minimum and maximum of each interval, so that peaks stay visible. */
function thin(line) {
  if (line.length <= MAX_POINTS) return line;
  const size = Math.ceil(2 * line.length / MAX_POINTS), kept = [];
  for (let start = 0; start < line.length; start += size) {
    const part = line.slice(start, start + size).sort((a, b) => a[1] - b[1]);
    kept.push(...[part[0], part.at(-1)].sort((a, b) => a[0] - b[0]));
  }
  return kept;
}

function nearest(line, place) {
  if (place === null) return null;
  let best = null;
  for (const point of line) if (!best || Math.abs(point[0] - place) < Math.abs(best[0] - place)) best = point;
  return best;
}
