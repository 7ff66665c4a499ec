// Figures of ranks and plans, the legend and the tables below the picture.

// Busy time of the compute lane of each rank.
function busyTimes(plan) {
  if (plan.busy) return plan.busy;
  plan.busy = new Float64Array(plan.ranks);
  for (let id = 0; id < plan.count; ++id) {
    if (plan.lane(id) === 0 && plan.runs(id)) plan.busy[plan.rank[id]] += plan.end[id] - plan.start[id];
  }
  return plan.busy;
}

// Bubble as a share of the makespan.
function rankBubble(plan, rank) {
  return plan.makespan > 0 ? 1 - busyTimes(plan)[rank] / plan.makespan : 0;
}

function rankPeak(plan, rank) {
  return memoryCurves(plan)[rank].amounts.reduce((most, amount) => Math.max(most, amount), 0);
}
function memoryPeak(plan) {
  if (plan.peak === undefined) {
    plan.peak = 0;
    for (let r = 0; r < plan.ranks; ++r) plan.peak = Math.max(plan.peak, rankPeak(plan, r));
  }
  return plan.peak;
}

function planFigures(plan) {
  if (plan.findings.length > 0) {
    return `stands at ${timeText(plan.makespan, plan)}: ${plan.findings[0].check}`;
  }
  const busy = busyTimes(plan).reduce((sum, time) => sum + time, 0);
  const all = plan.makespan * plan.ranks;
  const ratio = all > 0 ? (all - busy) / all : 0;
  const what = plan.measured ? "measured" : "makespan";
  return `${what} ${timeText(plan.makespan, plan)}${plan.unit === "unit" ? " units" : ""}, ` +
      `bubble ${percentText(ratio)}` +
      (plan.memory_of_1f1b ? `, memory ${plan.memory_of_1f1b.toFixed(2)}x of 1F1B's` : "");
}

// A plan beside the first of the page: ", -21.50 % vs the first".
function ratioText(page, plan) {
  const first = page.plans[0];
  if (plan.unit !== first.unit || first.makespan === 0 || plan.makespan === first.makespan) return "";
  const change = plan.makespan / first.makespan - 1;
  return `, ${change < 0 ? "-" : "+"}${percentText(Math.abs(change))} vs the first`;
}

