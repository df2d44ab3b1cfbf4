// The trace, where each span lies, and words for times. A span is a row of `data.spans`, and its columns are these:
const PROCESS = 0, LANE = 1, DEPTH = 2, NAME = 3, START = 4, TOOK = 5, PARENT = 6, KIND = 7, TRACE = 8, STATUS = 9;
const ERROR = 2;
const ROW = 20, GAP = 6, HEAD = 25, AXIS = 24, GUTTER = 104;  // pixels

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const spans = data.spans, details = data.details;
const whole = spans.reduce((most, span) => Math.max(most, span[START] + span[TOOK]), 1);  // microseconds
const margin = whole * 0.01;

const children = spans.map(() => []);
const linkedFrom = spans.map(() => []);
spans.forEach((span, i) => {
  if (span[PARENT] >= 0) children[span[PARENT]].push(i);
  for (const [target] of details[i].l) if (target >= 0) linkedFrom[target].push(i);
});

const view = { from: -margin, to: whole + margin, top: 0 };
const folded = new Set();
let selected = -1, hovered = -1;
let matches = null;  // null: nothing is looked for

// where lanes lie: pixels from the top of all of them, and the number of each lane's first row among all rows
const heads = [], lanesAt = [], firstRows = [];
let height = 0, rowCount = 0;

function place() {
  let y = 0;
  rowCount = 0;
  data.processes.forEach((process, p) => {
    heads[p] = y;
    y += HEAD;
    lanesAt[p] = [];
    firstRows[p] = [];
    process.lanes.forEach(([, rows], n) => {
      lanesAt[p][n] = y;
      firstRows[p][n] = rowCount;
      rowCount += rows;
      if (!folded.has(p)) y += rows * ROW + GAP;
    });
  });
  height = y + GAP;
}
place();

const nameOf = (i) => data.names[spans[i][NAME]];
const endOf = (i) => spans[i][START] + spans[i][TOOK];
const topOf = (i) => lanesAt[spans[i][PROCESS]][spans[i][LANE]] + spans[i][DEPTH] * ROW;
const rowOf = (i) => firstRows[spans[i][PROCESS]][spans[i][LANE]] + spans[i][DEPTH];
const isFolded = (i) => folded.has(spans[i][PROCESS]);

function inUnit(us, digits) {
  const size = Math.abs(us);
  if (size >= 1e6) return (us / 1e6).toFixed(digits) + " s";
  if (size >= 1e3) return (us / 1e3).toFixed(digits) + " ms";
  return us.toFixed(size && size < 100 ? 1 : 0) + " µs";
}

const duration = (us) => inUnit(us, 2);

// a moment on an axis whose ticks are `step` microseconds apart
function moment(us, step) {
  const [unit, word] = step >= 1e5 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return (us / unit).toFixed(digits) + " " + word;
}

const percent = (part) => (100 * part).toFixed(1) + "%";

// spans by what their names, attributes, events and ids say
let haystack = null;
function search(words) {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return null;
  haystack ??= spans.map((span, i) => {
    const d = details[i];
    return [nameOf(i), d.id, data.traces[span[TRACE]], d.m, JSON.stringify(d.a), d.e.map((e) => e[0]).join(" ")]
      .join("\n").toLowerCase();
  });
  const found = new Set();
  haystack.forEach((text, i) => { if (text.includes(wanted)) found.add(i); });
  return found;
}
