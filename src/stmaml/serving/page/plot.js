// A plot on a canvas: axes, bands, lines, points, and where the pointer is in the units of the data.

const LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 28;

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const all = ["ink", "quiet", "line", "grid", "card", "point", "band", "mean", "best", "truth", "unseen", "accent"];
  return { ...Object.fromEntries(all.map((name) => [name, named(name)])), samples: [0, 1, 2, 3, 4, 5].map((i) => named(`s${i}`)) };
}

export function onTheme(act) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", act);
}

export class Plot {
  constructor(canvas, xRange, ticks = null) {
    this.canvas = canvas;
    this.x = xRange;
    this.y = [-1, 1];
    this.fresh = true;
    this.ticks = ticks;
    this.context = canvas.getContext("2d");
  }

  size() {
    const box = this.canvas.getBoundingClientRect();
    return [box.width, box.height];
  }

  // Widens the vertical range to hold the values; narrows it only if `settle` and half of it would be empty, so that
  // nothing jumps under the hand.
  reach(values, settle) {
    const sorted = values.filter(Number.isFinite);
    let low = Math.min(...sorted), high = Math.max(...sorted);
    if (!sorted.length) [low, high] = [-1, 1];
    const room = Math.max(1e-3, (high - low) * 0.08, (Math.abs(high) + Math.abs(low)) * 0.01);
    low -= room; high += room;
    const empty = high - low < 0.5 * (this.y[1] - this.y[0]);
    this.y = settle && (empty || this.fresh) ? [low, high] : [Math.min(this.y[0], low), Math.max(this.y[1], high)];
    if (settle) this.fresh = false;
    this.canvas.dataset.range = this.y;
  }

  px(x) { const [w] = this.size(); return LEFT + (x - this.x[0]) / (this.x[1] - this.x[0]) * (w - LEFT - RIGHT); }
  py(y) { const [, h] = this.size(); return h - BOTTOM - (y - this.y[0]) / (this.y[1] - this.y[0]) * (h - TOP - BOTTOM); }

