// In words: the tooltip of what is under the pointer and the card of what is selected.

// "F s3 m7", when, and what it waited for.
function fillTooltip(page) {
  const tooltip = document.getElementById("tooltip");
  const {hovered, gap, pointer} = page;
  tooltip.hidden = (hovered === null && gap === null) || pointer === null;
  if (tooltip.hidden) return;
  tooltip.replaceChildren(...(hovered === null ? gapLines(page, gap) : boxLines(page, hovered)));
  const {clientWidth, clientHeight} = page.stage;
  const x = Math.min(pointer.x + 14, clientWidth - tooltip.offsetWidth - 4);
  const below = pointer.y + 18 + tooltip.offsetHeight < clientHeight;
  tooltip.style.left = Math.max(2, x) + "px";
  tooltip.style.top = Math.max(2, below ? pointer.y + 18 : pointer.y - tooltip.offsetHeight - 10) + "px";
}

function boxLines(page, {p, id}) {
  const plan = page.plans[p];
  const on = waitsOf(plan)[id];
  return [
    element("b", {textContent: plan.text(id)}),
    `\nrank ${plan.rank[id]}, instruction ${plan.index(id)}\n${spanText(plan, id)}` +
        (on < 0 ? "" : `\nwaited for ${plan.text(on)}${onRank(plan, on, id)}, until ${untilText(plan, on, id)}`)];
}

function gapLines(page, {plan, rank, gap}) {
  return [
    element("b", {textContent: "idle because"}),
    `\n${gapText(plan, rank, gap, page.causes)}\nrank ${rank}, ${timeText(gap.from, plan)} to ` +
        `${timeText(gap.to, plan)}, for ${timeText(gap.to - gap.from, plan)}`];
}

function spanText(plan, id) {
  if (!plan.runs(id)) return "never runs";
  return `${timeText(plan.start[id], plan)} to ${timeText(plan.end[id], plan)}, ` +
      `takes ${timeText(plan.end[id] - plan.start[id], plan)}`;
}

// The rank of an instruction that another one waited for, if it is another rank.
function onRank(plan, on, id) {
  return plan.rank[on] === plan.rank[id] ? "" : ` on rank ${plan.rank[on]}`;
}

// A link is free when the message before it has left, which may be before it arrives.
function untilText(plan, on, id) {
  return timeText(Math.min(plan.end[on], plan.start[id]), plan);
}

function fillCard(page) {
  const card = document.getElementById("card");
  const closed = page.selected === null;
  if (card.hidden !== closed) {
    card.hidden = closed;
    page.resized();
  }
  if (closed) return;
  const {p, id} = page.selected;
  const plan = page.plans[p];
  card.replaceChildren(
      element("button", {className: "close", textContent: "×", title: "close (Esc)",
                         onclick: () => page.select(null)}),
      element("h2", {textContent: plan.text(id)}),
      element("div", {textContent: `rank ${plan.rank[id]}, instruction ${plan.index(id)}` +
          (page.plans.length > 1 ? ` of ${plan.name}` : "")}),
      element("div", {textContent: spanText(plan, id)}));
  if (plan.runs(id)) {
    card.append(...idleLines(page, plan, p, id));
    const waits = page.selectedWait < 0 ? [] : [waitLine(page, plan, p, page.selectedWait, id)];
    card.append(...listOf("Waited for", waits));
    card.append(...listOf("Messages", page.selectedMessages.map((send) => messageLine(page, plan, p, send))));
  } else {
    card.append(...listOf("Why", standstillLines(page, plan, p, id)));
  }
}

function listOf(title, items) {
  if (items.length === 0) return [];
  return [element("h3", {textContent: title}), element("ol", {}, ...items)];
}

function goTo(page, plan, p, id) {
  return element("button", {className: "go", textContent: plan.text(id), onclick: () => page.reveal(p, id)});
}

function waitLine(page, plan, p, on, id, verb = "") {
  return element("li", {}, verb, goTo(page, plan, p, on), `${onRank(plan, on, id)}, until ${untilText(plan, on, id)}`);
}

function messageLine(page, plan, p, send) {
  return element("li", {}, goTo(page, plan, p, send), ` rank ${plan.rank[send]} to ${plan.peer[send]}, ` +
      `${timeText(plan.start[send], plan)} to ${timeText(plan.end[send], plan)}`);
}

// Why the rank was idle before an instruction: the chain of waits back to its cause.
function idleLines(page, plan, p, id) {
  const {idle, before, steps} = page.selectedIdle;
  if (plan.lane(id) === MESSAGE) return [];
  const lane = LANES[plan.lane(id)];
  if (idle === 0) {
    const text = before < 0 ? "It is the first on its lane, and starts at once."
                            : `Its ${lane} lane was not idle before it.`;
    return [element("h3", {textContent: "Idle because"}), element("div", {textContent: text})];
  }
  const head = `${timeText(idle, plan)} of the ${lane} lane before it, since ` +
      (before < 0 ? "the start" : `the end of ${plan.text(before)}`);
  const items = steps.slice(0, 8).map((on, k) => k === 0
      ? waitLine(page, plan, p, on, id, "it waits for ")
      : waitLine(page, plan, p, on, steps[k - 1], "which waits for "));
  if (steps.length > 8) items.push(element("li", {textContent: `and ${steps.length - 8} more waits before`}));
  const root = steps.at(-1);
  if (root !== undefined && plan.start[root] === 0) {
    items.push(element("li", {textContent: "which starts with the step"}));
  }
  return [element("h3", {textContent: "Idle because"}), element("div", {textContent: head}),
          element("ol", {}, ...items)];
}

function standstillLines(page, plan, p, id) {
  const rank = plan.rank[id], lines = [];
  const at = standsAt(plan, rank);
  if (at >= 0 && at !== id) {
    lines.push(element("li", {}, `rank ${rank} stands at `, goTo(page, plan, p, at)));
  }
  for (const [waiting, index, on] of plan.waits) {
    if (waiting === rank && plan.first[rank] + index === id) {
      lines.push(element("li", {textContent: `it waits for rank ${on}, which is part of a cycle of waits`}));
    }
  }
  for (const finding of plan.findings) {
    if (finding.rank === rank && finding.index === plan.index(id)) {
      lines.push(element("li", {textContent: `${finding.check}: ${finding.message}`}));
    }
  }
  if (lines.length === 0) lines.push(element("li", {textContent: "its inputs never come"}));
  return lines;
}
