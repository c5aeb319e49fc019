// Pixels: reveal or paint some, and watch what the learner makes of all.

import { latest, post, showRequest } from "/page/api.js";
import { button, choice, el, slider, toggle } from "/page/dom.js";
import { colours, onTheme } from "/page/plot.js";

const SAMPLES = 4;

export function pixels(main, learners) {
  const { shape: [height, width], pictures } = learners[0].material;
  const state = { known: new Map(), picture: pictures[0] || null, tool: pictures.length ? "reveal" : "white", brush: 1, draws: 16, truth: false, cursor: null };
  const studio = el("canvas", { className: "touch", width, height, tabIndex: 0 });
  studio.setAttribute("role", "application");
  studio.setAttribute("aria-label", "Picture to reveal or paint. Arrow keys move, Space reveals or paints.");
  const count = el("figcaption");
  const views = learners.slice(0, 2).map((one) => view(one, width, height));

  function request(material) {
    const rows = [...state.known.keys()];
    return { support: { of: "pixels", rows, y: rows.map((row) => state.known.get(row)) }, query: { of: "pixels" },
      draws: Math.min(state.draws, material.most_draws), samples: Math.min(SAMPLES, state.draws, material.most_draws) };
  }

  function changed() {
    drawStudio();
    count.textContent = `${state.known.size} of ${width * height} pixels seen`;
    for (const one of views) one.ask(request(one.learner.material));
    showRequest(`/learners/${learners[0].name}/predict`, request(learners[0].material));
  }

  function drawStudio() {
    const colour = rgb(colours().unseen);
    paint(studio, width, height, (row) => {
      if (state.known.has(row)) return grey(state.known.get(row));
      if (!state.truth || !state.picture) return colour;
      const value = state.picture.grey[row];
      return colour.map((part) => part * 0.72 + value * 0.28);
    });
    if (state.cursor !== null) {
      const context = studio.getContext("2d");
      context.fillStyle = "#ff9259";
      context.fillRect(state.cursor % width, Math.floor(state.cursor / width), 1, 1);
    }
  }

  function touch(row) {
    const x = row % width, y = Math.floor(row / width), r = state.brush - 1;
    for (let dy = -r; dy <= r; dy++) {
      for (let dx = -r; dx <= r; dx++) {
        if (x + dx < 0 || x + dx >= width || y + dy < 0 || y + dy >= height) continue;
        one((y + dy) * width + x + dx);
      }
    }
  }

  function one(row) {
    if (state.tool === "hide") state.known.delete(row);
    else if (state.tool === "reveal" && state.picture) state.known.set(row, state.picture.grey[row] / 255);
    else state.known.set(row, state.tool === "black" ? 0 : 1);
  }

  function place(event) {
    const box = studio.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / box.width * width), y = Math.floor((event.clientY - box.top) / box.height * height);
    return x < 0 || y < 0 || x >= width || y >= height ? -1 : y * width + x;
  }

  let last = -1;
  studio.addEventListener("pointerdown", (event) => {
    last = place(event);
    if (last < 0) return;
    studio.setPointerCapture(event.pointerId);
    state.cursor = null;
    touch(last);
    changed();
    event.preventDefault();
  });
  studio.addEventListener("pointermove", (event) => {
    if (last < 0 || !event.buttons) return;
    const now = place(event);
    if (now < 0) return;
    for (const row of between(last, now, width)) touch(row);
    last = now;
    changed();
  });
  studio.addEventListener("pointerup", () => { last = -1; });
  studio.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
    if (event.key in moves) {
      const next = (state.cursor ?? Math.floor(height / 2) * width + Math.floor(width / 2)) + moves[event.key];
      if (next >= 0 && next < width * height) state.cursor = next;
      drawStudio();
    } else if (event.key === " " && state.cursor !== null) { touch(state.cursor); changed(); } else return;
    event.preventDefault();
  });

  function random(number) {
    const hidden = [...Array(width * height).keys()].filter((row) => !state.known.has(row));
    for (let i = 0; i < number && hidden.length; i++) {
      const [row] = hidden.splice(Math.floor(Math.random() * hidden.length), 1);
      if (state.picture) state.known.set(row, state.picture.grey[row] / 255);
    }
    changed();
  }

  const thumbs = pictures.map((picture) => {
    const canvas = el("canvas", { width, height });
    paint(canvas, width, height, (row) => grey(picture.grey[row] / 255));
    const pick = el("button", { type: "button", title: picture.name, on: { click: () => {
      state.picture = picture;
      for (const row of state.known.keys()) state.known.set(row, picture.grey[row] / 255);
      for (const other of thumbs) other.classList.toggle("on", other === pick);
      changed();
    } } }, canvas);
    pick.setAttribute("aria-label", picture.name);
    return pick;
  });
  if (thumbs.length) thumbs[0].classList.add("on");
  const tools = [...(pictures.length ? [["reveal", "reveal the picture"]] : []), ["white", "paint white"], ["black", "paint black"], ["hide", "hide again"]];
  main.append(
    el("p", { className: "lead", textContent: "Drag over the picture to reveal its pixels, or paint your own. From what is seen, the learner guesses the rest: four samples, their mean and how far they differ." }),
    el("div", { className: "tools" },
      choice("Tool", tools, state.tool, (tool) => { state.tool = tool; }),
      slider("Brush", [1, 2, 3], 1, (size) => { state.brush = size; }),
      pictures.length ? button("Reveal 20 at random", () => random(20)) : null,
      pictures.length ? toggle("Hint", false, (on) => { state.truth = on; drawStudio(); }) : null,
      button("Clear", () => { state.known.clear(); changed(); })),
    el("div", { className: "studio" },
      el("div", { className: "panel" }, el("figure", {}, studio, count), el("div", { className: "thumbs" }, ...thumbs)),
      el("div", { className: "panels" }, ...views.map((v) => v.panel))));
  onTheme(() => { drawStudio(); views.forEach((v) => v.draw()); });
  if (pictures.length) random(24); else changed();
}

