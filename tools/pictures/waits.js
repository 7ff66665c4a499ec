// What an instruction waits for, by the rules of the timing model (compiler/simulate): its lane,
// its inputs, for a message its producer and its link. Found when asked for, so that a page need
// not carry it.

// Of one instruction: [{id, why}]; ids of what has to end before it can start.
function predecessors(plan, id) {
  const found = [];
  const add = (on, why) => {
    if (on >= 0 && on !== id && !found.some((known) => known.id === on)) found.push({id: on, why});
  };
  const work = OPS[plan.op[id]].work;
  const before = laneBefore(plan, id);
  if (before >= 0) add(before, "lane");
  if (plan.lanesKnown) {
    waitsInLanes(plan, id, work, add);
  } else if (work === "send" || work === "recv") {
    if (work === "recv") add(plan.sendOf(id), "message");
    else waitsOfSend(plan, id, add);
  } else if (work === "reduce" || work === "step") {
    waitsOfStage(plan, id, work, add);
  } else if (work === "offload" || work === "reload") {
    waitsOfCopy(plan, id, work, add);
  } else {
    waitsOfCompute(plan, id, add);
  }
  return found;
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

function waitsOfCompute(plan, id, add) {
  const op = plan.op[id];
  if (hasForward(op)) {
    arrives(plan, id, "forward", plan.stage[id] - 1, plan.microbatch[id], add);
  }
  if (hasBackward(op)) {
    const stage = plan.backStage[id], m = plan.backMicrobatch[id];
    add(plan.cells.forward[plan.cell(stage, m)], "forward");
    add(plan.cells.reload[plan.cell(stage, m)], "reload");
    arrives(plan, id, "backward", stage + 1, m, add);
  }
  if (op === OP.W) {
    add(plan.cells.backward[plan.cell(plan.stage[id], plan.microbatch[id])], "backward");
  }
  if (hasForward(op) || op === OP.R) add(lastOf(plan, id, OP.OFFLOAD), "offload");
}

// What another stage makes for this instruction: by message, or where no messages are written down
// or the stage is on the same rank, straight.
function arrives(plan, id, kind, stage, m, add) {
  if (stage < 0 || stage >= plan.stages) return;
  const cell = plan.cell(stage, m);
  const maker = plan.cells[kind][cell];
  if (maker < 0 || plan.rank[maker] === plan.rank[id] || plan.level === "compute") {
    return add(maker, kind);
  }
  add((kind === "forward" ? plan.cells.sendF : plan.cells.sendB)[cell], "message");
}

function waitsOfSend(plan, id, add) {
  const forward = plan.op[id] === OP.SEND_F;
  const table = forward ? plan.cells.forward : plan.cells.backward;
  add(table[plan.cell(plan.stage[id], plan.microbatch[id])], "made");
  if (plan.exclusive) add(linkBefore(plan, id), "link");
}

// The message before it on the same link.
function linkBefore(plan, id) {
  for (let k = id - 1; k >= plan.first[plan.rank[id]]; --k) {
    if (OPS[plan.op[k]].work === "send" && plan.peer[k] === plan.peer[id]) return k;
  }
  return -1;
}

function lastOf(plan, id, op) {
  for (let k = id - 1; k >= plan.first[plan.rank[id]]; --k) {
    if (plan.op[k] === op) return k;
  }
  return -1;
}

// All REDUCE of a stage, and the last weight gradient of each of its copies.
function waitsOfStage(plan, id, work, add) {
  const stage = plan.stage[id];
  const last = new Map();
  let reduces = 0;
  for (let k = 0; k < plan.count; ++k) {
    if (plan.backStage[k] === stage && hasWeight(plan.op[k])) last.set(plan.rank[k], k);
    if (work === "step" && plan.op[k] === OP.REDUCE && plan.stage[k] === stage &&
        plan.rank[k] === plan.rank[id]) {
      add(k, "reduce");
      ++reduces;
    }
  }
  if (reduces === 0) last.forEach((k) => add(k, "weights"));
}

function waitsOfCopy(plan, id, work, add) {
  const cell = plan.cell(plan.stage[id], plan.microbatch[id]);
  if (work === "offload") return add(plan.cells.forward[cell], "forward");
  add(lastOf(plan, id, OP.OFFLOAD), "offload");
  for (let k = id - 1; k >= plan.first[plan.rank[id]]; --k) {
    if (plan.lane(k) === 0) return add(k, "order");
  }
}

// Where instructions have lanes, all that one waits for is written in it; a message starts when
// both sides are ready.
function waitsInLanes(plan, id, work, add) {
  const own = (on) => {
    for (let k = plan.afterFrom[on]; k < plan.afterFrom[on + 1]; ++k) {
      const after = plan.afterIds[k];
      const send = OPS[plan.op[after]].work === "recv" ? plan.sendOf(after) : -1;
      add(send >= 0 ? send : after, send >= 0 ? "message" : on === id ? "after" : "other side");
    }
  };
  if (work === "recv") return add(plan.sendOf(id), "message");
  own(id);
  if (work === "send") {
    const recv = plan.recvOf(id);
    if (recv >= 0) own(recv);
    if (plan.exclusive) add(linkBefore(plan, id), "link");
  }
  if (work === "reduce") {
    for (let k = 0; k < plan.count; ++k) {
      if (plan.op[k] === OP.REDUCE && plan.stage[k] === plan.stage[id]) own(k);
    }
  }
}

// What let go of it last: of several at once the one before it on its lane, since then nothing else
// would have made it earlier. null where it waits for nothing.
function lastWait(plan, id) {
  let last = null;
  for (const wait of predecessors(plan, id)) {
    // A link is free when the message before it has left, which may be before it arrives.
    const until = wait.why === "link" ? Math.min(plan.end[wait.id], plan.start[id])
                                      : plan.end[wait.id];
    if (!(until <= plan.start[id])) continue;
    if (last === null || until > last.until) last = {...wait, until};
  }
  return last;
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
    const wait = plan.start[at] > 0 ? lastWait(plan, at) : null;
    at = wait === null ? -1 : wait.id;
  }
  return plan.path = path.reverse();
}

