// The last wait of an instruction, the reason why its rank was idle, and the critical path.

// For each instruction the id of its last wait, as the simulator has it, or -1: page_data.cc packs
// those that are not usual, and they are read when first asked for.
function waitsOf(plan) {
  if (plan.waitsOn) return plan.waitsOn;
  const on = new Int32Array(plan.count), lanes = new Int32Array(LANES.length);
  for (let id = 0; id < plan.count; ++id) {
    if (id === plan.first[plan.rank[id]]) lanes.fill(-1);
    const lane = plan.lane(id);
    on[id] = !plan.runs(id) ? -1 : OPS[plan.op[id]].work === "recv" ? plan.sendOf(id)
                                 : lanes[lane === MESSAGE ? 0 : lane];
    if (lane !== MESSAGE) lanes[lane] = id;
  }
  const last = new Int32Array(plan.ranks);
  let rank = 0, id = 0;
  readTuples(plan.waited, (values, at, length) => {
    if (length === 0) {
      id = plan.first[++rank];
      last.fill(0);
      return;
    }
    id += values[at];
    const there = rank + values[at + 1];
    on[id] = length === 1 ? -1 : length === 2 ? id - values[at + 1]
                               : plan.first[there] + (last[there] += values[at + 2]);
    ++id;
  });
  plan.waited = null;
  return plan.waitsOn = on;
}

// The instruction before it on its lane; -1 for messages, which have none.
function laneBefore(plan, id) {
  const lane = plan.lane(id), first = plan.first[plan.rank[id]];
  if (lane === MESSAGE) return -1;
  for (let k = id - 1; k >= first; --k) {
    if (plan.lane(k) === lane) return k;
  }
  return -1;
}

// A longest chain of waits that ends at the makespan; ids in the order of time.
function criticalPath(plan) {
  if (plan.path) return plan.path;
  let at = -1;
  for (let id = 0; id < plan.count; ++id) {
    if (plan.lane(id) !== MESSAGE && (at < 0 || plan.end[id] > plan.end[at])) at = id;
  }
  const path = [];
  for (const seen = new Set(); at >= 0 && plan.runs(at) && !seen.has(at);) {
    path.push(at);
    seen.add(at);
    at = plan.start[at] > 0 ? waitsOf(plan)[at] : -1;
  }
  return plan.path = path.reverse();
}

// The messages into and out of the stage and micro-batch of an instruction.
function messagesOf(plan, id) {
  const {name, work} = OPS[plan.op[id]], {sendF, sendB} = plan.cells;
  const sends = [];
  const add = (table, stage, m) => {
    const send = stage < 0 || stage >= plan.stages ? -1 : table[plan.cell(stage, m)];
    if (send >= 0 && plan.runs(send)) sends.push(send);
  };
  if (work === "send" || work === "recv") {
    const send = work === "send" ? id : plan.sendOf(id);
    return send >= 0 && plan.runs(send) ? [send] : [];
  }
  if (hasForward(plan.op[id]) || name.endsWith("_F")) {
    for (const from of [-1, 0]) add(sendF, plan.stage[id] + from, plan.microbatch[id]);
  }
  if (hasBackward(plan.op[id]) || name.endsWith("_B")) {
    for (const from of [1, 0]) add(sendB, plan.backStage[id] + from, plan.backMicrobatch[id]);
  }
  return sends;
}

// How long the lane of an instruction was idle before it, and the chain of waits back to what was
// not waiting itself: {idle, before, steps}.
function idleBecause(plan, id) {
  const before = laneBefore(plan, id);
  const free = before >= 0 ? plan.end[before] : 0;
  const idle = Math.max(0, plan.start[id] - free);
  const steps = [];
  if (plan.lane(id) === MESSAGE || idle === 0) return {idle, before, steps};
  for (let at = waitsOf(plan)[id]; at >= 0 && steps.length < 60; at = waitsOf(plan)[at]) {
    steps.push(at);
    // The cause of a gap began before it.
    if (plan.start[at] <= free) break;
  }
  return {idle, before, steps};
}
