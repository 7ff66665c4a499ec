// Marks over the rows: the box under the pointer, the selection with its last wait and messages,
// the critical path, what was found, and where a broken plan stands.

class Marks {
  constructor(page) {
    this.page = page;
    this.canvas = document.getElementById("overlay");
    this.context = this.canvas.getContext("2d");
  }

  resize(width, height, scale) {
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    this.scale = scale;
  }

  draw() {
    const {context, page, scale} = this;
    const {painter} = page;
    this.colors = painter.colors;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.save();
    context.beginPath();
    context.rect(painter.left, AXIS_HEIGHT, painter.plotWidth, painter.height);
    context.clip();
    page.plans.forEach((plan, p) => {
      if (page.layout.closedPlans.has(p)) return;
      if (plan.findings.length > 0) this.drawStandstill(plan, p);
      if (page.showPath && plan.findings.length === 0) this.drawPath(plan, p);
    });
    this.drawFound();
    if (page.selected) this.drawSelection(page.selected);
    if (page.hovered) this.outline(page.hovered.p, page.hovered.id, this.colors.text, 1.5);
    context.restore();
    this.drawTimeAtPointer();
  }

  // Place at which an instruction is drawn: {x, y, width, height}, or null where its row is not
  // there.
  place(p, id) {
    const {page} = this;
    const {view, painter} = page;
    const plan = page.plans[p], row = page.rowOf(p, id);
    if (!row || !plan.runs(id)) return null;
    const x = painter.left + view.x(plan.start[id]);
    return {x, y: AXIS_HEIGHT + row.y - view.scroll, height: row.height,
            width: Math.max(1, (plan.end[id] - plan.start[id]) / view.span * painter.plotWidth)};
  }

  outline(p, id, color, width) {
    const at = this.place(p, id);
    if (at === null) return;
    const {context} = this;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(at.x - 0.5, at.y - 0.5, Math.max(at.width, 3), at.height + 1);
  }

  // From where and when a message leaves to where and when it arrives.
  arrow(p, send, color) {
    const {page} = this;
    const plan = page.plans[p], {view, painter} = page;
    const from = page.computeRow(p, plan.rank[send]), to = page.computeRow(p, plan.peer[send]);
    if (!from || !to) return;
    const x1 = painter.left + view.x(plan.start[send]), x2 = painter.left + view.x(plan.end[send]);
    const y1 = AXIS_HEIGHT + from.y - view.scroll + from.height / 2;
    const y2 = AXIS_HEIGHT + to.y - view.scroll + to.height / 2;
    this.line(x1, y1, x2, y2, color);
  }

  line(x1, y1, x2, y2, color) {
    const {context} = this;
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = 1.6;
    const bend = Math.min(40, Math.abs(y2 - y1) / 3);
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    context.stroke();
    context.beginPath();
    context.arc(x1, y1, 2.5, 0, 2 * Math.PI);
    context.fill();
    context.beginPath();
    context.moveTo(x2 + 1, y2);
    context.lineTo(x2 - 6, y2 - 3.5);
    context.lineTo(x2 - 6, y2 + 3.5);
    context.fill();
  }

  drawSelection({p, id}) {
    const {page, colors, context} = this;
    const plan = page.plans[p];
    if (!plan.runs(id)) return;
    // A message has no box, but the instruction before it in the chain has.
    for (let on = page.selectedWait; on >= 0; on = waitsOf(plan)[on]) {
      if (plan.lane(on) !== MESSAGE) {
        this.outline(p, on, colors.wait, 2);
        break;
      }
      this.arrow(p, on, colors.wait);
    }
    for (const send of page.selectedMessages) this.arrow(p, send, colors.wait);
    const {idle, before} = page.selectedIdle;
    if (idle > 0) this.drawGap(p, id, before);
    this.outline(p, id, colors.accent, 2.5);
    context.lineWidth = 1;
  }

  // The time for which the rank was idle before the instruction.
  drawGap(p, id, before) {
    const {page, context, colors} = this;
    const plan = page.plans[p], at = this.place(p, id);
    if (at === null) return;
    const from = page.painter.left + page.view.x(before >= 0 ? plan.end[before] : 0);
    const y = at.y + at.height / 2;
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(from, y);
    context.lineTo(at.x, y);
    context.stroke();
    context.setLineDash([]);
  }

