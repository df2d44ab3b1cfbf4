// Mouse, keys and touch: what is in view, what is chosen, what is looked for.
const KEYS = [
  ["+  −", "zoom in and out; with Ctrl also the wheel"],
  ["← →", "earlier, later; also by dragging, or Shift and the wheel"],
  ["↑ ↓", "other lanes; also the wheel"],
  ["0", "everything"],
  ["click", "choose a span; on a process: fold it"],
  ["Shift drag", "zoom to a stretch of time"],
  ["f, double click", "zoom to the chosen span"],
  ["[  ]", "choose the span before, the span behind, in this lane"],
  ["u  d", "choose the parent, the longest child"],
  ["/", "find; then n and p: next and previous"],
  ["Esc", "choose nothing, find nothing"],
];

function zoom(factor, at = (view.from + view.to) / 2) {
  const size = Math.min(Math.max((view.to - view.from) * factor, 0.5), whole + 2 * margin);
  look(at - ((at - view.from) * size) / (view.to - view.from), size);
}

function look(from, size) {
  view.from = Math.max(-margin, Math.min(from, whole + margin - size));
  view.to = view.from + size;
  redraw();
}

const pan = (part) => look(view.from + (view.to - view.from) * part, view.to - view.from);

function scroll(pixels) {
  view.top += pixels;
  redraw();
}

function focusOn(i) {
  if (i < 0) return;
  const size = Math.max(spans[i][TOOK] * 1.3, 1);
  look(spans[i][START] + spans[i][TOOK] / 2 - size / 2, Math.min(size, whole + 2 * margin));
}

function choose(i) {
  selected = i;
  tell();
  redraw();
}

// choose a span and have it in view
function show(i) {
  if (folded.has(spans[i][PROCESS])) fold(spans[i][PROCESS]);
  const y = topOf(i), room = lanes.getBoundingClientRect().height - AXIS;
  if (y < view.top + HEAD || y + ROW > view.top + room) view.top = Math.max(0, y - room / 2);
  const size = view.to - view.from;
  if (spans[i][TOOK] < size / 400 || spans[i][TOOK] > size * 4) focusOn(i);
  else if (endOf(i) < view.from || spans[i][START] > view.to) look(spans[i][START] + spans[i][TOOK] / 2 - size / 2, size);
  choose(i);
}

function fold(p) {
  if (!folded.delete(p)) folded.add(p);
  $("legend").children[p].setAttribute("aria-pressed", String(folded.has(p)));
  place();
  overview = null;
  redraw();
}

// the span, or the process' head, at a place of the stage
function at(x, y) {
  if (y < AXIS) return {};
  const within = y - AXIS + view.top;
  for (let p = 0; p < heads.length; p++) {
    const top = Math.max(heads[p], view.top);
    const isFirst = heads[p] <= view.top && (p + 1 === heads.length || heads[p + 1] > view.top);
    if (within < top + HEAD && within >= top && (heads[p] >= view.top || isFirst)) return { process: p };
  }
  if (x < GUTTER) return {};
  const us = usAt(x), slack = ((view.to - view.from) / (width - GUTTER)) * 2;
  let best = -1;
  for (let i = 0; i < spans.length; i++) {
    if (spans[i][START] - slack > us) break;
    if (isFolded(i) || within < topOf(i) || within >= topOf(i) + ROW) continue;
    if (us <= endOf(i) + slack && (best < 0 || spans[i][START] <= us)) best = i;
  }
  return best < 0 ? {} : { span: best };
}

function tip(x, y) {
  const box = $("tip");
  box.hidden = hovered < 0;
  if (hovered < 0) return;
  const said = spans[hovered][STATUS] === ERROR ? `  ERROR ${details[hovered].m}` : "";
  box.replaceChildren(make("b", nameOf(hovered) + rankOf(hovered) + stepOf(hovered)), make("span", `  ${duration(spans[hovered][TOOK])}${said}`));
  const room = $("stage").getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + 14, room.width - box.offsetWidth - 6)) + "px";
  box.style.top = (y + 20 + box.offsetHeight > room.height ? y - box.offsetHeight - 8 : y + 18) + "px";
}

