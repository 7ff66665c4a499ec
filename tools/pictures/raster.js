// Rows are painted into memory: one line of pixels each, which is then repeated over its height. A
// canvas call for each of tens of thousands of boxes would be slower by far.

class Raster {
  constructor(width, height, scale) {
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    this.scale = scale;  // pixels of the screen in one of CSS
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.line = new Uint32Array(this.width);
    this.sums = new Float32Array(4 * this.width);
  }

  clear(color) { this.pixels.fill(color); }

  // The boxes of a row between two times, over `idle`.
  paintLine(boxes, from, to, idle) {
    const {line, sums, width} = this;
    line.fill(idle);
    if (boxes.length === 0) return;
    sums.fill(0);
    const perTick = width / (to - from);
    const {starts, ends, colors, begin, end, coarse} = boxes.window(from, to, width);
    const gap = this.scale, wide = 5 * this.scale;
    for (let k = begin; k < end; ++k) {
      const color = colors[k];
      let left = (starts[k] - from) * perTick, right = (ends[k] - from) * perTick;
      // Neighbours are told apart by a gap where there is room; halves of one F&B belong together.
      const half = boxes.parts[k] === 0 && k + 1 < end && boxes.ids[k + 1] === boxes.ids[k];
      if (!coarse && right - left > wide && !half) right -= gap;
      if (!coarse && right - left < gap && ends[k] === starts[k]) right = left + gap;
      if (left < 0) left = 0;
      if (right > width) right = width;
      if (right <= left) continue;
      const first = Math.floor(left), last = Math.min(Math.floor(right), width - 1);
      if (coarse || first === last) {
        this.addShares(color, left, right, first, last);
        continue;
      }
      this.addShare(color, first, first + 1 - left);
      this.addShare(color, last, right - last);
      if (last > first + 1) line.fill(color, first + 1, last);
    }
    blendShares(line, sums, idle);
  }

  addShares(color, left, right, first, last) {
    for (let x = first; x <= last; ++x) {
      this.addShare(color, x, Math.min(right, x + 1) - Math.max(left, x));
    }
  }

  addShare(color, x, share) {
    const weight = share * (color >>> 24) / 255, at = 4 * x, {sums} = this;
    sums[at] += weight * (color & 255);
    sums[at + 1] += weight * (color >> 8 & 255);
    sums[at + 2] += weight * (color >> 16 & 255);
    sums[at + 3] += weight;
  }

  // Repeats the line over the rows of pixels from top to bottom.
  stamp(top, bottom) {
    const begin = Math.max(0, Math.round(top)), end = Math.min(this.height, Math.round(bottom));
    for (let y = begin; y < end; ++y) this.pixels.set(this.line, y * this.width);
  }

  // Writes text centred at a point, if all of it lies inside.
  write(glyphs, text, centre, middle, color) {
    let x = Math.round(centre - glyphs.widthOf(text) / 2);
    const y = Math.round(middle - glyphs.height / 2);
    if (y < 0 || y + glyphs.height > this.height) return;
    for (const char of text) {
      const glyph = glyphs.of(char);
      if (x >= 0 && x + glyph.width <= this.width) this.blit(glyph, x, y, color);
      x += glyph.advance;
    }
  }

  blit(glyph, left, top, color) {
    const red = color & 255, green = color >> 8 & 255, blue = color >> 16 & 255;
    for (let y = 0, k = 0; y < glyph.height; ++y) {
      let at = (top + y) * this.width + left;
      for (let x = 0; x < glyph.width; ++x, ++k, ++at) {
        const ink = glyph.alpha[k];
        if (ink === 0) continue;
        const under = this.pixels[at], rest = 255 - ink;
        this.pixels[at] = (255 << 24 | mix(under >> 16 & 255, blue, ink, rest) << 16 |
            mix(under >> 8 & 255, green, ink, rest) << 8 | mix(under & 255, red, ink, rest)) >>> 0;
      }
    }
  }
}

function mix(under, over, ink, rest) { return (under * rest + over * ink) / 255; }

function blendShares(line, sums, idle) {
  const red = idle & 255, green = idle >> 8 & 255, blue = idle >> 16 & 255;
  for (let x = 0, at = 0; x < line.length; ++x, at += 4) {
    let share = sums[at + 3];
    if (share === 0) continue;
    // Boxes of a lane that holds several kinds of work may lie over each other.
    const over = share > 1 ? 1 / share : 1;
    share = Math.min(1, share);
    const rest = 1 - share;
    line[x] = (255 << 24 | (blue * rest + sums[at + 2] * over) << 16 |
        (green * rest + sums[at + 1] * over) << 8 | (red * rest + sums[at] * over)) >>> 0;
  }
}

// The shapes of letters, each drawn once.
class Glyphs {
  constructor(size, scale) {
    this.font = `500 ${size * scale}px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif`;
    this.height = Math.ceil(size * scale * 1.2);
    this.known = new Map();
    this.canvas = document.createElement("canvas");
    this.canvas.width = this.canvas.height = this.height * 2;
    this.context = this.canvas.getContext("2d", {willReadFrequently: true});
  }

  of(char) {
    const known = this.known.get(char);
    if (known) return known;
    const {context, height} = this;
    context.font = this.font;
    const advance = Math.round(context.measureText(char).width);
    const width = advance + 2;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.textBaseline = "middle";
    context.fillText(char, 0, height / 2 + height * 0.04);
    const {data} = context.getImageData(0, 0, width, height);
    const alpha = new Uint8Array(width * height);
    for (let k = 0; k < alpha.length; ++k) alpha[k] = data[4 * k + 3];
    const glyph = {advance, width, height, alpha};
    this.known.set(char, glyph);
    return glyph;
  }

  widthOf(text) {
    let width = 0;
    for (const char of text) width += this.of(char).advance;
    return width;
  }
}
