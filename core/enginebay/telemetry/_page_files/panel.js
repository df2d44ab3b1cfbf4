// The panel beside the lanes: what a span says, and when none is chosen, what was slowest and whose the time was.
const panel = $("panel");

// an element with text or other elements in it; text is never markup
function make(tag, inside = [], about = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name === "class") made.className = value;
    else if (name === "click") made.addEventListener("click", value);
    else made.setAttribute(name, value);
  }
  for (const one of [inside].flat()) made.append(one);
  return made;
}

function heading(text) { panel.append(make("h3", text)); }

function goTo(i, words = nameOf(i), told = duration(spans[i][TOOK])) {
  const to = make("button", [make("span", words), make("span", told)], { class: "go", click: () => show(i) });
  panel.append(to);
  return to;
}

function shown(value) {
  if (Array.isArray(value)) return value.map(shown).join(", ");
  return value === null ? "" : String(value);
}

// a dotted name, which may be broken behind its dots and strokes
const breakable = (name) => name.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]);

function pairs(entries) {
  const rows = entries.map(([key, value]) => make("tr", [make("td", breakable(key)), make("td", shown(value))]));
  panel.append(make("table", rows, { class: "pairs" }));
}

function tell() {
  panel.replaceChildren();
  panel.scrollTop = 0;
  if (selected < 0) tellAll();
  else tellOne(selected);
}

function tellAll() {
  for (const [kind, path] of data.slowest) {
    heading("Slowest " + kind);
    path.forEach((i, depth) => {
      const to = goTo(i, nameOf(i) + rankOf(i));
      to.style.paddingLeft = 6 + 12 * depth + "px";
      const bar = make("i", [], { class: "bar" });
      bar.style.width = (100 * spans[i][TOOK]) / Math.max(spans[path[0]][TOOK], 1e-3) + "%";
      to.append(bar);
    });
  }
  heading("By name, in milliseconds");
  const rows = [make("tr", ["span", "count", "median", "p99", "share", "failed"].map((text) => make("th", text)))];
  for (const [kind, count, total, names] of data.summary) {
    rows.push(make("tr", [
      make("td", `${kind} (${count})`), make("td", `${total.toFixed(1)} in all`, { colspan: 5 }),
    ], { class: "group" }));
    for (const [name, many, median, p99, , share, failed] of names) {
      rows.push(make("tr", [
        make("td", name), make("td", many), make("td", median.toFixed(2)), make("td", p99.toFixed(2)),
        make("td", percent(share)), make("td", failed || "", failed ? { class: "bad" } : {}),
      ]));
    }
  }
  panel.append(make("table", rows));
  panel.append(make("p", "Share: of the time of its kind, that in which nothing below the span ran.", { class: "soft" }));
}

function rankOf(i) {
  const rank = details[i].a["enginebay.rank"];
  return typeof rank === "number" && nameOf(i).startsWith("worker.") ? ` (rank ${rank})` : "";
}

function tellOne(i) {
  const span = spans[i], told = details[i];
  panel.append(make("button", "← all", { click: () => choose(-1) }));
  heading(data.kinds[span[KIND]]);
  panel.append(make("h2", nameOf(i)));
  if (span[STATUS] === ERROR) panel.append(make("p", "ERROR " + told.m, { class: "bad" }));
  else if (told.m) panel.append(make("p", told.m));
  pairs([
    ["took", duration(span[TOOK])],
    ["of it, nothing below ran", duration(told.own)],
    ["began at", duration(span[START])],
    ["process", data.processes[span[PROCESS]].label],
    ["trace", data.traces[span[TRACE]]],
    ["span", told.id],
  ]);
  const attributes = Object.entries(told.a);
  if (attributes.length) {
    heading(`Attributes (${attributes.length})`);
    pairs(attributes.map(([key, value]) => [key.replace(/^enginebay\./, ""), value]));
  }
  if (told.e.length) {
    heading(`Events (${told.e.length})`);
    for (const [name, at, more] of told.e) {
      panel.append(make("p", [make("b", name), make("span", "  +" + duration(at - span[START]), { class: "soft" })]));
      if (Object.keys(more).length) pairs(Object.entries(more));
    }
  }
  if (told.l.length) {
    heading(`Links (${told.l.length})`);
    for (const [target, trace, id, more] of told.l) {
      if (target >= 0) goTo(target, nameOf(target) + stepOf(target));
      else panel.append(make("p", `span ${id} of trace ${trace}, which is not in this file`, { class: "soft" }));
      if (Object.keys(more).length) pairs(Object.entries(more));
    }
  }
  if (linkedFrom[i].length) {
    heading(`Linked from (${linkedFrom[i].length})`);
    for (const source of linkedFrom[i].slice(0, 200)) goTo(source, nameOf(source) + stepOf(source));
  }
  if (span[PARENT] >= 0) {
    heading("Parent");
    goTo(span[PARENT]);
  }
  if (children[i].length) {
    heading(`Children (${children[i].length})`);
    for (const child of children[i].slice(0, 200)) goTo(child, nameOf(child) + rankOf(child));
  }
}

function stepOf(i) {
  const step = details[i].a["enginebay.step.index"];
  return step === undefined ? "" : ` ${step}`;
}