// The figures of the page: those of its plan, or the shortest of several beside the first.
function headline(page) {
  const {plans} = page;
  if (plans.length === 1) return planFigures(plans[0]) + "; costs: " + plans[0].costs;
  const sound = plans.filter((plan) => plan.findings.length === 0);
  const text = `${plans.length} plans on one axis`;
  if (sound.length === 0) return text;
  const best = sound.reduce((least, plan) => (plan.makespan < least.makespan ? plan : least));
  return `${text}; the shortest is ${best.name}: ${planFigures(best)}${ratioText(page, best)}`;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The kinds of work that occur, in the order of legends.
function kindsIn(plans) {
  const seen = new Set();
  for (const plan of plans) {
    for (let id = 0; id < plan.count; ++id) {
      const op = plan.op[id];
      if (OPS[op].lane !== MESSAGE && plan.end[id] > plan.start[id]) seen.add(OPS[op].kind);
    }
  }
  return KINDS.filter((kind) => seen.has(kind.op));
}

function swatch(...colors) {
  const bars = colors.map((color) => {
    const bar = element("b");
    bar.style.background = canvasToCss(color);
    return bar;
  });
  return element("i", {}, ...bars);
}

function fillLegend(page) {
  const legend = document.getElementById("legend");
  legend.replaceChildren();
  const add = (mark, name, text) => legend.append(element("span", {}, mark, element("em", {textContent: name}), text));
  const sides = Math.max(...page.plans.map((plan) => plan.sides));
  for (const kind of page.kinds) {
    add(swatch(...kindSwatch(page, kind, sides)), kind.names, kind.text);
  }
  if (page.mode === "kind" && sides === 2) {
    const texts = new Set(page.plans.filter((plan) => plan.sides === 2).map((plan) => plan.sides_text));
    legend.append(element("span", {}, "darker: " + [...texts].join("; or ")));
  }
  if (page.mode === "chunk" && sides > 2) addChunks(legend, page, sides);
  if (page.mode === "microbatch" || page.mode === "stage") {
    legend.append(element("span", {textContent: `a colour for each ${COLOR_MODES[page.mode]}, lighter forward, darker weight gradient`}));
  }
  const idle = element("b");
  idle.style.background = "var(--idle)";
  add(element("i", {}, idle), "", "idle");
  legend.append(element("span", {textContent: "numbers are micro-batches; where boxes share a pixel their colours mix"}));
  legend.append(element("span", {textContent: "zoom with the wheel, a pinch, + or -; drag to move; click a box to ask why it waited; ? lists all keys"}));
  if (page.plans.some((plan) => page.layout.hasStrip(plan))) {
    legend.append(element("span", {textContent: "strip below a rank: what runs beside its compute lane; a click on the rank opens it"}));
  }
}

function kindSwatch(page, kind, sides) {
  const pair = kind.op === OP.FB;
  const parts = pair ? KINDS.filter((known) => known.op === OP.F || known.op === OP.BW) : [kind];
  if (page.mode === "microbatch" || page.mode === "stage") {
    return parts.map((part) => hueColor(0, LIGHTNESS[OPS[part.op].name] || 0.75));
  }
  if (page.mode === "chunk") return parts.map((part) => canvasColor(part.more[0]));
  return parts.flatMap((part) => (sides > 1 && !pair && part.two[0] !== part.two[1] ? part.two : [part.two[0]])
      .map(canvasColor));
}

// One colour for each stage of a rank.
function addChunks(legend, page, sides) {
  const forward = page.kinds.find((kind) => OPS[kind.op].name === "F" || OPS[kind.op].name === "ATTN_F") || page.kinds[0];
  for (let side = 0; side < Math.min(sides, forward.more.length); ++side) {
    legend.append(element("span", {}, swatch(canvasColor(forward.more[side])), `stage ${side + 1} of a rank`));
  }
  if (sides > forward.more.length) legend.append(element("span", {textContent: "then the colours begin again"}));
}

function fillTables(page) {
  const tables = document.getElementById("tables");
  page.plans.forEach((plan, p) => {
    if (plan.summary === undefined) return;
    const title = page.plans.length > 1 ? plan.name + ": figures" : "Figures";
    const details = element("details", {open: page.plans.length === 1 && plan.ranks <= 16},
                            element("summary", {textContent: title}));
    details.append(element("pre", {textContent: plan.title + "\ncosts: " + plan.costs + "\n\n" +
        plan.summary + (plan.formula_legend ? "\n" + plan.formula_legend : "")}));
    // Hundreds of ranks are made when they are asked for.
    const fill = () => {
      if (details.open && !details.querySelector("table")) details.append(rankTable(plan));
    };
    details.addEventListener("toggle", fill);
    fill();
    tables.append(details);
  });
}

function rankTable(plan) {
  const table = element("table");
  const row = (kind, texts) => table.append(element("tr", {}, ...texts.map((text) => element(kind, {textContent: text}))));
  row("th", ["rank", "busy", "bubble", "of the step", plan.memory_unit === "bytes" ? "holds at most" : "holds at most, of 1F1B's"]);
  const busy = busyTimes(plan);
  for (let r = 0; r < plan.ranks; ++r) {
    row("td", [r, timeText(busy[r], plan), timeText(plan.makespan - busy[r], plan),
               percentText(rankBubble(plan, r)), amountText(rankPeak(plan, r), plan)]);
  }
  return element("div", {className: "wide"}, table);
}

// Faults of plans that are not sound.
function fillFindings(page) {
  const box = document.getElementById("findings");
  for (const [p, plan] of page.plans.entries()) {
    if (plan.findings.length === 0) continue;
    box.hidden = false;
    const count = plan.finding_count;
    const what = count === 1 ? "one finding" : `${count} findings`;
    box.append(element("h2", {textContent: `${plan.name || "This plan"} is not sound: ${what}. Drawn up to where it stands.`}));
    const list = element("ul");
    for (const finding of plan.findings) {
      const item = element("li", {}, `${finding.check}: ${finding.message} `);
      if (finding.rank >= 0 && finding.index >= 0 && finding.index < plan.lengths[finding.rank]) {
        const id = plan.first[finding.rank] + finding.index;
        item.append(element("button", {className: "go", textContent: "show", onclick: () => page.reveal(p, id)}));
      }
      list.append(item);
    }
    if (count > plan.findings.length) list.append(element("li", {textContent: `and ${count - plan.findings.length} more`}));
    box.append(list);
  }
}