let drag = null;
lanes.addEventListener("pointerdown", (event) => {
  drag = { x: event.offsetX, y: event.offsetY, from: view.from, top: view.top, moved: false, range: event.shiftKey };
  lanes.setPointerCapture(event.pointerId);
});
lanes.addEventListener("pointermove", (event) => {
  if (drag === null) {
    const found = at(event.offsetX, event.offsetY);
    lanes.style.cursor = found.span !== undefined || found.process !== undefined ? "pointer" : "default";
    if ((found.span ?? -1) !== hovered) {
      hovered = found.span ?? -1;
      redraw();
    }
    tip(event.offsetX, event.offsetY);
    return;
  }
  const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
  drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
  if (!drag.moved || drag.range) return;
  const size = view.to - view.from;
  view.top = drag.top - dy;
  look(drag.from - (dx / (width - GUTTER)) * size, size);
});
lanes.addEventListener("pointerup", (event) => {
  const { x, moved, range } = drag ?? {};
  drag = null;
  if (moved && range) {
    const [a, b] = [usAt(Math.min(x, event.offsetX)), usAt(Math.max(x, event.offsetX))];
    look(a, Math.max(b - a, 0.5));
  } else if (moved === false) {
    const found = at(event.offsetX, event.offsetY);
    if (found.process !== undefined) fold(found.process);
    else choose(found.span ?? -1);
  }
});
lanes.addEventListener("pointercancel", () => { drag = null; });
lanes.addEventListener("pointerleave", () => { hovered = -1; tip(0, 0); redraw(); });
lanes.addEventListener("dblclick", (event) => focusOn(at(event.offsetX, event.offsetY).span ?? -1));
lanes.addEventListener("wheel", (event) => {
  event.preventDefault();
  const lines = event.deltaMode === 1 ? 16 : 1;
  const [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
  if (event.ctrlKey || event.metaKey) zoom(Math.exp(dy * 0.004), usAt(Math.max(event.offsetX, GUTTER)));
  else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) pan((dx || dy) / (width - GUTTER));
  else scroll(dy);
}, { passive: false });

function fromMap(event) {
  const size = view.to - view.from;
  look((event.offsetX / map.getBoundingClientRect().width) * (whole + 2 * margin) - margin - size / 2, size);
}
map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); fromMap(event); });
map.addEventListener("pointermove", (event) => { if (event.buttons) fromMap(event); });

function beside(direction) {
  if (selected < 0) return show(direction > 0 ? 0 : spans.length - 1);
  for (let i = selected + direction; i >= 0 && i < spans.length; i += direction) {
    if (rowOf(i) === rowOf(selected)) return show(i);
  }
}

function nextMatch(direction) {
  if (matches === null || matches.size === 0) return;
  const found = [...matches], here = direction > 0 ? found.find((i) => i > selected) : found.findLast((i) => i < selected);
  show(here ?? (direction > 0 ? found[0] : found[found.length - 1]));
}

function find(words) {
  matches = search(words);
  $("found").textContent = matches === null ? "" : matches.size + " found";
  redraw();
}
$("find").addEventListener("input", (event) => find(event.target.value));
$("find").addEventListener("keydown", (event) => {
  if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
  else if (event.key === "Escape") { event.target.value = ""; find(""); lanes.focus(); }
  event.stopPropagation();
});

const longestChild = (i) => children[i].reduce((best, c) => (best < 0 || spans[c][TOOK] > spans[best][TOOK] ? c : best), -1);
const ON_KEY = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => look(-margin, whole + 2 * margin),
  Home: () => look(-margin, whole + 2 * margin), ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
  ArrowUp: () => scroll(-3 * ROW), ArrowDown: () => scroll(3 * ROW), PageUp: () => scroll(-seen * 0.8),
  PageDown: () => scroll(seen * 0.8), f: () => focusOn(selected), "[": () => beside(-1), "]": () => beside(1),
  u: () => { if (selected >= 0 && spans[selected][PARENT] >= 0) show(spans[selected][PARENT]); },
  d: () => { if (selected >= 0 && children[selected].length) show(longestChild(selected)); },
  n: () => nextMatch(1), p: () => nextMatch(-1), "/": () => $("find").focus(), "?": () => help(),
  Escape: () => { $("find").value = ""; find(""); choose(-1); },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const inPanel = panel.contains(event.target);
  const act = inPanel && /^(Arrow|Page|Home)/.test(event.key) ? undefined : ON_KEY[event.key];
  if (act === undefined) return;
  event.preventDefault();
  act();
});

function help() {
  const list = make("dl", KEYS.flatMap(([keys, what]) => [make("dt", keys), make("dd", what)]));
  $("help").replaceChildren(make("b", "Keys"), list, make("button", "Close", { click: () => $("help").close() }));
  $("help").showModal();
}

$("in").addEventListener("click", () => zoom(0.6));
$("out").addEventListener("click", () => zoom(1 / 0.6));
$("all").addEventListener("click", () => look(-margin, whole + 2 * margin));
$("keys").addEventListener("click", help);

$("title").textContent = data.title;
document.title = data.title + " · enginebay trace";
$("about").textContent = spans.length
  ? `${spans.length} spans, ${data.traces.length} traces, ${duration(whole)} from ${data.begin}`
  : "no spans";
data.processes.forEach((process, p) => {
  const dot = make("i");
  dot.style.background = `var(--p${p % 8})`;
  $("legend").append(make("button", [dot, process.label], { "aria-pressed": "false", click: () => fold(p) }));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
new ResizeObserver(redraw).observe($("stage"));
readColours();
tell();
draw();
