// Rows, labels and the axis: what changes with the view. marks.js draws the marks over it.

const AXIS_HEIGHT = 24, DARK_INK = 0xff30241f, LIGHT_INK = 0xffffffff;

// Colour that can be read on a colour.
function inkOn(color) {
  const light = 2 * (color & 255) + 5 * (color >> 8 & 255) + (color >> 16 & 255);
  return light > 8 * 105 ? DARK_INK : LIGHT_INK;
}

class Painter {
  constructor(page) {
    this.page = page;
    this.canvas = document.getElementById("picture");
    this.context = this.canvas.getContext("2d", {alpha: false});
  }

  // Widths in pixels of CSS: labels at the left, bubbles at the right where there is room.
  resize(width, height, scale) {
    this.width = width;
    this.height = height;
    this.scale = scale;
    this.left = this.labelWidth();
    this.right = width > 700 ? 104 : 8;
    this.plotWidth = Math.max(40, width - this.left - this.right);
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    this.raster = new Raster(Math.round(this.plotWidth * scale),
                             Math.round((height - AXIS_HEIGHT) * scale), scale);
    this.glyphs = new Glyphs(11, scale);
    this.smallGlyphs = new Glyphs(9, scale);
    this.page.view.width = this.plotWidth;
  }

  labelWidth() {
    const {rows, memory} = this.page.layout;
    const digits = String(Math.max(...rows.map((row) => row.rank || 0))).length;
    const opened = memory || rows.some((row) => row.open);
    return Math.max(58 + 8 * digits, opened ? 96 : 0);
  }

  draw() {
    const {context, scale, page} = this;
    this.colors = themeColors();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.colors.page;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.raster.clear(cssToCanvas(this.colors.page));
    const visible = page.visibleRows();
    for (const row of visible) {
      if (row.kind === "lane") this.paintRow(row);
    }
    context.putImageData(this.raster.image, Math.round(this.left * scale),
                         Math.round(AXIS_HEIGHT * scale));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.textBaseline = "middle";
    this.drawAxis();
    context.save();
    context.beginPath();
    context.rect(0, AXIS_HEIGHT, this.width, this.height);
    context.clip();
    for (const row of visible) this.drawBeside(row);
    context.restore();
  }

  paintRow(row) {
    const {raster, scale, page} = this;
    const {view} = page;
    const boxes = page.layout.boxes(row);
    const top = (row.y - view.scroll) * scale, bottom = top + row.height * scale;
    raster.paintLine(boxes, view.from, view.to, cssToCanvas(this.colors.idle));
    raster.stamp(top, bottom);
    if (row.height >= 11 && row.lane !== "beside") this.writeLabels(row, boxes, (top + bottom) / 2);
  }

  writeLabels(row, boxes, middle) {
    const {raster, page} = this;
    const {view} = page;
    const perTick = raster.width / view.span;
    const {starts, ends, colors, begin, end, coarse} = boxes.window(view.from, view.to, raster.width);
    if (coarse) return;
    const least = this.smallGlyphs.widthOf("0") + 2 * this.scale;
    for (let k = begin; k < end; ++k) {
      if ((ends[k] - starts[k]) * perTick < least) continue;
      const left = Math.max(0, (starts[k] - view.from) * perTick);
      const right = Math.min(raster.width, (ends[k] - view.from) * perTick);
      const label = this.labelFor(row.plan, boxes.ids[k], boxes.parts[k], right - left);
      if (label) raster.write(label.glyphs, label.text, (left + right) / 2, middle, inkOn(colors[k]));
    }
  }

  // The most that has room, in small letters where there is no other way: {text, glyphs} or null.
  labelFor(plan, id, part, room) {
    const {glyphs, smallGlyphs, scale} = this;
    if (room > 150 * scale && plan.op[id] !== OP.FB) return {text: plan.text(id), glyphs};
    const full = boxLabel(plan, id, part, false), brief = boxLabel(plan, id, part, true);
    for (const [font, margin] of [[glyphs, 4], [smallGlyphs, 2]]) {
      if (font.widthOf(full) <= room - margin * scale) return {text: full, glyphs: font};
      if (font.widthOf(brief) <= room - margin * scale) return {text: brief, glyphs: font};
    }
    return null;
  }

  drawAxis() {
    const {context, colors, left, page} = this;
    const {view} = page;
    const marks = axisMarks(Math.max(0, view.from), view.to, view.span / this.plotWidth * 84, page.plans[0]);
    context.font = "11.5px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "left";
    const end = left + this.plotWidth;
    for (const mark of marks) {
      const x = left + view.x(mark.time);
      if (x < left - 1 || x > end) continue;
      context.fillStyle = colors.mark;
      context.fillRect(Math.round(x), AXIS_HEIGHT - 7, 1, 7);
      const width = context.measureText(mark.text).width;
      context.fillStyle = colors.soft;
      // The last stands before its mark where there is no room after it.
      context.fillText(mark.text, x + 4 + width > end ? x - 4 - width : x + 4, AXIS_HEIGHT / 2);
    }
    if (this.right > 20) {
      context.textAlign = "right";
      context.fillStyle = colors.soft;
      context.fillText("bubble", this.width - 8, AXIS_HEIGHT / 2);
    }
  }

