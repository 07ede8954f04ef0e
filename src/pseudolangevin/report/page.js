// The page: build every figure, its buttons and the legends; follow the width of the window.

function button(text, pressed, onClick) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = text;
  if (pressed !== null) node.setAttribute("aria-pressed", String(pressed));
  node.addEventListener("click", () => onClick(node));
  return node;
}

/** A legend entry switches every series of its key, wherever it is drawn. */
function legendEntry({ key, label }, swatch, redrawAll) {
  const node = button("", true, () => {
    hiddenKeys[hiddenKeys.has(key) ? "delete" : "add"](key);
    document.querySelectorAll(".legend button").forEach((entry) => {
      if (entry.dataset.key === key) entry.setAttribute("aria-pressed", String(!hiddenKeys.has(key)));
    });
    redrawAll();
  });
  node.dataset.key = key;
  node.append(swatch, label);
  return node;
}

function lineSwatch(name) {
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  swatch.style.background = color(name);
  return swatch;
}

function markerSwatch({ color: name, marker, hollow }) {
  const swatch = svg("svg", { viewBox: "-6 -6 12 12", class: "swatch-marker", "aria-hidden": "true", style: `color: ${color(name)}` });
  svg("path", { d: MARKERS[marker % MARKERS.length], class: hollow ? "marker hollow" : "marker" }, swatch);
  return swatch;
}

function buildFigure(spec, redrawAll) {
  const figure = document.getElementById(`figure-${spec.id}`);
  const plot = new Plot(figure.querySelector(".plot"), spec);
  const tools = figure.querySelector(".tools");
  plot.draw();
  const resetButton = button("reset", null, () => reset());
  resetButton.hidden = true;
  const { redraw, reset } = makeInteractive(plot, (zoomed) => { resetButton.hidden = !zoomed; });
  tools.append(resetButton);
  for (const axis of ["x", "y"]) {
    if (!plot.canLog(axis)) continue;
    tools.append(button(`log ${axis}`, plot.log[axis], (node) => {
      plot.log[axis] = !plot.log[axis];
      plot.view[axis] = null;
      node.setAttribute("aria-pressed", String(plot.log[axis]));
      redraw();
    }));
  }
  const legend = figure.querySelector(".legend");
  for (const entry of spec.legend) {
    const first = spec.series.find((s) => s.key === entry.key);
    legend.append(legendEntry(entry, markerSwatch(first), redrawAll));
  }
  return redraw;
}

function buildPage() {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const redraws = [];
  const redrawAll = () => redraws.forEach((redraw) => redraw());
  for (const spec of data.figures) redraws.push(buildFigure(spec, redrawAll));
  const legend = document.getElementById("page-legend");
  if (legend) for (const entry of data.legend) legend.append(legendEntry(entry, lineSwatch(entry.color), redrawAll));
  let width = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return; // phones resize in height while scrolling
    width = document.documentElement.clientWidth;
    redrawAll();
  });
  // Paper cannot be unfolded.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((node) => { node.open = true; }));
}

buildPage();
