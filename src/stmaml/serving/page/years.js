// A station's year: labelled days to add and drag; what the learner says of all other days.

import { latest, post, showRequest } from "/page/api.js";
import { button, choice, el, legend, slider, toggle } from "/page/dom.js";
import { Plot, colours, editing, onTheme } from "/page/plot.js";

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const STARTS = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
const POWERS = [1, 2, 4, 8, 16, 32, 64];

export function years(main, learners) {
  const all = learners[0].material.years;
  const state = { chosen: -1, draws: 16, steps: {}, snap: true, truth: true, year: all[0], days: [] };
  const begin = (year) => Object.assign(state, { year, chosen: -1, days: year.rows.map((row) => [row, year.truth[row]]) });
  begin(all[0]);
  const views = learners.slice(0, 2).map((one) => view(one, state));
  const points = () => state.days.map(([row, y]) => [state.year.axis[row], y]);

  function request({ name, material }) {
    return { support: { of: state.year.name, rows: state.days.map((d) => d[0]), y: state.days.map((d) => d[1]) }, query: { of: state.year.name },
      draws: Math.min(state.draws, material.most_draws), samples: 0,
      ...(material.own_steps === null ? {} : { inner_steps: state.steps[name] ?? material.own_steps }) };
  }

  function changed(settled) {
    for (const one of views) {
      one.draw();
      one.ask({ body: request(one.learner), settled });
    }
    showRequest(`/learners/${views[0].learner.name}/predict`, request(views[0].learner));
  }

  const nearest = (day) => {
    const gaps = state.year.axis.map((other) => Math.abs(other - day));
    return gaps.indexOf(Math.min(...gaps));
  };
  const put = (x, y) => { const row = nearest(x); return [row, state.snap ? state.year.truth[row] : y]; };
  const held = {
    add(x, y) { if (state.days.length >= learners[0].material.most_shots) return -1; state.days.push(put(x, y)); return state.days.length - 1; },
    move(i, x, y) { state.days[i] = put(x, y); },
    remove(i) { state.days.splice(i, 1); state.chosen = -1; },
    changed,
  };
  for (const one of views) editing(one.plot, points, state, held);
  const steps = [...new Set(views.flatMap((one) => one.learner.material.inner_steps))].sort((a, b) => a - b);
  main.append(
    el("p", { className: "lead", textContent: "Click a day to tell the learner its temperature, drag it to another, double-click to remove it. Of all other days it knows the time of year and the rest of the weather, not the place." }),
    el("div", { className: "tools" },
      choice("Station", all.map((year) => [year.name, year.name]), all[0].name, (name) => { begin(all.find((year) => year.name === name)); for (const one of views) one.plot.fresh = true; changed(true); }),
      slider("Draws", POWERS.filter((n) => n <= learners[0].material.most_draws), state.draws, (n) => { state.draws = n; changed(true); }),
      steps.length ? slider("Inner steps", steps, learners[0].material.own_steps ?? steps[0], (n) => {
        for (const one of views) if (one.learner.material.inner_steps.includes(n)) state.steps[one.learner.name] = n;
        changed(true);
      }) : null,
      toggle("At true temperature", true, (on) => { state.snap = on; }),
      toggle("Truth", true, (on) => { state.truth = on; changed(true); }),
      button("Clear", () => { state.days = []; state.chosen = -1; changed(true); })),
    el("div", { className: "panels" }, ...views.map((one) => one.panel)),
    legend(["dot", "labelled days"], ["mean", "prediction, °F"], ["band", "90 % band"], ["truth", "truth"]));
  const redraw = () => views.forEach((one) => one.draw());
  onTheme(redraw);
  new ResizeObserver(redraw).observe(main);
  changed(true);
}

function view(learner, state) {
  const canvas = el("canvas", { className: "plot touch" });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "A year of temperatures. Space selects a labelled day, arrows move it, Delete removes it, Enter adds one.");
  const told = el("span", { className: "quiet small" }), score = el("p", { className: "quiet small" });
  const one = { learner, plot: new Plot(canvas, [-2, 367], STARTS.map((start, i) => [start, MONTHS[i]])), said: null };
  one.panel = el("section", { className: "panel" }, el("div", { className: "panel-head" }, el("h2", { textContent: learner.title }), told), canvas, score);
  one.ask = latest(({ body }) => post(`/learners/${learner.name}/predict`, body), (answer, { settled }, took) => {
    one.said = answer;
    canvas.dataset.version = Number(canvas.dataset.version || 0) + 1;
    canvas.dataset.mean = answer.mean[100];
    told.textContent = `${answer.shots} labelled days, ${Math.round(took)} ms`;
    score.textContent = judged(answer, state);
    one.draw(settled);
  });
  one.draw = (settled = false) => draw(one, state, settled);
  return one;
}

function judged(said, state) {
  const seen = new Set(state.days.map((day) => day[0]));
  const rows = [...state.year.truth.keys()].filter((row) => !seen.has(row) && row < said.mean.length);
  if (!rows.length) return "";
  const off = rows.reduce((sum, row) => sum + Math.abs(said.mean[row] - state.year.truth[row]), 0) / rows.length;
  const inside = rows.filter((row) => state.year.truth[row] >= said.low[row] && state.year.truth[row] <= said.high[row]).length / rows.length;
  return `Other days: off by ${off.toFixed(1)} °F on average, ${Math.round(100 * inside)} % within the band.`;
}

function draw(one, state, settled) {
  const { plot, said } = one, colour = colours(), { axis, truth } = state.year;
  const fits = said && said.mean.length === axis.length;
  plot.reach([...truth, ...state.days.map((day) => day[1]), ...(fits ? [...said.low, ...said.high] : [])], settled);
  plot.begin(colour);
  if (fits) plot.band(axis, said.low, said.high, colour.band, 0.18);
  if (state.truth) plot.line(axis, truth, colour.truth, 1.2);
  if (fits) plot.line(axis, said.mean, colour.mean, 2);
  plot.points(state.days.map(([row, y]) => [axis[row], y]), state.chosen, colour);
  plot.end();
}
