// Pointer, wheel, keys and buttons.

function listen(page) {
  const {stage} = page;
  stage.addEventListener("wheel", (event) => onWheel(page, event), {passive: false});
  stage.addEventListener("pointerdown", (event) => onDown(page, event));
  stage.addEventListener("pointermove", (event) => onMove(page, event));
  stage.addEventListener("pointerup", (event) => onUp(page, event));
  stage.addEventListener("pointercancel", (event) => page.pointers.delete(event.pointerId));
  stage.addEventListener("pointerleave", () => page.pointAt(null));
  stage.addEventListener("dblclick", () => onDouble(page));
  document.addEventListener("keydown", (event) => onKey(page, event));
  window.addEventListener("resize", () => page.resized());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => page.setTheme(event.matches));
  window.addEventListener("beforeprint", () => page.print(true));
  window.addEventListener("afterprint", () => page.print(false));
  listenToTools(page);
}

function listenToTools(page) {
  const on = (id, action) => document.getElementById(id).addEventListener("click", action);
  on("fit", () => page.view.fit());
  on("in", () => page.view.glideZoom(0.5));
  on("out", () => page.view.glideZoom(2));
  on("path", () => page.togglePath());
  on("memory", () => page.toggleMemory());
  on("lanes", () => page.toggleLanes());
  on("print", () => window.print());
  on("theme", () => page.setTheme(!page.dark));
  on("help", () => page.toggleKeys());
  const colors = document.getElementById("colors");
  for (const [mode, text] of Object.entries(COLOR_MODES)) colors.append(element("option", {value: mode, textContent: text}));
  colors.value = page.mode;
  colors.addEventListener("change", () => page.setMode(colors.value));
  const search = document.getElementById("search");
  search.addEventListener("input", () => page.search(search.value));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") page.step(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      search.value = "";
      page.search("");
      page.stage.focus();
    }
    event.stopPropagation();
  });
}

function positionOf(page, event) {
  const box = page.stage.getBoundingClientRect();
  return {x: event.clientX - box.left, y: event.clientY - box.top};
}

function onWheel(page, event) {
  event.preventDefault();
  const {x} = positionOf(page, event);
  const {view, painter} = page;
  const lines = event.deltaMode === 1 ? 16 : 1;
  const dx = event.deltaX * lines, dy = event.deltaY * lines;
  // A pinch on a touchpad comes as a wheel with ctrl and small steps.
  if (event.ctrlKey && Math.abs(dy) >= 50) return page.growRows(dy < 0 ? 1 : -1);
  if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) return view.move(event.shiftKey ? dy + dx : dx);
  if (x < painter.left || x > painter.left + painter.plotWidth) return view.moveRows(dy);
  view.zoomAt(x - painter.left, Math.exp(dy * (event.ctrlKey ? 0.01 : 0.002)));
}

function onDown(page, event) {
  if (event.button > 0) return;
  page.stage.setPointerCapture(event.pointerId);
  const at = positionOf(page, event);
  page.pointers.set(event.pointerId, at);
  page.pressed = {...at, moved: false};
}

function onMove(page, event) {
  const at = positionOf(page, event);
  const before = page.pointers.get(event.pointerId);
  if (before === undefined) return page.pointAt(at);
  if (page.pointers.size === 2) {
    pinch(page, event.pointerId, at);
  } else {
    const {pressed} = page;
    if (!pressed.moved && Math.hypot(at.x - pressed.x, at.y - pressed.y) < 4) return;
    pressed.moved = true;
    page.stage.classList.add("dragging");
    page.view.move(before.x - at.x);
    page.view.moveRows(before.y - at.y);
  }
  page.pointers.set(event.pointerId, at);
}

// Two fingers: what lies between them stays there.
function pinch(page, moved, at) {
  page.pressed.moved = true;
  const [other] = [...page.pointers].filter(([id]) => id !== moved).map(([, point]) => point);
  const before = page.pointers.get(moved);
  const distance = (point) => Math.max(20, Math.abs(point.x - other.x));
  page.view.zoomAt((at.x + other.x) / 2 - page.painter.left, distance(before) / distance(at));
}

function onUp(page, event) {
  page.stage.classList.remove("dragging");
  if (!page.pointers.delete(event.pointerId) || page.pressed.moved) return;
  const at = positionOf(page, event);
  if (at.x < page.painter.left) return page.openAt(at);
  page.select(page.hit(at));
  page.pointAt(null);  // the card moves what lies there
}

function onDouble(page) {
  // The first click may have opened the card and moved what lies under the pointer.
  if (page.selected) page.zoomTo(page.selected.p, page.selected.id);
}

const KEY_ACTIONS = {
  "+": (page) => page.view.glideZoom(0.5), "=": (page) => page.view.glideZoom(0.5),
  w: (page) => page.view.glideZoom(0.5), "-": (page) => page.view.glideZoom(2),
  s: (page) => page.view.glideZoom(2),
  ArrowLeft: (page) => page.view.glideMove(-0.2), a: (page) => page.view.glideMove(-0.2),
  ArrowRight: (page) => page.view.glideMove(0.2), d: (page) => page.view.glideMove(0.2),
  ArrowUp: (page) => page.view.moveRows(-80), ArrowDown: (page) => page.view.moveRows(80),
  PageUp: (page) => page.view.moveRows(-400), PageDown: (page) => page.view.moveRows(400),
  Home: (page) => page.view.glide(0, page.view.span),
  End: (page) => page.view.glide(page.view.longest - page.view.span, page.view.longest),
  0: (page) => page.view.fit(), f: (page) => page.view.fit(),
  "[": (page) => page.growRows(-1), "]": (page) => page.growRows(1),
  c: (page) => page.togglePath(), m: (page) => page.toggleMemory(), l: (page) => page.toggleLanes(),
  t: (page) => page.setTheme(!page.dark), "?": (page) => page.toggleKeys(),
  n: (page) => page.step(1), p: (page) => page.step(-1), b: (page) => page.goToCause(),
  ",": (page) => page.neighbour(-1), ".": (page) => page.neighbour(1),
  "/": () => document.getElementById("search").focus(),
  Escape: (page) => page.select(null),
};

function onKey(page, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest && event.target.closest("input, select, summary")) return;
  const action = KEY_ACTIONS[event.key] || KEY_ACTIONS[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action(page);
}
