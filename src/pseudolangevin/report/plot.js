// One figure as SVG: axes, curves, points, bands, reference lines. Interaction is in interact.js.

const SVG = "http://www.w3.org/2000/svg";
const hiddenKeys = new Set(); // what legends have switched off, over the whole page

function svg(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

const color = (name) => `var(--${name})`;
const DASHES = { solid: "none", dash: "6 4", dot: "1.5 3.5" };

// Marker shapes around the origin; shape as well as colour tells series apart.
const MARKERS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
  "M-3.6 -3.6H3.6V3.6H-3.6Z",
  "M0 -4.8L4.6 3.4H-4.6Z",
  "M0 -5L5 0L0 5L-5 0Z",
  "M0 4.8L4.6 -3.4H-4.6Z",
];

class Plot {
  constructor(holder, spec) {
    this.holder = holder;
    this.spec = spec;
    this.log = { x: spec.xAxis.log, y: spec.yAxis.log };
    this.view = { x: null, y: null }; // null: fit the data
    this.root = svg("svg", { role: "img", tabindex: 0, "aria-label": this.description() });
    holder.prepend(this.root);
  }

  description() {
    const { title, xAxis, yAxis, series } = this.spec;
    const names = [...new Set(series.map((s) => s.name))];
    const listed = names.slice(0, 6).join("; ") + (names.length > 6 ? `; and ${names.length - 6} more` : "");
    return `${title}: ${yAxis.label} against ${xAxis.label}. Shown: ${listed}. Arrow keys read points, plus and minus zoom, 0 resets.`;
  }

  visibleSeries() {
    return this.spec.series.filter((s) => !hiddenKeys.has(s.key));
  }

  /** Whether a logarithmic axis could show anything. */
  canLog(axis) {
    if (this.spec[axis + "Axis"].categories) return false;
    const positive = (values) => values.some((value) => value > 0);
    return this.spec.series.some((s) => positive(axis === "x" ? this.spec.abscissae[s.x] : s.y));
  }

  /** Smallest and largest value to show, with a margin; what lies outside the zoomed x range does not count for y. */
  domain(axis) {
    if (this.view[axis]) return this.view[axis];
    const log = this.log[axis];
    let low = Infinity, high = -Infinity;
    const include = (value) => {
      if (value === null || !Number.isFinite(value) || (log && value <= 0)) return;
      if (value < low) low = value;
      if (value > high) high = value;
    };
    // Some figures fit what is averaged and let the start of the run leave the frame.
    const range = this.view.x || (this.spec.fitKept && this.spec.shade ? [this.spec.shade[1], Infinity] : null);
    const visible = this.visibleSeries();
    for (const s of visible.length ? visible : this.spec.series) {
      const x = this.spec.abscissae[s.x];
      for (let i = 0; i < x.length; i++) {
        if (axis === "x") {
          if (s.y[i] !== null) include(x[i]);
          continue;
        }
        if (range && (x[i] < range[0] || x[i] > range[1])) continue;
        include(s.y[i]);
        if (s.low) include(s.low[i]), include(s.high[i]);
        if (s.error && s.error[i] !== null && s.y[i] !== null) include(s.y[i] - s.error[i]), include(s.y[i] + s.error[i]);
      }
    }
    const categories = this.spec[axis + "Axis"].categories;
    if (categories) return [-0.5, categories.length - 0.5];
    if (axis === "y") for (const line of this.spec.references) include(line.value);
    if (low > high) return log ? [0.1, 1] : [0, 1];
    const margin = this.spec[axis + "Axis"].tight ? 0 : 0.06;
    if (log) {
      const span = Math.max(Math.log10(high / low), 0.02) || 1;
      const extra = low === high ? 0.2 : span * margin;
      return [low / 10 ** extra, high * 10 ** extra];
    }
    const extra = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * margin;
    return [low - extra, high + extra];
  }

  /** Draw everything anew; a few thousand points take a few milliseconds. */
  draw() {
    const width = Math.max(240, this.holder.clientWidth || 480);
    const height = Math.round(Math.min(300, Math.max(210, width * 0.62)));
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.root.replaceChildren();
    const yDomain = this.domain("y");
    const yTicks = new Scale(yDomain, [0, 1], this.log.y).ticks(Math.max(3, height / 42));
    const widest = Math.max(...yTicks.ticks.map((tick) => tick.label.length), 2);
    const area = { left: 26 + widest * 6.4, right: width - 16, top: 8, bottom: height - 40 };
    this.area = area;
    this.x = new Scale(this.domain("x"), [area.left, area.right], this.log.x);
    this.y = new Scale(yDomain, [area.bottom, area.top], this.log.y);
    this.drawAxes(yTicks);
    const clip = `clip-${this.spec.id}`;
    const frame = { x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top };
    svg("rect", frame, svg("clipPath", { id: clip }, this.root));
    const layer = svg("g", { "clip-path": `url(#${clip})`, class: "data" }, this.root);
    this.drawShade(layer);
    this.points = [];
    for (const s of this.visibleSeries()) this.drawSeries(s, layer);
    this.drawReferences(layer);
    this.overlay = svg("g", { class: "overlay" }, this.root);
  }