  // Where an event is, in the units of the data, kept inside the plot.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const along = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const up = (box.height - BOTTOM - (event.clientY - box.top)) / (box.height - TOP - BOTTOM);
    const inside = (part) => Math.min(1, Math.max(0, part));
    return [this.x[0] + inside(along) * (this.x[1] - this.x[0]), this.y[0] + inside(up) * (this.y[1] - this.y[0])];
  }

  // The index of the point under an event, or -1; fingers need more room than a mouse.
  near(event, points) {
    const box = this.canvas.getBoundingClientRect();
    const reach = event.pointerType === "touch" ? 26 : 14;
    let best = -1, least = reach * reach;
    points.forEach(([x, y], i) => {
      const d = (this.px(x) - (event.clientX - box.left)) ** 2 + (this.py(y) - (event.clientY - box.top)) ** 2;
      if (d < least) { least = d; best = i; }
    });
    return best;
  }

  begin(colour) {
    const [w, h] = this.size(), ratio = window.devicePixelRatio || 1, c = this.context;
    if (this.canvas.width !== Math.round(w * ratio) || this.canvas.height !== Math.round(h * ratio)) {
      this.canvas.width = Math.round(w * ratio); this.canvas.height = Math.round(h * ratio);
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, w, h);
    c.font = "12px system-ui, sans-serif";
    c.lineWidth = 1;
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const value of steps(...this.y, 6)) {
      const y = Math.round(this.py(value)) + 0.5;
      c.strokeStyle = colour.grid; c.beginPath(); c.moveTo(LEFT, y); c.lineTo(w - RIGHT, y); c.stroke();
      c.fillStyle = colour.quiet; c.fillText(Number(value.toPrecision(6)), LEFT - 7, y);
    }
    c.textAlign = "center"; c.textBaseline = "top";
    const marks = this.ticks || steps(...this.x, Math.max(3, Math.floor(w / 90))).map((value) => [value, Number(value.toPrecision(6))]);
    const every = this.ticks && w < 560 ? 2 : 1;
    marks.forEach(([value, words], i) => {
      if (i % every) return;
      const x = Math.round(this.px(value)) + 0.5;
      c.strokeStyle = colour.grid; c.beginPath(); c.moveTo(x, TOP); c.lineTo(x, h - BOTTOM); c.stroke();
      c.fillStyle = colour.quiet; c.fillText(words, x, h - BOTTOM + 7);
    });
    c.save(); c.beginPath(); c.rect(LEFT, TOP, w - LEFT - RIGHT, h - TOP - BOTTOM); c.clip();
  }

  end() { this.context.restore(); }

  _trace(xs, ys, close = false) {
    const c = this.context;
    xs.forEach((x, i) => { if (i || close) c.lineTo(this.px(x), this.py(ys[i])); else c.moveTo(this.px(x), this.py(ys[i])); });
  }

  band(xs, low, high, colour, alpha = 0.2, dashed = false) {
    const c = this.context;
    c.beginPath(); this._trace(xs, low); this._trace([...xs].reverse(), [...high].reverse(), true); c.closePath();
    c.globalAlpha = alpha; c.fillStyle = colour; c.fill(); c.globalAlpha = 1;
    if (dashed) { this.line(xs, low, colour, 1.5, [6, 4]); this.line(xs, high, colour, 1.5, [6, 4]); }
  }

  line(xs, ys, colour, width, dash = [], alpha = 1) {
    const c = this.context;
    c.beginPath(); this._trace(xs, ys);
    c.strokeStyle = colour; c.lineWidth = width; c.setLineDash(dash); c.lineJoin = "round"; c.globalAlpha = alpha; c.stroke();
    c.setLineDash([]); c.globalAlpha = 1;
  }

  points(points, chosen, colour) {
    const c = this.context;
    points.forEach(([x, y], i) => {
      c.beginPath(); c.arc(this.px(x), this.py(y), i === chosen ? 8 : 6, 0, 7);
      c.fillStyle = colour.point; c.fill();
      c.lineWidth = 2; c.strokeStyle = i === chosen ? colour.ink : colour.card; c.stroke();
    });
  }
}

function steps(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
  return found;
}

// Points that are added, dragged and removed by pointer or key; `move(i, x, y)` may snap them, `changed(done)` follows.
export function editing(plot, points, state, { add, move, remove, changed }) {
  const { canvas } = plot;
  let held = -1;
  canvas.tabIndex = 0;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    held = plot.near(event, points());
    if (held < 0) held = add(...plot.at(event));
    if (held < 0) return;
    state.chosen = held;
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    changed(false);
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held < 0) { canvas.style.cursor = plot.near(event, points()) >= 0 ? "grab" : "crosshair"; return; }
    move(held, ...plot.at(event));
    changed(false);
  });
  const release = () => { if (held >= 0) { held = -1; changed(true); } };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", (event) => {
    const i = plot.near({ clientX: event.clientX, clientY: event.clientY, pointerType: "touch" }, points());
    if (i >= 0) { remove(i); changed(true); }
  });
  canvas.addEventListener("keydown", (event) => {
    const all = points(), i = state.chosen, [x, y] = all[i] || [0, 0];
    const dx = (plot.x[1] - plot.x[0]) / 100, dy = (plot.y[1] - plot.y[0]) / 50;
    const moves = { ArrowLeft: [-dx, 0], ArrowRight: [dx, 0], ArrowUp: [0, dy], ArrowDown: [0, -dy] };
    if (event.key in moves && all[i]) move(i, x + moves[event.key][0], y + moves[event.key][1]);
    else if ((event.key === "Delete" || event.key === "Backspace") && all[i]) remove(i);
    else if (event.key === " " && all.length) state.chosen = (i + 1) % all.length;
    else if (event.key === "Enter" || event.key === "+") state.chosen = add((plot.x[0] + plot.x[1]) / 2, (plot.y[0] + plot.y[1]) / 2);
    else return;
    event.preventDefault();
    changed(true);
  });
}