function view(learner, width, height) {
  const draws = learner.material.most_draws;
  const names = [...Array(SAMPLES).keys()].map((i) => `sample ${i + 1}`).concat("mean", "spread");
  const figures = names.map((name) => {
    const canvas = el("canvas", { width, height });
    return { name, canvas, figure: el("figure", {}, canvas, el("figcaption", { textContent: name })) };
  });
  const time = el("span", { className: "quiet small" });
  const one = { learner, said: null };
  one.panel = el("section", { className: "panel" },
    el("div", { className: "panel-head" }, el("h2", { textContent: learner.title }), time),
    el("div", { className: "pictures" }, ...figures.map((f) => f.figure)));
  one.draw = () => {
    if (!one.said) return;
    const { samples, mean, std, task_std: spread } = one.said;
    const several = samples.length > 1;
    figures.slice(0, SAMPLES).forEach((f, i) => {
      f.figure.hidden = several ? i >= samples.length : true;
      if (several && samples[i]) paint(f.canvas, width, height, (row) => grey(samples[i][row]));
    });
    figures[4].figure.lastChild.textContent = several ? "mean" : "its one answer";
    paint(figures[4].canvas, width, height, (row) => grey(mean[row]));
    const shown = several ? spread : std;
    const most = Math.max(1e-6, ...shown);
    figures[5].figure.lastChild.textContent = `${several ? "spread" : "doubt"}, up to ${most.toPrecision(2)}`;
    paint(figures[5].canvas, width, height, (row) => heat(shown[row] / most));
  };
  one.ask = latest((body) => post(`/learners/${learner.name}/predict`, body), (answer, body, took) => {
    one.said = answer;
    one.panel.dataset.version = Number(one.panel.dataset.version || 0) + 1;
    one.panel.dataset.mean = answer.mean.reduce((a, b) => a + b, 0);
    time.textContent = `${Math.round(took)} ms`;
    one.draw();
  });
  return one;
}

function paint(canvas, width, height, colour) {
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let row = 0; row < width * height; row++) {
    const [r, g, b] = colour(row);
    image.data.set([r, g, b, 255], 4 * row);
  }
  context.putImageData(image, 0, 0);
}

const grey = (value) => Array(3).fill(255 * Math.min(1, Math.max(0, value)));
const heat = (value) => [255 * Math.min(1, value * 1.6), 255 * Math.max(0, value * 1.5 - 0.35), 60 + 90 * value * (1 - value) * 2];

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function between(from, to, width) {
  const [x0, y0, x1, y1] = [from % width, Math.floor(from / width), to % width, Math.floor(to / width)];
  const n = Math.max(Math.abs(x1 - x0), Math.abs(y1 - y0), 1);
  return [...Array(n + 1).keys()].map((i) => Math.round(y0 + (y1 - y0) * i / n) * width + Math.round(x0 + (x1 - x0) * i / n));
}