  drawAxes(yTicks) {
    const { left, right, top, bottom } = this.area;
    const axes = svg("g", { class: "axes" }, this.root);
    const { xAxis, yAxis } = this.spec;
    const xTicks = xAxis.categories
      ? { ticks: xAxis.categories.map((label, value) => ({ value, label })), factor: "" }
      : this.x.ticks(Math.max(2, (right - left) / 68));
    for (const { value, label } of xTicks.ticks) {
      const x = this.x.map(value);
      if (!(x >= left - 1 && x <= right + 1)) continue;
      svg("line", { x1: x, x2: x, y1: top, y2: bottom, class: label ? "gridline" : "gridline minor" }, axes);
      svg("text", { x: Math.min(x, right + 15 - label.length * 3), y: bottom + 15, "text-anchor": "middle" }, axes, label);
    }
    for (const { value, label } of yTicks.ticks) {
      const y = this.y.map(value);
      if (!(y >= top - 1 && y <= bottom + 1)) continue;
      svg("line", { x1: left, x2: right, y1: y, y2: y, class: label ? "gridline" : "gridline minor" }, axes);
      svg("text", { x: left - 6, y: y + 3.5, "text-anchor": "end" }, axes, label);
    }
    svg("path", { d: `M${left} ${top}V${bottom}H${right}`, class: "frame" }, axes);
    const factor = xTicks.factor ? `  (${xTicks.factor})` : "";
    svg("text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle", class: "label" }, axes, xAxis.label + factor);
    const label = yAxis.label + (yTicks.factor ? `  (${yTicks.factor})` : "");
    svg("text", { transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "label" }, axes, label);
  }

  drawShade(layer) {
    const { left, right, top, bottom } = this.area;
    if (!this.spec.shade) return;
    const [from, to] = this.spec.shade.map((value) => Math.min(right, Math.max(left, this.x.map(value) || left)));
    svg("rect", { x: from, width: Math.max(0, to - from), y: top, height: bottom - top, class: "shade" }, layer);
  }

  drawReferences(layer) {
    const { left, right, top } = this.area;
    for (const { value, label } of this.spec.references) {
      const y = this.y.map(value);
      if (!Number.isFinite(y)) continue;
      svg("line", { x1: left, x2: right, y1: y, y2: y, class: "reference" }, layer);
      svg("text", { x: right - 4, y: y < top + 14 ? y + 12 : y - 4, "text-anchor": "end", class: "reference" }, layer, label);
    }
  }

  drawSeries(s, layer) {
    const xs = this.spec.abscissae[s.x];
    const group = svg("g", { class: `series ${s.mark}`, "data-key": s.key, style: `color: ${color(s.color)}` }, layer);
    if (s.mark === "band") {
      this.drawBand(s, xs, group);
      return;
    }
    let path = "", pen = false;
    const errors = [];
    for (let i = 0; i < xs.length; i++) {
      const x = this.x.map(xs[i]), y = this.y.map(s.y[i]);
      if (!Number.isFinite(x) || !Number.isFinite(y)) {
        pen = false; // a gap in the data is a gap in the curve
        continue;
      }
      this.points.push({ s, i, x, y });
      if (s.mark === "points") {
        const error = s.error ? s.error[i] : null;
        if (error) errors.push(this.errorBar(x, s.y[i], error));
        svg("path", { d: MARKERS[s.marker % MARKERS.length], transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, class: s.hollow ? "marker hollow" : "marker" }, group);
      } else {
        path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
        // A record between two gaps would be an invisible curve of no length.
        if (!pen && (i + 1 === xs.length || s.y[i + 1] === null)) svg("circle", { cx: x, cy: y, r: 2.5, class: "marker" }, group);
        pen = true;
      }
    }
    if (errors.length) group.prepend(svg("path", { d: errors.join(""), class: "error" }));
    if (path) svg("path", { d: path, class: "curve", "stroke-dasharray": DASHES[s.dash] }, group);
  }

  errorBar(x, value, error) {
    const top = this.y.map(value + error);
    const bottom = this.y.map(value - error);
    const foot = Number.isFinite(bottom) ? bottom : this.area.bottom;
    return `M${x} ${top}V${foot}M${x - 3} ${top}h6M${x - 3} ${foot}h6`;
  }

  drawBand(s, xs, group) {
    const edge = (values) => xs.map((value, i) => [this.x.map(value), this.y.map(values[i])]);
    const floor = (pair) => [pair[0], Number.isFinite(pair[1]) ? pair[1] : this.area.bottom];
    const outline = [...edge(s.high), ...edge(s.low).map(floor).reverse()].filter((pair) => pair.every(Number.isFinite));
    if (outline.length) svg("path", { d: "M" + outline.map((pair) => pair.map((v) => v.toFixed(1)).join(" ")).join("L") + "Z", class: "band" }, group);
  }
}
