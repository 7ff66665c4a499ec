// A plan as columns of numbers, one entry for each instruction of every rank; `id` is its place in
// them. Plans have millions of instructions: no objects.

const LANES = ["compute", "all-to-all", "reduce", "offload", "reload", "message"];
const LANE_OF_WORK = {compute: 0, component: 0, step: 0, alltoall: 1, reduce: 2, offload: 3,
                      reload: 4, send: 5, recv: 5};
const MESSAGE = 5;

// Operations by name, and by number what is to be known of each.
const OP = {};
let OPS = [];

function defineOperations(ops) {
  OPS = ops.map((op) => ({...op, lane: LANE_OF_WORK[op.work]}));
  ops.forEach((op, number) => { OP[op.name] = number; });
}

const hasForward = (op) => op === OP.F || op === OP.FB;
const hasBackward = (op) => op === OP.B || op === OP.BW || op === OP.FB;

class Plan {
  constructor(head) {
    Object.assign(this, head);
    this.first = new Uint32Array(head.ranks + 1);
    head.lengths.forEach((length, r) => { this.first[r + 1] = this.first[r] + length; });
    this.count = this.first[head.ranks];
    this.readInstructions();
    this.readAfter();
    this.readTimes();
    this.makespan = 0;
    for (let id = 0; id < this.count; ++id) {
      if (this.end[id] > this.makespan) this.makespan = this.end[id];
    }
    this.routeOf = new Int16Array(head.microbatches);
    head.routes.forEach((route, number) => {
      for (const [from, to] of route.microbatches) this.routeOf.fill(number, from, to + 1);
    });
    this.visitOf = visitsOf(head);
    // Indices that have been asked for stay: they are made when first needed.
    this.instructions = this.after = this.times = null;
  }

  readInstructions() {
    const n = this.count;
    this.op = new Uint8Array(n);
    this.rank = new Uint16Array(n);
    this.stage = new Int16Array(n);
    this.microbatch = new Int32Array(n).fill(-1);
    this.layer = new Int8Array(n).fill(-1);
    this.backStage = new Int16Array(n);
    this.backMicrobatch = new Int32Array(n).fill(-1);
    this.peer = new Int16Array(n).fill(-1);
    for (let r = 0; r < this.ranks; ++r) this.rank.fill(r, this.first[r], this.first[r + 1]);
    let id = 0, last = null, rank = -1;
    readTuples(this.instructions, (values, from, length) => {
      if (this.rank[id] !== rank) {
        rank = this.rank[id];
        last = new Int32Array(4 * OPS.length);
      }
      const op = values[from], before = 4 * op;
      this.op[id] = op;
      this.stage[id] = last[before] += values[from + 1];
      if (length > 2) this.microbatch[id] = last[before + 1] += values[from + 2];
      if (op === OP.FB) {
        this.backStage[id] = last[before + 2] += values[from + 3];
        this.backMicrobatch[id] = last[before + 3] += values[from + 4];
      } else {
        this.backStage[id] = this.stage[id];
        this.backMicrobatch[id] = this.microbatch[id];
        if (length > 3 && OPS[op].lane === MESSAGE) this.peer[id] = rank + values[from + 3];
        else if (length > 3) this.layer[id] = values[from + 3];
      }
      ++id;
    });
  }

  // afterIds[afterFrom[id] .. afterFrom[id + 1]] are the instructions that it waits for.
  readAfter() {
    this.lanesKnown = this.after !== undefined;
    if (!this.lanesKnown) return;
    this.afterFrom = new Uint32Array(this.count + 1);
    const ids = [];
    let id = 0;
    readTuples(this.after, (values, from, length) => {
      for (let k = 0; k < length; ++k) ids.push(id - values[from + k]);
      this.afterFrom[++id] = ids.length;
    });
    this.afterIds = Uint32Array.from(ids);
  }

  // start is NaN for what never runs.
  readTimes() {
    this.start = new Float64Array(this.count);
    this.end = new Float64Array(this.count);
    const free = new Float64Array(LANES.length);
    const atSend = [];
    let id = 0, rank = -1;
    readTuples(this.times, (values, from, length) => {
      if (this.rank[id] !== rank) {
        rank = this.rank[id];
        free.fill(0);
      }
      if (length === 2) {
        const message = OPS[this.op[id]].lane === MESSAGE;
        const lane = message ? 0 : OPS[this.op[id]].lane;
        const begins = this.lanesKnown ? this.afterFrom[id] : 0;
        const ends = this.lanesKnown ? this.afterFrom[id + 1] : 0;
        let ready = message && ends > begins ? 0 : free[lane];
        for (let k = begins; k < ends; ++k) {
          const after = this.afterIds[k];
          if (OPS[this.op[after]].lane !== MESSAGE) ready = Math.max(ready, this.end[after]);
        }
        this.start[id] = ready + values[from];
        this.end[id] = this.start[id] + values[from + 1];
        if (!message) free[lane] = this.end[id];
      } else {
        this.start[id] = this.end[id] = NaN;
        if (length === 0) atSend.push(id);
      }
      ++id;
    });
    for (const recv of atSend) {
      const send = this.sendOf(recv);
      this.start[recv] = this.start[send];
      this.end[recv] = this.end[send];
    }
  }

  cell(stage, microbatch) { return stage * this.microbatches + microbatch; }

  // The messages with the output and with the gradient of each cell: -1 where there is none.
  get cells() {
    if (this.cellTables) return this.cellTables;
    const table = () => new Int32Array(this.stages * this.microbatches).fill(-1);
    const cells = {sendF: table(), sendB: table()};
    const named = {[OP.SEND_F]: cells.sendF, [OP.SEND_B]: cells.sendB};
    for (let id = 0; id < this.count; ++id) {
      const table = named[this.op[id]];
      if (table) table[this.cell(this.stage[id], this.microbatch[id])] = id;
    }
    return this.cellTables = cells;
  }

  // The SEND of a RECV; -1 where it is missing.
  sendOf(recv) {
    const forward = this.op[recv] === OP.RECV_F;
    const stage = this.stage[recv] + (forward ? -1 : 1);
    if (stage < 0 || stage >= this.stages) return -1;
    const table = forward ? this.cells.sendF : this.cells.sendB;
    return table[this.cell(stage, this.microbatch[recv])];
  }

  lane(id) { return OPS[this.op[id]].lane; }
  index(id) { return id - this.first[this.rank[id]]; }
  runs(id) { return this.start[id] >= 0; }

  // Which colour: the route of a micro-batch, else which stage of its rank.
  side(stage, microbatch) {
    if (this.routes.length > 1) return microbatch < 0 ? 0 : this.routeOf[microbatch];
    return this.visitOf[stage];
  }

  // Text like in plan files, without the keys.
  text(id) {
    const op = this.op[id];
    let text = `${OPS[op].name} s${this.stage[id]}`;
    if (this.layer[id] >= 0) text += ` l${this.layer[id]}`;
    if (this.microbatch[id] >= 0) text += ` m${this.microbatch[id]}`;
    if (op === OP.FB) text += ` + s${this.backStage[id]} m${this.backMicrobatch[id]}`;
    if (this.peer[id] >= 0) {
      text += (OPS[op].work === "send" ? " to=" : " from=") + this.peer[id];
    }
    return text;
  }
}

// For each stage which of the stages of its rank it is.
function visitsOf(head) {
  const seen = new Map();
  return head.routes[0].ranks.map((rank) => {
    const visit = seen.get(rank) || 0;
    seen.set(rank, visit + 1);
    return visit;
  });
}