  // A line below the labels of the boxes of the path, and from rank to rank.
  drawPath(plan, p) {
    const {page, context, colors} = this;
    const {view, painter} = page;
    const line = new Path2D();
    let drawing = false;
    for (const id of criticalPath(plan)) {
      if (plan.end[id] < view.from || plan.start[id] > view.to) continue;
      const message = plan.lane(id) === MESSAGE;
      const row = message ? page.computeRow(p, plan.rank[id]) : page.rowOf(p, id);
      if (!row) continue;
      const height = (at) => AXIS_HEIGHT + at.y - view.scroll + at.height - Math.min(3.5, at.height / 2);
      const x1 = painter.left + view.x(plan.start[id]), x2 = painter.left + view.x(plan.end[id]);
      if (drawing) line.lineTo(x1, height(row)); else line.moveTo(x1, height(row));
      drawing = true;
      const to = message ? page.computeRow(p, plan.peer[id]) : row;
      if (to) line.lineTo(x2, height(to));
    }
    context.lineJoin = "round";
    for (const [color, width] of [[colors.page, 5.5], [colors.accent, 3]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.stroke(line);
    }
  }

  drawFound() {
    const {page, colors} = this;
    const {found, view} = page;
    let drawn = 0;
    for (const {p, id} of found) {
      const plan = page.plans[p];
      if (!(plan.end[id] >= view.from && plan.start[id] <= view.to)) continue;
      this.outline(p, id, colors.wait, 1.5);
      if (++drawn > 3000) break;
    }
  }

  // Each rank of a broken plan: hatched from where it goes no further, with the instruction it is at.
  drawStandstill(plan, p) {
    const {page, context, colors} = this;
    const {view, painter} = page;
    const cycle = new Set(plan.waits.map(([rank]) => rank));
    for (const {rank, index} of plan.findings) {
      if (rank >= 0 && index >= 0) this.outline(p, plan.first[rank] + index, colors.bad, 2);
    }
    for (const rank of page.layout.ranksOf(plan)) {
      const row = page.computeRow(p, rank), id = standsAt(plan, rank);
      if (!row || id < 0) continue;
      const y = AXIS_HEIGHT + row.y - view.scroll;
      const x = Math.max(painter.left, painter.left + view.x(stoodSince(plan, rank)));
      const color = cycle.has(rank) ? colors.bad : colors.soft;
      this.hatch(x, y, painter.left + painter.plotWidth - x, row.height, color);
      context.fillStyle = color;
      context.fillRect(x - 1, y - 1, cycle.has(rank) ? 4 : 2, row.height + 2);
      if (row.height < 11) continue;
      this.note(plan.text(id), x + 9, y, row.height, color);
    }
    for (const [rank, index, on] of plan.waits) {
      const from = page.computeRow(p, rank), to = page.computeRow(p, on);
      if (!from || !to) continue;
      const middle = (row) => AXIS_HEIGHT + row.y - view.scroll + row.height / 2;
      this.line(painter.left + view.x(stoodSince(plan, rank)), middle(from),
                painter.left + view.x(stoodSince(plan, on)), middle(to), colors.bad);
    }
  }

  hatch(x, y, width, height, color) {
    const {context} = this;
    context.save();
    context.beginPath();
    context.rect(x, y, Math.max(0, width), height);
    context.clip();
    context.strokeStyle = color;
    context.globalAlpha = 0.35;
    context.lineWidth = 1;
    context.beginPath();
    for (let at = x - height; at < x + width; at += 7) {
      context.moveTo(at, y + height);
      context.lineTo(at + height, y);
    }
    context.stroke();
    context.restore();
  }

  note(text, x, y, height, color) {
    const {context, colors} = this;
    context.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    context.textBaseline = "middle";
    context.textAlign = "left";
    const width = context.measureText(text).width;
    context.fillStyle = colors.page;
    context.fillRect(x - 3, y + height / 2 - 8, width + 6, 16);
    context.fillStyle = color;
    context.fillText(text, x, y + height / 2 + 0.5);
  }

  drawTimeAtPointer() {
    const {page, context, colors} = this;
    if (page.pointer === null) return;
    const {painter, view} = page;
    const x = page.pointer.x;
    if (x < painter.left || x > painter.left + painter.plotWidth) return;
    context.fillStyle = colors.soft;
    context.globalAlpha = 0.5;
    context.fillRect(Math.round(x), AXIS_HEIGHT, 1, painter.height);
    context.globalAlpha = 1;
    const text = timeText(view.time(x - painter.left), page.plans[0], 5);
    context.font = "11.5px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    const width = context.measureText(text).width;
    const at = Math.min(Math.max(painter.left, x - width / 2), painter.width - width - 4);
    context.fillStyle = colors.page;
    context.fillRect(at - 4, 2, width + 8, AXIS_HEIGHT - 6);
    context.fillStyle = colors.text;
    context.fillText(text, at, AXIS_HEIGHT / 2);
  }
}

// The first instruction of a rank that never runs; -1 where all do. Messages that a peer never
// takes count too.
function standsAt(plan, rank) {
  const wait = plan.waits.find(([waiting]) => waiting === rank);
  if (wait) return plan.first[rank] + wait[1];
  for (let id = plan.first[rank]; id < plan.first[rank + 1]; ++id) {
    if (!plan.runs(id)) return id;
  }
  return -1;
}

function stoodSince(plan, rank) {
  if (!plan.stood) plan.stood = new Map();
  if (!plan.stood.has(rank)) {
    let last = 0;
    for (let id = plan.first[rank]; id < plan.first[rank + 1]; ++id) {
      if (plan.lane(id) !== MESSAGE && plan.end[id] > last) last = plan.end[id];
    }
    plan.stood.set(rank, last);
  }
  return plan.stood.get(rank);
}
