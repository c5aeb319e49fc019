// Curves: labelled points to drag; sampled solutions, mean and band of one learner or of two side by side.

import { latest, post, showRequest } from "/page/api.js";
import { button, choice, el, legend, slider, toggle } from "/page/dom.js";
import { Plot, colours, editing, onTheme } from "/page/plot.js";

const POWERS = [1, 2, 4, 8, 16, 32, 64];
const SHOWN = 12;

export function curves(main, learners) {
  const first = learners[0].material;
  const start = first.examples[0];
  const state = { chosen: -1, draws: 16, steps: {}, best: false, truth: false, example: start, set: start.set, points: start.points.slice(0, 4).map((p) => [...p]) };
  const views = learners.slice(0, 2).map((one) => view(one, learners, state, () => changed(true)));
  state.views = views;

  const key = legend(["dot", "labelled points"], ["draw", "sampled solutions"], ["mean", "mean"], ["band", "90 % band"], ["truth", "true curve"], ["best", "best possible 90 % band (Bayes)"]);

  function request(learner) {
    const { material } = learner;
    const x = state.points.map(([x1]) => [x1, material.x2[state.set]]);
    return { support: { x, y: state.points.map((p) => p[1]) }, query: { of: state.set }, draws: Math.min(state.draws, material.most_draws),
      samples: Math.min(SHOWN, state.draws, material.most_draws), ...(material.own_steps === null ? {} : { inner_steps: state.steps[learner.name] ?? material.own_steps }) };
  }

  function changed(settled) {
    for (const one of views) {
      one.draw();
      one.ask({ body: request(one.learner), settled });
      if (state.best && settled) one.askBest({ support: request(one.learner).support, x2: one.learner.material.x2[state.set] });
    }
    key.children[4].hidden = !state.truth;
    key.children[5].hidden = !state.best;
    showRequest(`/learners/${views[0].learner.name}/predict`, request(views[0].learner));
  }

  const held = {
    add(x, y) {
      if (state.points.length >= first.most_shots) return -1;
      state.points.push([x, y]);
      return state.points.length - 1;
    },
    move(i, x, y) { state.points[i] = [Math.min(first.range[1], Math.max(first.range[0], x)), y]; },
    remove(i) { state.points.splice(i, 1); state.chosen = -1; },
    changed,
  };
  for (const one of views) editing(one.plot, () => state.points, state, held);

  const examples = choice("Example", first.examples.map((e) => [e.name, e.name]), start.name, (name) => {
    const e = first.examples.find((one) => one.name === name);
    Object.assign(state, { example: e, set: e.set, points: e.points.map((p) => [...p]), chosen: -1 });
    for (const one of views) one.plot.fresh = true;
    changed(true);
  });
  const steps = [...new Set(views.flatMap((one) => one.learner.material.inner_steps))].sort((a, b) => a - b);
  const own = first.own_steps ?? steps[0];
  main.append(
    el("p", { className: "lead", textContent: "Click or tap to add a labelled point; drag it; double-click to remove it. The learner knows six kinds of functions and must guess which one this is." }),
    el("div", { className: "tools" }, examples,
      slider("Draws", POWERS.filter((n) => n <= first.most_draws), state.draws, (n) => { state.draws = n; changed(true); }),
      steps.length ? slider("Inner steps", steps, own, (n) => {
        for (const one of views) if (one.learner.material.inner_steps.includes(n)) state.steps[one.learner.name] = n;
        changed(true);
      }) : null,
      toggle("True curve", false, (on) => { state.truth = on; changed(true); }),
      toggle("Best band", false, (on) => { state.best = on; for (const one of views) one.forgetBest(); changed(true); }),
      button("Remove point", () => { if (state.points.length) held.remove(state.chosen >= 0 ? state.chosen : state.points.length - 1); changed(true); }),
      button("Clear", () => { state.points = []; state.chosen = -1; changed(true); })),
    el("div", { className: "panels" }, ...views.map((one) => one.panel)), key);
  const redraw = () => views.forEach((one) => one.draw());
  onTheme(redraw);
  new ResizeObserver(redraw).observe(main);
  changed(true);
}

function view(learner, learners, state, again) {
  const canvas = el("canvas", { className: "plot touch" });
  canvas.setAttribute("aria-label", "Plot of labelled points and predictions. Space selects a point, arrows move it, Delete removes it, Enter adds one.");
  canvas.setAttribute("role", "application");
  const time = el("span", { className: "quiet small" });
  const one = { learner, plot: new Plot(canvas, learner.material.range), said: null, best: null };
  const others = learners.map((other) => [other.name, other.title]);
  const title = learners.length > 2 ? choice("", others, learner.name, (name) => {
    one.learner = learners.find((other) => other.name === name);
    again();
  }) : el("h2", { textContent: learner.title });
  one.panel = el("section", { className: "panel" }, el("div", { className: "panel-head" }, title, time), canvas);
  one.ask = latest(({ body }) => post(`/learners/${one.learner.name}/predict`, body), (answer, { settled }, took) => {
    one.said = answer;
    canvas.dataset.version = Number(canvas.dataset.version || 0) + 1;
    canvas.dataset.mean = answer.mean[60];
    time.textContent = `${answer.shots} points, ${answer.draws} ${answer.draws > 1 ? "draws" : "draw"}, ${Math.round(took)} ms`;
    state.views.forEach((other) => other.draw(settled));
  });
  one.askBest = latest((body) => post(`/learners/${one.learner.name}/optimum`, body), (answer) => { one.best = answer; one.draw(); });
  one.forgetBest = () => { one.best = null; };
  one.draw = (settled = false) => draw(one, state, settled);
  return one;
}

// All that must fit in: the same for both views, so that they can be compared.
function heights(state, truth) {
  const values = [-2, 2, ...state.points.map((p) => p[1]), ...truth.map((p) => p[1])];
  for (const { said, best } of state.views) {
    if (said) values.push(...said.low, ...said.high);
    if (state.best && best) values.push(...best.low, ...best.high);
  }
  return values;
}

function draw(one, state, settled) {
  const { plot, said, learner } = one, colour = colours(), grid = learner.material.grid;
  const truth = state.truth ? state.example.truth : [];
  plot.reach(heights(state, truth), settled);
  plot.begin(colour);
  if (said) {
    plot.band(grid, said.low, said.high, colour.band, 0.17);
    said.samples.forEach((ys, i) => { if (said.samples.length > 1) plot.line(grid, ys, colour.samples[i % 6], 1.3, [], 0.75); });
  }
  if (state.best && one.best) plot.band(grid, one.best.low, one.best.high, colour.best, 0.07, true);
  if (truth.length) plot.line(truth.map((p) => p[0]), truth.map((p) => p[1]), colour.truth, 2, [7, 5]);
  if (said) plot.line(grid, said.mean, colour.mean, 2.6);
  plot.points(state.points, state.chosen, colour);
  plot.end();
}
