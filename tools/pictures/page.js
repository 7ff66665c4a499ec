// The page: what is shown of which plans, and what follows from what its user does.

class Page {
  constructor(data) {
    this.plans = data.plans.map((head) => new Plan(head));
    this.stage = document.getElementById("stage");
    this.kinds = kindsIn(this.plans);
    this.mode = defaultMode(this.plans);
    const longest = Math.max(...this.plans.map((plan) => plan.makespan), 1);
    // A run that does not end has room for a note on where it stands.
    const broken = this.plans.some((plan) => plan.findings.length > 0);
    this.view = new View(broken ? longest * 1.25 : longest, () => this.ask());
    this.layout = new Layout(this.plans, data.view);
    this.layout.color(this.mode);
    this.largestBubble = Math.max(0.01, ...this.plans.flatMap((plan) =>
        this.layout.ranksOf(plan).map((rank) => rankBubble(plan, rank))));
    this.painter = new Painter(this);
    this.marks = new Marks(this);
    this.minimap = new Minimap(this);
    this.pointers = new Map();
    this.causes = data.causes;
    this.pointer = this.pressed = this.hovered = this.gap = this.selected = null;
    this.found = [];
    this.current = -1;
    this.showPath = false;
    this.frames = new FrameCounter();
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
    this.initial = data.view;
    fillFindings(this);
    fillLegend(this);
    listen(this);
    this.resized(true);
    const to = data.view.to === null ? this.view.longest : data.view.to;
    if (data.view.from > 0 || data.view.to !== null) this.view.show(data.view.from, to);
    else this.view.show(0, this.view.longest * 1.005);
    this.render();
    document.getElementById("figures").textContent = headline(this);
    fillTables(this);
  }

