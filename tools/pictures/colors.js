// Colours of boxes, as 0xAABBGGRR: what a canvas keeps in memory.

const COLOR_MODES = {kind: "kind of work", chunk: "stage of its rank", microbatch: "micro-batch",
                     stage: "stage"};
let KINDS = [];

function canvasColor(rgb) {
  return (255 << 24 | (rgb & 255) << 16 | (rgb >> 8 & 255) << 8 | rgb >> 16) >>> 0;
}

function cssToCanvas(text) { return canvasColor(parseInt(text.trim().slice(1), 16)); }

function canvasToCss(color) {
  return `rgb(${color & 255} ${color >> 8 & 255} ${color >> 16 & 255})`;
}

// The kind of a part of a box: an F&B is a forward and a full backward.
function kindOf(plan, id, part) {
  const op = plan.op[id];
  if (op === OP.FB) return part === 0 ? OP.F : OP.BW;
  return OPS[op].kind;
}

function stageOf(plan, id, part) { return part === 1 ? plan.backStage[id] : plan.stage[id]; }
function microbatchOf(plan, id, part) {
  return part === 1 ? plan.backMicrobatch[id] : plan.microbatch[id];
}

// Hues as far apart as they come for numbers that follow each other.
function hueColor(number, lightness) {
  const hue = number * 137.508 % 360, chroma = 0.62 * (1 - Math.abs(2 * lightness - 1));
  const channel = (offset) => {
    const k = (offset + hue / 30) % 12;
    const value = lightness - chroma / 2 * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value);
  };
  return canvasColor(channel(0) << 16 | channel(8) << 8 | channel(4));
}

const LIGHTNESS = {F: 0.82, ATTN_F: 0.82, B: 0.7, BW: 0.7, ATTN_B: 0.7, W: 0.58, ATTN_W: 0.58};

// Gives each box its colour: (id, part) -> colour.
function colorsOf(plan, mode) {
  const rows = [];
  for (const kind of KINDS) {
    rows[kind.op] = {two: kind.two.map(canvasColor), more: kind.more.map(canvasColor),
                     lightness: LIGHTNESS[OPS[kind.op].name] || 0.75};
  }
  const [other] = rows[OP.STEP].two;
  return (id, part) => {
    const op = plan.op[id];
    if (OPS[op].lane === MESSAGE) return messageColor(op);
    const row = rows[kindOf(plan, id, part)];
    const stage = stageOf(plan, id, part), microbatch = microbatchOf(plan, id, part);
    if (mode === "microbatch") return microbatch < 0 ? other : hueColor(microbatch, row.lightness);
    if (mode === "stage") return hueColor(stage, row.lightness);
    const side = plan.side(stage, microbatch);
    return mode === "chunk" ? row.more[side % row.more.length] : row.two[side % 2];
  };
}

function messageColor(op) {
  return canvasColor(op === OP.SEND_F || op === OP.RECV_F ? 0xd9a02e : 0x4f94cf);
}

// If a rank has more than two stages their colour tells which.
function defaultMode(plans) {
  return plans.some((plan) => plan.sides > 2) ? "chunk" : "kind";
}

// "12", of components "AF12" or brief "AF"; of what has no micro-batch its stage.
function boxLabel(plan, id, part, brief) {
  const name = OPS[plan.op[id]].short;
  if (name !== "" && brief) return name;
  const microbatch = microbatchOf(plan, id, part);
  return name + (microbatch >= 0 ? microbatch : stageOf(plan, id, part));
}
