// Part of the plans that is on the screen: an interval of time, and how far the rows are moved up.

class View {
  constructor(longest, changed) {
    this.longest = longest;
    this.changed = changed;
    this.from = 0;
    this.to = longest;
    this.scroll = 0;
    this.most = 0;  // of scroll
    this.width = 1;
  }

  get span() { return this.to - this.from; }
  x(time) { return (time - this.from) / this.span * this.width; }
  time(x) { return this.from + x / this.width * this.span; }

  // A little of what is before and after may be seen, so that edges can be.
  show(from, to) {
    const least = Math.max(this.longest / 1e7, 10), margin = this.longest * 0.02;
    let span = Math.min(Math.max(to - from, least), this.longest + 2 * margin);
    if (!(span > 0)) span = 1;
    const middle = (from + to) / 2;
    const begin = Math.min(Math.max(middle - span / 2, -margin), this.longest + margin - span);
    this.from = begin;
    this.to = begin + span;
    this.target = null;
    this.changed();
  }

  fit() { this.glide(0, this.longest * 1.005); }

  zoomAt(x, factor) {
    const at = this.time(x), span = this.span * factor;
    const from = at - x / this.width * span;
    this.show(from, from + span);
  }

  move(pixels) {
    const by = pixels / this.width * this.span;
    this.show(this.from + by, this.to + by);
  }

  moveRows(pixels) {
    this.scroll = Math.min(Math.max(0, this.scroll + pixels), this.most);
    this.changed();
  }

  // Keys and buttons move the view in steps; eyes follow better where it glides.
  glide(from, to) {
    this.target = {from, to, began: performance.now(), startFrom: this.from, startTo: this.to};
    this.changed();
  }
  glideZoom(factor) {
    const {from, to} = this.target || this;
    const middle = (from + to) / 2, span = (to - from) * factor;
    this.glide(middle - span / 2, middle + span / 2);
  }
  glideMove(share) {
    const {from, to} = this.target || this;
    const by = (to - from) * share;
    this.glide(from + by, to + by);
  }
  // True as long as it goes on.
  step(now) {
    const {target} = this;
    if (!target) return false;
    const part = Math.min(1, Math.max(0, (now - target.began) / 160));
    const eased = part * (2 - part);
    const from = target.startFrom + (target.from - target.startFrom) * eased;
    const to = target.startTo + (target.to - target.startTo) * eased;
    this.show(from, to);
    if (part < 1) this.target = target;
    return part < 1;
  }
}