  // Drawn with the next frame, however often it is asked for.
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => {
      this.asked = false;
      if (this.view.step(now)) this.ask();
      this.render();
      this.frames.count(now);
    });
  }

  render() {
    this.painter.draw();
    this.marks.draw();
    this.minimap.draw();
    fillTooltip(this);
  }

  resized(fitRows) {
    // Rows fill the window, less the rest of the page.
    const rest = this.stage.getBoundingClientRect().top + window.scrollY + 120;
    const available = Math.max(240, window.innerHeight - rest);
    if (fitRows) this.layout.fitHeight(available - AXIS_HEIGHT - 6);
    const scale = this.printing ? 2 : window.devicePixelRatio || 1;
    const width = this.printing ? 1500 : this.stage.clientWidth;
    const most = this.printing ? this.layout.height + AXIS_HEIGHT + 6 : available;
    const height = Math.min(this.layout.height + AXIS_HEIGHT + 6, most);
    this.stage.style.height = height + 2 + "px";
    document.getElementById("card").style.maxHeight = Math.max(height + 2, 380) + "px";
    this.painter.resize(width, height, scale);
    this.marks.resize(width, height, scale);
    this.minimap.resize(scale);
    this.view.most = Math.max(0, this.layout.height - (height - AXIS_HEIGHT));
    this.view.moveRows(0);
  }

  // Rows have changed.
  relayout() {
    this.layout.make();
    this.resized();
    this.minimap.image = null;
  }

  visibleRows() {
    const {scroll} = this.view, bottom = scroll + this.painter.height;
    return this.layout.rows.filter((row) => row.y + row.height >= scroll && row.y <= bottom);
  }

  // Asked for each box that is marked: the rows of a rank are looked up once for each layout.
  rowOf(p, id) {
    const plan = this.plans[p];
    const row = this.computeRow(p, plan.rank[id]);
    if (!row || (plan.lane(id) === 0 && plan.end[id] > plan.start[id])) return row;
    return this.layout.rowOf(p, id);
  }
  computeRow(p, rank) {
    if (this.indexed !== this.layout.rows) {
      this.indexed = this.layout.rows;
      this.rowIndex = new Map(this.layout.rows.filter((row) => row.first).map((row) => [row.p * 20000 + row.rank, row]));
    }
    return this.rowIndex.get(p * 20000 + rank);
  }

  // For tests.
  figures(p, rank) {
    const plan = this.plans[p];
    return {busy: busyTimes(plan)[rank], held: rankPeak(plan, rank) - plan.fixed[rank]};
  }
  criticalPath(p) { return criticalPath(this.plans[p]); }
  gaps(p) { return gapsOf(this.plans[p]); }
  waits(p) { return waitsOf(this.plans[p]); }

  // The instruction at a point of the stage: {p, id}, or null.
  hit({x, y}) {
    const row = this.layout.rowAt(y - AXIS_HEIGHT + this.view.scroll);
    if (y < AXIS_HEIGHT || !row || row.kind !== "lane") return null;
    const time = this.view.time(x - this.painter.left);
    if (x < this.painter.left || x > this.painter.left + this.painter.plotWidth) return null;
    const boxes = this.layout.boxes(row);
    const k = boxes.at(time, 3 / this.painter.plotWidth * this.view.span);
    return k < 0 ? this.neverRunAt(row, time) : {p: row.p, id: boxes.ids[k]};
  }

  // The idle time of a compute lane at a point: {plan, rank, gap}, or null.
  idleAt({x, y}) {
    const row = this.layout.rowAt(y - AXIS_HEIGHT + this.view.scroll);
    const inside = x >= this.painter.left && x <= this.painter.left + this.painter.plotWidth;
    if (y < AXIS_HEIGHT || !inside || !row || row.kind !== "lane" || row.lane !== "compute") return null;
    const gap = gapAt(row.plan, row.rank, this.view.time(x - this.painter.left));
    return gap === null ? null : {plan: row.plan, rank: row.rank, gap};
  }

  // In a broken plan: where its rank stands.
  neverRunAt(row, time) {
    if (row.plan.findings.length === 0 || time < stoodSince(row.plan, row.rank)) return null;
    const id = standsAt(row.plan, row.rank);
    return id < 0 ? null : {p: row.p, id};
  }

  pointAt(point) {
    this.pointer = point;
    this.hovered = point === null ? null : this.hit(point);
    this.gap = point === null || this.hovered !== null ? null : this.idleAt(point);
    this.ask();
  }

  select(chosen) {
    this.selected = chosen;
    if (chosen) {
      const plan = this.plans[chosen.p];
      this.selectedWait = waitsOf(plan)[chosen.id];
      this.selectedMessages = messagesOf(plan, chosen.id);
      this.selectedIdle = idleBecause(plan, chosen.id);
    }
    fillCard(this);
    this.ask();
  }

  // Selects an instruction and brings it onto the screen.
  reveal(p, id) {
    const plan = this.plans[p];
    if (this.layout.closedPlans.delete(p)) this.relayout();
    this.select({p, id});
    const row = this.computeRow(p, plan.rank[id]);
    if (row) {
      const room = this.painter.height - AXIS_HEIGHT;
      const above = row.y < this.view.scroll, below = row.y + row.height > this.view.scroll + room;
      if (above || below) this.view.moveRows(row.y - room / 2 - this.view.scroll);
    }
    const start = plan.runs(id) ? plan.start[id] : stoodSince(plan, plan.rank[id]);
    const end = plan.runs(id) ? plan.end[id] : start;
    // So wide that it can be read, and no wider view than there is.
    const span = Math.min(this.view.span, Math.max((end - start) * 20, this.view.longest / 2000));
    const inside = start >= this.view.from && end <= this.view.to;
    if (!inside || span < this.view.span) this.view.glide((start + end - span) / 2, (start + end + span) / 2);
  }

  zoomTo(p, id) {
    const plan = this.plans[p], length = plan.end[id] - plan.start[id];
    if (plan.runs(id)) this.view.glide(plan.start[id] - 4 * length, plan.end[id] + 4 * length);
  }

  goToCause() {
    if (!this.selected) return;
    const {p, id} = this.selected;
    const on = waitsOf(this.plans[p])[id];
    if (on >= 0) this.reveal(p, on);
  }

  neighbour(step) {
    if (!this.selected) return;
    const {p, id} = this.selected, plan = this.plans[p], rank = plan.rank[id];
    for (let k = id + step; k >= plan.first[rank] && k < plan.first[rank + 1]; k += step) {
      if (plan.lane(k) === plan.lane(id)) return this.reveal(p, k);
    }
  }

  // A press on the name of a rank or of a plan.
  openAt({y}) {
    const row = this.layout.rowAt(y - AXIS_HEIGHT + this.view.scroll);
    if (!row) return;
    const toggle = (set, key) => (set.has(key) ? set.delete(key) : set.add(key));
    if (row.kind === "head") toggle(this.layout.closedPlans, row.p);
    else toggle(this.layout.opened, row.p + " " + row.rank);
    this.relayout();
  }

  toggleLanes() {
    const {opened} = this.layout;
    const any = opened.size > 0;
    opened.clear();
    if (!any) this.plans.forEach((plan, p) => this.layout.ranksOf(plan).forEach((rank) => opened.add(p + " " + rank)));
    press("lanes", !any);
    this.relayout();
  }
  toggleMemory() {
    this.layout.memory = !this.layout.memory;
    press("memory", this.layout.memory);
    this.relayout();
  }
  togglePath() {
    this.showPath = !this.showPath;
    press("path", this.showPath);
    this.ask();
  }
  toggleKeys() {
    const keys = document.getElementById("keys");
    keys.hidden = !keys.hidden;
    document.getElementById("speed").textContent = this.frames.text();
  }

  growRows(step) {
    const height = this.layout.rowHeight;
    this.layout.rowHeight = Math.min(MOST_ROW, Math.max(LEAST_ROW, Math.round(height * (step > 0 ? 1.25 : 0.8)) + (step > 0 ? 1 : 0)));
    const middle = this.painter.height / 2;
    const share = (this.view.scroll + middle) / this.layout.height;
    this.relayout();
    this.view.moveRows(share * this.layout.height - middle - this.view.scroll);
  }

  setMode(mode) {
    this.mode = mode;
    this.layout.color(mode);
    this.minimap.image = null;
    fillLegend(this);
    this.ask();
  }
  setTheme(dark) {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.getElementById("theme").textContent = dark ? "Light" : "Dark";
    this.minimap.image = null;
    this.ask();
  }

  // On paper: light, the whole height, and as wide as the paper.
  print(begin) {
    if (begin) this.before = this.dark;
    this.printing = begin;
    this.setTheme(begin ? false : this.before);
    this.painter.colors = themeColors();
    this.resized();
    this.render();
  }

  search(text) {
    const query = parseQuery(text);
    this.found = query ? findInstructions(this.plans, query) : [];
    this.current = -1;
    this.sayFound(text, query);
    this.ask();
  }
  step(by) {
    const {length} = this.found;
    if (length === 0) return;
    this.current = this.current < 0 && by < 0 ? length - 1 : (this.current + by + length) % length;
    const {p, id} = this.found[this.current];
    this.sayFound("found", {});
    this.reveal(p, id);
  }
  sayFound(text, query) {
    const {length} = this.found;
    const place = this.current >= 0 ? `${this.current + 1} of ` : "";
    document.getElementById("found").textContent = text.trim() === "" ? "" : query === null ? "such as s3 m7" :
        length === 0 ? "none" : `${place}${length}${length >= MOST_FOUND ? "+" : ""}`;
  }
}

function press(id, on) { document.getElementById(id).setAttribute("aria-pressed", on); }

// How many frames a second there are while something moves.
class FrameCounter {
  constructor() { this.reset(); }
  reset() {
    this.number = 0;
    this.time = 0;
    this.worst = 0;
    this.last = null;
  }
  count(now) {
    const since = this.last === null ? Infinity : now - this.last;
    this.last = now;
    // Longer than that nothing has moved.
    if (since > 400) return;
    ++this.number;
    this.time += since;
    this.worst = Math.max(this.worst, since);
  }
  rate() { return this.time > 0 ? 1000 * this.number / this.time : 0; }
  text() {
    const first = `first picture after ${Math.round(this.first)} ms`;
    return this.number > 0 ? `${first}; ${this.rate().toFixed(0)} frames a second while moving` : first;
  }
}

function start() {
  const node = document.getElementById("data");
  const data = JSON.parse(node.textContent);
  node.textContent = "";
  defineOperations(data.ops);
  KINDS = data.kinds;
  const page = new Page(data);
  page.frames.first = performance.now();
  // For tests, and for who wants to ask more than the page does.
  window.contraflow = page;
}