  // Draws the texts left and right of a row.
  drawBeside(row) {
    const {context, colors, page} = this;
    const y = AXIS_HEIGHT + row.y - page.view.scroll, middle = y + row.height / 2;
    if (row.kind === "head") return this.drawHead(row, y);
    if (row.kind === "curve") return this.drawCurve(row, y);
    context.textAlign = "right";
    if (row.first) {
      if (this.labelled(row)) {
        context.font = "12px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
        context.fillStyle = colors.text;
        context.fillText(`rank ${row.rank}`, this.left - 22, middle);
        context.fillStyle = colors.soft;
        context.fillText(row.open ? "▾" : "▸", this.left - 8, middle);
      }
      if (this.right > 20 && row.plan.findings.length === 0) this.drawBubble(row, y);
    } else if (row.lane !== "beside") {
      context.font = "10.5px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
      context.fillStyle = colors.soft;
      const text = row.lane.startsWith("to ") ? "→ rank " + row.lane.slice(3) :
          row.lane.startsWith("from ") ? "← rank " + row.lane.slice(5) : row.lane;
      context.fillText(text, this.left - 8, middle + 0.5);
    }
  }

  // If rows are lower than a line of text some of them have a label.
  labelled(row) {
    const pitch = row.height + gapOf(row.height) + (this.page.layout.hasStrip(row.plan) ? 6 : 0);
    const every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => step * pitch >= 13) || 256;
    return row.rank % every === 0 || row.open;
  }

  drawHead(row, y) {
    const {context, colors, page} = this;
    const closed = page.layout.closedPlans.has(row.p);
    context.textAlign = "left";
    context.fillStyle = colors.text;
    context.font = "600 13px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    const name = (closed ? "▸ " : "▾ ") + row.plan.name;
    context.fillText(name, 6, y + row.height / 2);
    const at = 6 + context.measureText(name).width + 14;
    context.font = "12px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.fillStyle = colors.soft;
    context.fillText(planFigures(row.plan) + ratioText(page, row.plan), at, y + row.height / 2);
  }

  // How much of the step the compute lane of a rank is idle.
  drawBubble(row, y) {
    const {context, colors, page} = this;
    const bubble = rankBubble(row.plan, row.rank, page.layout);
    const most = this.right - 58, x = this.width - this.right + 6;
    const height = Math.max(2, Math.min(row.height, 14));
    const top = y + (row.height - height) / 2;
    context.fillStyle = colors.bubble;
    context.fillRect(x, top, Math.max(1, most * Math.min(1, bubble / page.largestBubble)), height);
    if (!this.labelled(row)) return;
    context.font = "11px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.fillStyle = colors.soft;
    context.textAlign = "right";
    context.fillText(percentText(bubble), this.width - 4, y + row.height / 2 + 0.5);
  }

  // Amount that the rank holds over time, and the most that it may.
  drawCurve(row, y) {
    const {context, colors, page, left, plotWidth} = this;
    const {view} = page;
    const plan = row.plan, {times, amounts} = memoryCurves(plan)[row.rank];
    const limit = plan.limits[row.rank];
    const top = Math.max(memoryPeak(plan), limit || 0) * 1.06 || 1;
    const height = row.height - 2, base = y + row.height - 1;
    const level = (amount) => base - amount / top * height;
    context.save();
    context.beginPath();
    context.rect(left, y, plotWidth, row.height);
    context.clip();
    context.fillStyle = colors.idle;
    context.fillRect(left, y, plotWidth, row.height);
    context.fillStyle = colors.held;
    // The most of each pixel: of many changes in one only the highest is seen.
    let k = Math.max(0, firstAfter(times, view.from) - 1);
    for (let x = 0; x < plotWidth; ++x) {
      const until = view.time(x + 1);
      if (until <= 0 || view.time(x) > plan.makespan) continue;
      let most = amounts[k];
      while (k + 1 < times.length && times[k + 1] <= until) most = Math.max(most, amounts[++k]);
      context.fillRect(left + x, level(most), 1, base - level(most));
    }
    if (limit !== null) {
      context.fillStyle = colors.limit;
      context.fillRect(left, level(limit), plotWidth, 1);
    }
    context.restore();
    context.textAlign = "right";
    context.font = "10.5px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.fillStyle = colors.soft;
    const peak = rankPeak(plan, row.rank);
    context.fillText(amountText(peak, plan), left - 8, y + 10);
    if (limit !== null) {
      context.fillStyle = colors.limit;
      context.fillText("of " + amountText(limit, plan), left - 8, y + 24);
    }
  }
}

function firstAfter(times, time) {
  let low = 0, high = times.length;
  while (low < high) {
    const middle = low + high >> 1;
    if (times[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

function themeColors() {
  const style = getComputedStyle(document.documentElement);
  const colors = {};
  for (const name of ["page", "panel", "text", "soft", "line", "idle", "mark", "accent", "wait",
                      "bad", "bubble", "held", "limit"]) {
    colors[name] = style.getPropertyValue("--" + name).trim();
  }
  return colors;
}
