// Scales of a chart, linear or logarithmic, and their round ticks.

import {number} from "./dom.js";

const FLAT = 1e-6; // a smaller relative spread is rounding error of float32

export const isFlat = (values) => {
  const {low, high} = extent(values);
  return !(high - low > FLAT * Math.max(Math.abs(low), Math.abs(high)));
};

export function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return {low, high};
}

/** Linear map from values to screen positions. `kind`: "x", "y" or "share". A y-axis of positive numbers starts at 0. */
export function linear(values, from, to, kind) {
  let {low, high} = extent(values);
  if (low > high) [low, high] = [0, 1];
  if (kind !== "x" && low > 0 && low < high / 2) low = 0;
  if (kind === "share" && low >= 0 && high <= 1 && high > 0.3) [low, high] = [0, 1];
  else if (kind !== "x" && isFlat([low, high])) [low, high] = around(low);
  else if (kind !== "x") [low, high] = padded(low, high);
  else if (low === high) [low, high] = [low - 0.5, high + 0.5];
  return placed((value) => value, (value) => value, low, high, from, to, ticks(low, high, kind === "x" ? 6 : 5));
}

/** Logarithmic map from values to screen positions; null if no value is positive. */
export function logarithmic(values, from, to) {
  let {low, high} = extent(values.filter((value) => value > 0));
  if (low > high) return null;
  if (high / low < 1.2) [low, high] = [low / 2, high * 2];
  return placed(Math.log10, (value) => 10 ** value, low, high, from, to, powers(low, high));
}

function placed(forth, back, low, high, from, to, marks) {
  const start = forth(low), length = forth(high) - start;
  const place = (value) => from + (forth(value) - start) / length * (to - from);
  place.back = (at) => back(start + (at - from) / (to - from) * length);
  return Object.assign(place, {low, high, ticks: marks.filter((value) => value >= low && value <= high)});
}

const around = (value) => value === 0 ? [-1, 1] : [value - Math.abs(value) / 2, value + Math.abs(value) / 2];

function padded(low, high) {
  const margin = 0.05 * (high - low);
  return [low === 0 ? 0 : low - margin, high + margin];
}

/** Multiples of 1, 2 or 5 times a power of ten, about `count` numbers. */
export function ticks(low, high, count) {
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step && found.length < 20; at++)
    found.push(Number((at * step).toPrecision(12)));
  return found;
}

function powers(low, high) {
  const decades = Math.log10(high / low), every = Math.ceil(decades / 5);
  const factors = decades < 1 ? [1, 2, 3, 5] : decades < 3 ? [1, 2, 5] : [1], found = [];
  const first = Math.floor(Math.log10(low));
  for (let power = first; power <= Math.log10(high); power++)
    if ((power - first) % every === 0) found.push(...factors.map((factor) => Number(`${factor}e${power}`)));
  return found;
}

/** Format a number on an axis: 12k, 3.5M. */
export function tickText(value) {
  const size = Math.abs(value);
  for (const [unit, word] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit && size < 1e12) return `${Number((value / (word === "k" ? 1e3 : unit)).toPrecision(4))}${word}`;
  return number(value);
}

/** Unit of a time axis, from its largest value. */
export function timeUnit(longest) {
  const [unit, word] = longest >= 2 * 3600 ? [3600, "h"] : longest >= 120 ? [60, "min"] : [1, "s"];
  return {unit, word};
}
