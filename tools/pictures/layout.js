// Which rows there are and where: for each plan a head, for each of its ranks the compute lane with
// a strip below for what runs concurrently with it or, opened, a row for each lane.

const HEAD_HEIGHT = 26, STRIP_HEIGHT = 5, LANE_HEIGHT = 12, CURVE_HEIGHT = 34, PLAN_GAP = 10, TOP = 6;
const LEAST_ROW = 2, MOST_ROW = 40, USUAL_ROW = 24;

class Layout {
  constructor(plans, view) {
    this.plans = plans;
    this.onlyRank = view.rank;
    this.opened = new Set();     // "plan rank"
    this.closedPlans = new Set();
    this.rowHeight = USUAL_ROW;
    this.memory = false;
    this.boxesOf = new Map();
    // A handful of plans is what eyes can compare; the others open with a click.
    plans.forEach((plan, p) => { if (p >= 4) this.closedPlans.add(p); });
    this.make();
  }

  // Rows get what height there is, as far as they stay rows.
  fitHeight(available) {
    const shown = this.plans.filter((plan, p) => !this.closedPlans.has(p));
    const ranks = shown.reduce((sum, plan) => sum + this.ranksOf(plan).length, 0);
    const fixed = this.heads() ? this.plans.length * (HEAD_HEIGHT + PLAN_GAP) : 0;
    const strips = shown.some((plan) => this.hasStrip(plan)) ? STRIP_HEIGHT + 1 : 0;
    const room = (available - fixed) / Math.max(1, ranks);
    this.rowHeight = Math.max(LEAST_ROW, Math.min(USUAL_ROW, Math.floor(room - strips - gapOf(room))));
    this.make();
  }

  heads() { return this.plans.length > 1; }
  ranksOf(plan) {
    const all = this.onlyRank >= 0 && this.onlyRank < plan.ranks;
    return all ? [this.onlyRank] : Array.from({length: plan.ranks}, (unused, r) => r);
  }
  isOpen(p, rank) { return this.opened.has(p + " " + rank); }
  hasStrip(plan) {
    if (plan.beside === undefined) {
      plan.beside = false;
      for (let id = 0; id < plan.count && !plan.beside; ++id) {
        const lane = plan.lane(id);
        plan.beside = lane > 0 && lane < MESSAGE && plan.end[id] > plan.start[id];
      }
    }
    return plan.beside;
  }

  make() {
    this.rows = [];
    let y = TOP;
    this.plans.forEach((plan, p) => {
      if (this.heads()) {
        this.rows.push({kind: "head", p, plan, y, height: HEAD_HEIGHT});
        y += HEAD_HEIGHT;
      }
      if (!this.closedPlans.has(p)) {
        for (const rank of this.ranksOf(plan)) y = this.addRank(p, plan, rank, y);
      }
      if (this.heads()) y += PLAN_GAP;
    });
    this.height = y;
  }

  addRank(p, plan, rank, top) {
    const gap = gapOf(this.rowHeight);
    const open = this.isOpen(p, rank);
    let y = top;
    const add = (row) => {
      this.rows.push({p, plan, rank, y, ...row});
      y += row.height;
    };
    add({kind: "lane", lane: "compute", first: true, open, height: this.rowHeight});
    if (open) {
      for (const lane of this.lanesOf(plan, rank)) {
        ++y;
        add({kind: "lane", lane, open, height: LANE_HEIGHT});
      }
    } else if (this.hasStrip(plan)) {
      ++y;
      add({kind: "lane", lane: "beside", height: this.rowHeight >= 10 ? STRIP_HEIGHT : 2});
    }
    if (open || this.memory) {
      ++y;
      add({kind: "curve", open, height: CURVE_HEIGHT});
    }
    return y + gap;
  }

  // Lanes of an opened rank, below its compute lane: those with work, then one for each link.
  lanesOf(plan, rank) {
    const seen = new Set();
    for (let id = plan.first[rank]; id < plan.first[rank + 1]; ++id) {
      const lane = plan.lane(id);
      if (lane === 0 || !plan.runs(id)) continue;
      if (lane === MESSAGE) seen.add((OPS[plan.op[id]].work === "send" ? "to " : "from ") + plan.peer[id]);
      else if (plan.end[id] > plan.start[id]) seen.add(LANES[lane]);
    }
    const place = (lane) => (LANES.includes(lane) ? LANES.indexOf(lane) :
        (lane.startsWith("to") ? 10 : 10.5) + 1000 * Number(lane.split(" ")[1]));
    return [...seen].sort((a, b) => place(a) - place(b));
  }

  boxes(row) {
    const key = `${row.p} ${row.rank} ${row.lane}`;
    let made = this.boxesOf.get(key);
    if (!made) {
      made = makeBoxes(row.plan, row.rank, laneFilter(row.plan, row.lane));
      made.paint(this.colorOf[row.p]);
      this.boxesOf.set(key, made);
    }
    return made;
  }

  color(mode) {
    this.colorOf = this.plans.map((plan) => colorsOf(plan, mode));
    this.boxesOf.forEach((boxes, key) => boxes.paint(this.colorOf[Number(key.split(" ")[0])]));
  }

  rowAt(y) {
    return this.rows.find((row) => y >= row.y && y < row.y + row.height + 1);
  }
  // The row in which an instruction is drawn, as things are opened.
  rowOf(p, id) {
    const plan = this.plans[p], rank = plan.rank[id];
    const rows = this.rows.filter((row) => row.p === p && row.rank === rank && row.kind === "lane");
    return rows.find((row) => laneFilter(plan, row.lane)(id)) || rows[0];
  }
}

function gapOf(height) { return height >= 12 ? 4 : height >= 6 ? 2 : height >= 4 ? 1 : 0; }

// Which instructions lie in a row. Instructions without duration have no box, but a message shows
// when it leaves.
function laneFilter(plan, lane) {
  const takesTime = (id) => plan.end[id] > plan.start[id];
  if (lane === "compute") return (id) => plan.lane(id) === 0 && takesTime(id);
  if (lane === "beside") {
    return (id) => plan.lane(id) > 0 && plan.lane(id) < MESSAGE && takesTime(id);
  }
  const number = LANES.indexOf(lane);
  if (number >= 0) return (id) => plan.lane(id) === number && takesTime(id);
  const [way, peer] = lane.split(" ");
  const work = way === "to" ? "send" : "recv";
  return (id) => OPS[plan.op[id]].work === work && plan.peer[id] === Number(peer);
}