// What takes the value that an instruction makes elsewhere: the messages it feeds.
function messagesOf(plan, id) {
  const sends = [];
  const add = (send) => {
    if (send >= 0 && plan.runs(send)) sends.push(send);
  };
  if (OPS[plan.op[id]].work === "send") add(id);
  if (OPS[plan.op[id]].work === "recv") add(plan.sendOf(id));
  for (const wait of predecessors(plan, id)) {
    if (wait.why === "message") add(wait.id);
  }
  for (let k = id + 1; k < plan.first[plan.rank[id] + 1]; ++k) {
    // A message leaves soon behind what makes it.
    if (k > id + 400) break;
    if (OPS[plan.op[k]].work === "send" &&
        predecessors(plan, k).some((wait) => wait.id === id && wait.why !== "other side")) {
      add(k);
    }
  }
  return sends;
}

// What is waited for, in words that stand before the instruction.
const REASONS = {
  lane: "its lane, busy with", order: "its turn, behind", message: "the message",
  forward: "the forward", backward: "the backward", reload: "the copy back from the host",
  offload: "free memory, behind", made: "what it sends, made by", link: "its link, busy with",
  reduce: "the sum of gradients", weights: "the last weight gradient", after: "",
  "other side": "its receiver, busy with",
};

// How long the lane of an instruction was idle before it, and the chain of waits back to what was
// not waiting itself: {idle, steps: [{id, why, text}], root}.
function idleBecause(plan, id) {
  const before = laneBefore(plan, id);
  const free = before >= 0 ? plan.end[before] : 0;
  const idle = Math.max(0, plan.start[id] - free);
  const steps = [];
  if (plan.lane(id) === MESSAGE || idle === 0) return {idle, before, steps};
  const from = free;
  let at = id;
  for (let depth = 0; depth < 60; ++depth) {
    const wait = lastWait(plan, at);
    if (wait === null) break;
    steps.push(wait);
    at = wait.id;
    // What began before the gap did is its cause.
    if (plan.start[at] <= from) break;
  }
  return {idle, before, steps};
}
