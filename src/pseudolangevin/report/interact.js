// Reading and zooming a figure by mouse, touch and keyboard.

const DRAG_THRESHOLD = 6; // pixels; less than this is a click

/** `onZoom` is told whether the figure is zoomed, after every change. */
function makeInteractive(plot, onZoom) {
  const { root, holder } = plot;
  const readout = document.createElement("div");
  readout.className = "readout";
  readout.setAttribute("role", "status");
  readout.hidden = true;
  holder.append(readout);
  let current = -1; // the point that the arrow keys stand on
  let drag = null;

  /** Pointer position in the units of the drawing. */
  const position = (event) => {
    const box = root.getBoundingClientRect();
    const scale = root.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  const inside = ([x, y]) => {
    const { left, right, top, bottom } = plot.area;
    return x >= left - 4 && x <= right + 4 && y >= top - 4 && y <= bottom + 4;
  };

  function hide() {
    readout.hidden = true;
    plot.overlay.replaceChildren();
  }

  function show(point) {
    const { s, i, x, y } = point;
    const { xAxis, yAxis, abscissae } = plot.spec;
    const { top, bottom } = plot.area;
    plot.overlay.replaceChildren();
    svg("path", { d: `M${x} ${top}V${bottom}`, class: "crosshair" }, plot.overlay);
    svg("circle", { cx: x, cy: y, r: 5, class: "spot", style: `color: ${color(s.color)}` }, plot.overlay);
    const error = s.error && s.error[i] ? ` ± ${formatNumber(s.error[i], 2)}` : "";
    const place = xAxis.categories ? xAxis.categories[Math.round(abscissae[s.x][i])] : formatNumber(abscissae[s.x][i], 6);
    const lines = [s.name, `${xAxis.label}: ${place}`, `${yAxis.label}: ${formatNumber(s.y[i])}${error}`];
    readout.replaceChildren(...lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    readout.hidden = false;
    const scale = holder.clientWidth / root.viewBox.baseVal.width;
    const half = readout.offsetWidth / 2;
    readout.style.left = `${Math.min(Math.max(x * scale, half), holder.clientWidth - half)}px`;
    const above = y * scale - readout.offsetHeight - 12;
    readout.style.top = `${above >= 0 ? above : y * scale + 14}px`;
  }

  function nearest([px, py]) {
    let best = -1, least = Infinity;
    plot.points.forEach(({ x, y }, index) => {
      if (x < plot.area.left - 1 || x > plot.area.right + 1) return;
      const distance = (x - px) ** 2 + (y - py) ** 2;
      if (distance < least) [least, best] = [distance, index];
    });
    return best;
  }

  function read(place) {
    current = nearest(place);
    if (current >= 0) show(plot.points[current]);
  }

  function redraw() {
    hide();
    plot.draw();
    onZoom(plot.view.x !== null || plot.view.y !== null);
  }

  function reset() {
    plot.view = { x: null, y: null };
    redraw();
  }

  /** Zoom by a factor around a point, in the axes' own (maybe logarithmic) measure. */
  function zoom(factor, [px, py], axes = ["x", "y"]) {
    for (const axis of axes) {
      const scale = plot[axis];
      const center = axis === "x" ? px : py;
      plot.view[axis] = scale.range.map((edge) => scale.invert(center + (edge - center) * factor));
    }
    redraw();
  }

  root.addEventListener("pointerdown", (event) => {
    const place = position(event);
    if (event.button !== 0 || !inside(place)) return;
    drag = { from: place, box: null };
    root.setPointerCapture(event.pointerId);
  });
  root.addEventListener("pointermove", (event) => {
    const place = position(event);
    if (!drag) {
      if (inside(place)) read(place);
      else hide();
      return;
    }
    const { left, right, top, bottom } = plot.area;
    const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
    const xs = [drag.from[0], place[0]].map((v) => clamp(v, left, right)).sort((a, b) => a - b);
    let ys = [drag.from[1], place[1]].map((v) => clamp(v, top, bottom)).sort((a, b) => a - b);
    const flat = ys[1] - ys[0] < 24; // a flat drag means: this stretch of x, all of y
    if (flat) ys = [top, bottom];
    drag.box = xs[1] - xs[0] > DRAG_THRESHOLD ? { xs, ys, flat } : null;
    hide();
    if (drag.box) svg("rect", { x: xs[0], y: ys[0], width: xs[1] - xs[0], height: ys[1] - ys[0], class: "zoom" }, plot.overlay);
  });
  root.addEventListener("pointerup", (event) => {
    const box = drag && drag.box;
    drag = null;
    if (!box) {
      if (inside(position(event))) read(position(event)); // a tap reads a point
      return;
    }
    plot.view = {
      x: box.xs.map((v) => plot.x.invert(v)),
      y: box.flat ? null : [box.ys[1], box.ys[0]].map((v) => plot.y.invert(v)),
    };
    redraw();
  });
  root.addEventListener("pointercancel", () => { drag = null; hide(); });
  root.addEventListener("pointerleave", () => { if (!drag) hide(); });
  root.addEventListener("dblclick", reset);
  // The wheel scrolls the page until a figure has been clicked.
  root.addEventListener("wheel", (event) => {
    if (document.activeElement !== root || !inside(position(event))) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, position(event), event.shiftKey ? ["x"] : ["x", "y"]);
  }, { passive: false });

  root.addEventListener("keydown", (event) => {
    const { left, right, top, bottom } = plot.area;
    const middle = [(left + right) / 2, (top + bottom) / 2];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && plot.points.length) {
      current = (current + step + plot.points.length) % plot.points.length;
      show(plot.points[current]);
    } else if (event.key === "+" || event.key === "=") zoom(0.8, middle);
    else if (event.key === "-") zoom(1.25, middle);
    else if (event.key === "0") reset();
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
  root.addEventListener("blur", hide);
  return { redraw, reset };
}
