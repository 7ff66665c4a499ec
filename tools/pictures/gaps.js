// Why the compute lane of a rank is idle, as explain has it: page_data.cc packs it, and it is read
// when first asked for.

function gapsOf(plan) {
  if (plan.gaps) return plan.gaps;
  const first = [0], from = [], to = [], cause = [], on = [];
  const last = new Int32Array(plan.ranks);
  let rank = 0, end = 0;
  readTuples(plan.idle, (values, at, length) => {
    if (length === 0) {
      first.push(from.length);
      last.fill(0);
      ++rank;
      end = 0;
      return;
    }
    from.push(end + values[at]);
    to.push(end = from.at(-1) + values[at + 1]);
    cause.push(values[at + 2]);
    if (length < 4) return on.push(-1);
    const there = rank + values[at + 3];
    on.push(plan.first[there] + (last[there] += values[at + 4]));
  });
  plan.idle = null;
  return plan.gaps = {first, from, to, cause, on};
}

// That of a rank at a time: {from, to, cause, on}, `on` being the instruction that it is about or
// -1; null where the rank is busy.
function gapAt(plan, rank, time) {
  const gaps = gapsOf(plan);
  let low = gaps.first[rank], high = gaps.first[rank + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (gaps.to[middle] <= time) low = middle + 1; else high = middle;
  }
  if (low === gaps.first[rank + 1] || gaps.from[low] > time) return null;
  return {from: gaps.from[low], to: gaps.to[low], cause: gaps.cause[low], on: gaps.on[low]};
}

// "memory: F s1 m4 could run, but there is no room for its activation"
function gapText(plan, rank, {cause, on}, causes) {
  const {name} = causes[cause];
  if (on < 0) {
    if (name !== "standstill") return `${name}: nothing is left to run`;
    const at = standsAt(plan, rank);
    return at < 0 ? name : `${name}: it stands at ${plan.text(at)}`;
  }
  const text = plan.text(on) + (plan.rank[on] === rank ? "" : ` on rank ${plan.rank[on]}`);
  const more = {
    memory: " could run, but there is no room for its activation",
    order: " could run; the plan runs it later",
    overhead: " could have begun",
  }[name] || "";
  return `${name}: ${text}${more}`;
}
