// Draws what is seen of the lanes, and all of them small on the map above. Only what is in view is drawn.
const lanes = $("lanes"), map = $("map");
const ctx = lanes.getContext("2d");
let width = 0, seen = 0;  // pixels of the stage
let colours = {};
let overview = null;  // the map without the frame of what is in view

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  colours = { processes: Array.from({ length: 8 }, (_, n) => get("--p" + n)) };
  for (const name of ["back", "raised", "line", "line-soft", "text", "soft", "accent", "mark", "bad", "bad-back", "on"]) {
    colours[name] = get("--" + name);
  }
  overview = null;
}

const colourOf = (process) => colours.processes[process % 8];
const xOf = (us) => GUTTER + ((us - view.from) / (view.to - view.from)) * (width - GUTTER);
const usAt = (x) => view.from + ((x - GUTTER) / (width - GUTTER)) * (view.to - view.from);

function fit(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const box = canvas.getBoundingClientRect();
  const [w, h] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    overview = null;
  }
  canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  return [box.width, box.height];
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}

function draw() {
  [width, seen] = fit(lanes);
  view.top = Math.max(0, Math.min(view.top, height - (seen - AXIS)));
  ctx.clearRect(0, 0, width, seen);
  ctx.textBaseline = "middle";
  drawGrid();
  drawLanes();
  ctx.save();
  ctx.beginPath();
  ctx.rect(GUTTER, AXIS, width - GUTTER, seen - AXIS);
  ctx.clip();
  drawSpans();
  drawLinks();
  ctx.restore();
  drawHeads();
  drawAxis();
  drawMap();
}

function step() {
  const rough = ((view.to - view.from) / (width - GUTTER)) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((n) => n * power >= rough);
}

function ticks() {
  const size = step(), found = [];
  for (let n = Math.ceil(view.from / size); n * size <= view.to; n++) found.push(n * size);
  return found;
}

function drawGrid() {
  ctx.fillStyle = colours["line-soft"];
  for (const us of ticks()) ctx.fillRect(Math.round(xOf(us)), AXIS, 1, seen - AXIS);
}

function drawAxis() {
  ctx.fillStyle = colours.back;
  ctx.fillRect(0, 0, width, AXIS);
  ctx.fillStyle = colours.line;
  ctx.fillRect(0, AXIS - 1, width, 1);
  ctx.font = "11px system-ui, sans-serif";
  ctx.fillStyle = colours.soft;
  const size = step();
  for (const us of ticks()) {
    const x = xOf(us), text = moment(us, size);
    if (x >= GUTTER - 1 && x + 4 + ctx.measureText(text).width < width) ctx.fillText(text, x + 4, AXIS / 2);
  }
}

function drawLanes() {
  ctx.font = "11px system-ui, sans-serif";
  data.processes.forEach((process, p) => {
    if (folded.has(p)) return;
    process.lanes.forEach(([label, rows], n) => {
      const y = AXIS + lanesAt[p][n] - view.top;
      if (y > seen || y + rows * ROW + GAP < AXIS) return;
      ctx.fillStyle = colours.soft;
      ctx.fillText(shortened(label, GUTTER - 22), 14, y + ROW / 2);
      ctx.fillStyle = colours["line-soft"];
      ctx.fillRect(0, Math.round(y + rows * ROW + GAP / 2), width, 1);
    });
  });
}

// names of processes stand above their lanes; that of the first in view stays at the top
function drawHeads() {
  ctx.font = "600 12px system-ui, sans-serif";
  for (let p = data.processes.length - 1, below = Infinity; p >= 0; p--) {
    const own = AXIS + heads[p] - view.top;
    const y = Math.min(Math.max(own, AXIS), below - HEAD);
    below = own;
    if (y > seen || y < AXIS - HEAD) continue;
    ctx.fillStyle = colours.back;
    ctx.fillRect(0, y, width, HEAD);
    ctx.fillStyle = colourOf(p);
    ctx.fillRect(0, y + 3, 5, HEAD - 6);
    ctx.fillStyle = colours.text;
    ctx.fillText((folded.has(p) ? "▸ " : "▾ ") + data.processes[p].label, 12, y + HEAD / 2);
    if (own <= AXIS) break;
  }
}

const widths = new Map();
function shortened(text, room) {
  const key = ctx.font + text;
  let size = widths.get(key);
  if (size === undefined) widths.set(key, (size = ctx.measureText(text).width));
  if (size <= room) return text;
  const kept = Math.floor((text.length * room) / size) - 1;
  return kept > 1 ? text.slice(0, kept) + "…" : "";
}

function drawSpans() {
  const drawn = new Float64Array(rowCount).fill(-1e9);  // of each row, how far it is covered
  const eventDrawn = new Float64Array(rowCount).fill(-1e9);
  ctx.font = "11px system-ui, sans-serif";
  for (let i = 0; i < spans.length; i++) {
    const span = spans[i];
    if (span[START] > view.to) break;
    if (endOf(i) < view.from || isFolded(i)) continue;
    const y = AXIS + topOf(i) - view.top;
    if (y > seen || y + ROW < AXIS) continue;
    const left = Math.max(xOf(span[START]), GUTTER - 2), right = Math.min(xOf(endOf(i)), width + 2);
    const size = Math.max(right - left, 1.5), row = rowOf(i);
    const isChosen = i === selected || i === hovered;
    const stands = isChosen || span[STATUS] === ERROR || (matches !== null && matches.has(i));
    if (!stands && left + size <= drawn[row] + 0.5) continue;
    drawn[row] = Math.max(drawn[row], left + size);
    ctx.globalAlpha = matches !== null && !matches.has(i) && !isChosen ? 0.22 : 1;
    drawBar(i, left, y, size);
    drawEvents(i, y, eventDrawn, row);
  }
  ctx.globalAlpha = 1;
}

