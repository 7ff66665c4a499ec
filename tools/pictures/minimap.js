// The whole step in a few lines of pixels, with a frame around what is on the screen.

class Minimap {
  constructor(page) {
    this.page = page;
    this.canvas = document.getElementById("minimap");
    this.context = this.canvas.getContext("2d");
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.drag(event));
    this.canvas.addEventListener("pointerup", () => { this.grabbed = null; });
    this.canvas.addEventListener("pointercancel", () => { this.grabbed = null; });
  }

  resize(scale) {
    this.scale = scale;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.image = null;
  }

  // Painted again when rows or colours have changed, not when the view has.
  paint() {
    const {page} = this;
    const {longest} = page.view;
    const raster = new Raster(this.canvas.width, this.canvas.height, 1);
    const colors = page.painter.colors;
    raster.clear(cssToCanvas(colors.panel));
    const rows = page.layout.rows.filter((row) => row.kind === "lane" && row.first);
    const margin = 3 * this.scale, room = this.canvas.height - 2 * margin;
    const most = Math.min(rows.length, Math.floor(room));
    for (let k = 0; k < most; ++k) {
      const row = rows[Math.floor(k * rows.length / most)];
      raster.paintLine(page.layout.boxes(row), 0, longest * 1.005, cssToCanvas(colors.panel));
      const high = Math.min(room / most, 12 * this.scale);
      raster.stamp(margin + k * high, margin + (k + 1) * high - (high >= 4 ? 1 : 0));
    }
    this.image = raster.image;
  }

  draw() {
    const {page, context, scale} = this;
    if (this.image === null) this.paint();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.putImageData(this.image, 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const {colors} = page.painter;
    const {from, to} = this.frame();
    context.fillStyle = colors.page;
    context.globalAlpha = 0.6;
    context.fillRect(0, 0, from, this.height);
    context.fillRect(to, 0, this.width - to, this.height);
    context.globalAlpha = 1;
    context.strokeStyle = colors.text;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.75, 0.75, Math.max(2, to - from - 1.5), this.height - 1.5);
  }

  frame() {
    const {view} = this.page;
    const x = (time) => Math.min(Math.max(0, time / (view.longest * 1.005)), 1) * this.width;
    return {from: x(view.from), to: x(view.to)};
  }

  timeAt(event) { return event.offsetX / this.width * this.page.view.longest * 1.005; }

  // A press outside the frame brings it there.
  grab(event) {
    const {view} = this.page;
    const time = this.timeAt(event);
    this.canvas.setPointerCapture(event.pointerId);
    if (time < view.from || time > view.to) view.show(time - view.span / 2, time + view.span / 2);
    this.grabbed = time - view.from;
  }

  drag(event) {
    if (this.grabbed === null || this.grabbed === undefined) return;
    const from = this.timeAt(event) - this.grabbed;
    this.page.view.show(from, from + this.page.view.span);
  }
}
