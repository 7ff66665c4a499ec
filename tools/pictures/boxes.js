// Contents of a lane of a rank, as boxes in the order of time, and the same once more at coarser
// levels: where many boxes share a pixel, a few that stand for all of them are painted.

const GROUP = 4;  // boxes that one of the next level stands for

class Boxes {
  constructor(ids, parts, starts, ends) {
    this.ids = ids;
    this.parts = parts;  // of an F&B: 0 the forward, 1 the backward
    this.levels = [{starts, ends, colors: new Uint32Array(ids.length)}];
  }

  get length() { return this.ids.length; }

  // colorOf(id, part) is 0xAABBGGRR. Coarser levels are made anew.
  paint(colorOf) {
    const {colors} = this.levels[0];
    for (let k = 0; k < colors.length; ++k) colors[k] = colorOf(this.ids[k], this.parts[k]);
    this.levels.length = 1;
    while (this.levels.at(-1).starts.length > 4 * GROUP) this.levels.push(coarser(this.levels.at(-1)));
  }

  // The finest level with at most this many boxes between two times, and which they are.
  window(from, to, most) {
    for (let number = 0;; ++number) {
      const level = this.levels[number];
      const begin = firstEndingAfter(level, from);
      const end = firstStartingAt(level, to, begin);
      if (end - begin <= most || number + 1 === this.levels.length) {
        return {...level, begin, end, coarse: number > 0};
      }
    }
  }

  // The box at a time, or the nearest within `reach`; -1 for none.
  at(time, reach) {
    const level = this.levels[0];
    let best = -1, distance = reach;
    const k = firstEndingAfter(level, time - reach);
    for (let i = Math.max(0, k - 1); i < level.starts.length && level.starts[i] <= time + reach; ++i) {
      const d = time < level.starts[i] ? level.starts[i] - time : Math.max(0, time - level.ends[i]);
      if (d <= distance && (best < 0 || d < distance)) {
        best = i;
        distance = d;
      }
    }
    return best;
  }
}

function firstEndingAfter(level, time) {
  let low = 0, high = level.ends.length;
  while (low < high) {
    const middle = low + high >> 1;
    if (level.ends[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

function firstStartingAt(level, time, begin) {
  let low = begin, high = level.starts.length;
  while (low < high) {
    const middle = low + high >> 1;
    if (level.starts[middle] >= time) high = middle; else low = middle + 1;
  }
  return low;
}

// Each box has the colour of its group, weighted by time; how much of it is busy is its alpha.
function coarser(level) {
  const n = Math.ceil(level.starts.length / GROUP);
  const made = {starts: new Float64Array(n), ends: new Float64Array(n), colors: new Uint32Array(n)};
  for (let k = 0; k < n; ++k) {
    const begin = k * GROUP, end = Math.min(begin + GROUP, level.starts.length);
    let red = 0, green = 0, blue = 0, busy = 0, last = 0;
    for (let i = begin; i < end; ++i) {
      const color = level.colors[i];
      const time = (level.ends[i] - level.starts[i]) * (color >>> 24) / 255;
      red += time * (color & 255);
      green += time * (color >> 8 & 255);
      blue += time * (color >> 16 & 255);
      busy += time;
      last = Math.max(last, level.ends[i]);
    }
    const first = level.starts[begin];
    made.starts[k] = first;
    made.ends[k] = last;
    if (busy === 0) continue;
    const alpha = Math.min(255, Math.round(255 * busy / (last - first)));
    made.colors[k] = (alpha << 24 | Math.round(blue / busy) << 16 | Math.round(green / busy) << 8 |
        Math.round(red / busy)) >>> 0;
  }
  return made;
}

// The boxes of the instructions of a rank that pass; of an F&B two, each half as long.
function makeBoxes(plan, rank, passes) {
  const begin = plan.first[rank], end = plan.first[rank + 1];
  let count = 0;
  for (let id = begin; id < end; ++id) {
    if (plan.runs(id) && passes(id)) count += plan.op[id] === OP.FB ? 2 : 1;
  }
  const ids = new Uint32Array(count), parts = new Uint8Array(count);
  const starts = new Float64Array(count), ends = new Float64Array(count);
  let at = 0, sorted = true;
  const put = (id, part, from, to) => {
    ids[at] = id;
    parts[at] = part;
    starts[at] = from;
    ends[at] = to;
    if (at > 0 && from < starts[at - 1]) sorted = false;
    ++at;
  };
  for (let id = begin; id < end; ++id) {
    if (!plan.runs(id) || !passes(id)) continue;
    const from = plan.start[id], to = plan.end[id];
    if (plan.op[id] === OP.FB) {
      put(id, 0, from, (from + to) / 2);
      put(id, 1, (from + to) / 2, to);
    } else {
      put(id, 0, from, to);
    }
  }
  if (sorted) return new Boxes(ids, parts, starts, ends);
  // Programs are in the order of time but where lanes are mixed.
  const order = Uint32Array.from(ids.keys()).sort((a, b) => starts[a] - starts[b] || a - b);
  const permuted = (list) => list.map((unused, k) => list[order[k]]);
  return new Boxes(permuted(ids), permuted(parts), permuted(starts), permuted(ends));
}

// Amounts that a rank holds over time: times and amounts, the first of them at 0.
function memoryCurves(plan) {
  if (plan.curves) return plan.curves;
  plan.curves = [];
  let rank = 0, index = 0, held = plan.fixed[0];
  let times = [0], amounts = [held];
  readTuples(plan.memory, (values, from, length) => {
    if (length === 0) {
      plan.curves.push({times, amounts});
      ++rank;
      index = 0;
      held = plan.fixed[rank];
      times = [0];
      amounts = [held];
      return;
    }
    index += values[from];
    held += values[from + 2];
    const id = plan.first[rank] + index;
    if (!plan.runs(id)) return;
    times.push(values[from + 1] === 1 ? plan.end[id] : plan.start[id]);
    amounts.push(held);
  });
  plan.memory = null;
  return plan.curves;
}