function drawBar(i, left, y, size) {
  const span = spans[i], isBad = span[STATUS] === ERROR;
  const tall = ROW - 4, room = size > 3 ? size - 1 : size;  // a hair between neighbours
  ctx.fillStyle = isBad ? colours["bad-back"] : colourOf(span[PROCESS]);
  ctx.beginPath();
  ctx.roundRect(left, y + 1, room, tall, Math.min(3, room / 2));
  ctx.fill();
  if (isBad) {
    ctx.fillStyle = colours.bad;
    ctx.fillRect(left, y + 1, Math.min(3, room), tall);
  }
  if (i === selected || (matches !== null && matches.has(i))) {
    ctx.lineWidth = i === selected ? 2 : 1.5;
    ctx.strokeStyle = i === selected ? colours.accent : colours.mark;
    ctx.stroke();
  } else if (i === hovered) {
    ctx.lineWidth = 1;
    ctx.strokeStyle = colours.text;
    ctx.stroke();
  }
  if (room > 22) {
    const text = shortened(nameOf(i), room - 12);
    ctx.fillStyle = colours.on;
    if (text) ctx.fillText(text, left + 6, y + ROW / 2 - 1);
    const free = room - 18 - (widths.get(ctx.font + nameOf(i)) ?? 0), took = duration(span[TOOK]);
    if (free > 70 && details[i].e.length === 0) {
      const before = ctx.globalAlpha;
      ctx.globalAlpha = before * 0.6;
      ctx.fillText(took, left + room - 6 - ctx.measureText(took).width, y + ROW / 2 - 1);
      ctx.globalAlpha = before;
    }
  }
}

// events point at their bar from below, where there are no words
function drawEvents(i, y, eventDrawn, row) {
  ctx.fillStyle = colours.on;
  for (const [, at] of details[i].e) {
    const x = xOf(at);
    if (x < GUTTER || x > width || x - eventDrawn[row] < 3) continue;
    eventDrawn[row] = x;
    ctx.beginPath();
    ctx.moveTo(x - 3, y + ROW);
    ctx.lineTo(x + 3, y + ROW);
    ctx.lineTo(x, y + ROW - 5);
    ctx.fill();
  }
}

function drawLinks() {
  if (selected < 0) return;
  ctx.strokeStyle = colours.accent;
  ctx.lineWidth = 1.25;
  ctx.setLineDash([5, 4]);
  const others = [...details[selected].l.map(([target]) => target), ...linkedFrom[selected], spans[selected][PARENT]];
  for (const other of new Set(others.slice(0, 400))) {
    if (other < 0 || isFolded(other) || isFolded(selected)) continue;
    const [a, b] = spans[other][START] < spans[selected][START] ? [other, selected] : [selected, other];
    const x0 = xOf(spans[a][START]), x1 = xOf(spans[b][START]);
    const y0 = AXIS + topOf(a) - view.top + ROW / 2, y1 = AXIS + topOf(b) - view.top + ROW / 2;
    const bend = Math.min(80, Math.abs(x1 - x0) / 2 + 12);
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    ctx.stroke();
  }
  ctx.setLineDash([]);
}

function drawMap() {
  const [w, h] = fit(map);
  const small = map.getContext("2d");
  const scale = w / (whole + 2 * margin), ratio = window.devicePixelRatio || 1;
  if (overview === null) {
    overview = document.createElement("canvas");
    [overview.width, overview.height] = [map.width, map.height];
    const to = overview.getContext("2d");
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    const darker = colours.processes.map((one) => `color-mix(in srgb, ${one} 70%, ${colours.text})`);
    const tall = Math.max(1.5, ((h - 6) * ROW) / Math.max(height, 1) - 0.5);
    spans.forEach((span, i) => {
      if (isFolded(i)) return;
      to.fillStyle = span[STATUS] === ERROR ? colours.bad : darker[span[PROCESS] % 8];
      const y = 3 + ((h - 6) * topOf(i)) / Math.max(height, 1);
      to.fillRect((span[START] + margin) * scale, y, Math.max(span[TOOK] * scale, 1), tall);
    });
  }
  small.clearRect(0, 0, w, h);
  small.save();
  small.setTransform(1, 0, 0, 1, 0, 0);
  small.drawImage(overview, 0, 0);
  small.restore();
  const left = (view.from + margin) * scale, right = (view.to + margin) * scale;
  small.globalAlpha = 0.62;
  small.fillStyle = colours.back;
  small.fillRect(0, 0, left, h);
  small.fillRect(right, 0, w - right, h);
  small.globalAlpha = 1;
  small.strokeStyle = colours.accent;
  small.lineWidth = 1.5;
  small.strokeRect(left + 0.75, 0.75, Math.max(right - left - 1.5, 2), h - 1.5);
}
