// Times and amounts for people.

const TIME_UNITS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];

// The unit in which a time of this size has one to three digits before the point.
function unitFor(ticks, plan) {
  if (plan.unit === "unit") return ["", plan.ticks];
  return TIME_UNITS.find(([, size]) => Math.abs(ticks) >= size) || TIME_UNITS.at(-1);
}

// To `digits` figures, no zeros after the point that say nothing.
function rounded(value, digits) {
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// "4.02 s", "326 ms"; of the abstract unit the number alone.
function timeText(ticks, plan, digits = 4) {
  const [name, size] = unitFor(ticks, plan);
  return rounded(ticks / size, digits) + (name ? " " + name : "");
}

// Round times at least `least` apart: 1, 2 or 5 times a power of ten.
function axisStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const digit of [1, 2, 5]) {
    if (digit * power >= least * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

// The marks of an axis between two times, all in one unit, with as many digits as tell them apart.
function axisMarks(from, to, least, plan) {
  const step = axisStep(least);
  const [name, size] = unitFor(Math.max(Math.abs(from), Math.abs(to)), plan);
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  const marks = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to; ++k) {
    marks.push({time: k * step, text: (k * step / size).toFixed(digits) + (name ? " " + name : "")});
  }
  return marks;
}

// "22.3 GB" or, of activations, "0.63x" of what 1F1B holds
function amountText(amount, plan) {
  if (plan.memory_unit !== "bytes") return (amount / plan.memory_1x).toFixed(2) + "x";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let k = 0;
  for (; amount >= 1000 && k + 1 < units.length; ++k) amount /= 1000;
  return rounded(amount, 3) + " " + units[k];
}

function percentText(ratio) { return (100 * ratio).toFixed(ratio > 0 && ratio < 0.001 ? 2 : 1) + " %"; }
