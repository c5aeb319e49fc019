// A table: rows of one group to edit or paste. Rows with a label are learnt from, the others are predicted.

import { latest, post, showRequest } from "/page/api.js";
import { button, choice, el } from "/page/dom.js";

const MOST = 200;

export function table(main, learners) {
  const holder = el("div");
  const open = (name) => holder.replaceChildren(...sheet(learners.find((one) => one.name === name)));
  if (learners.length > 1) {
    main.append(el("div", { className: "tools" }, choice("Table", learners.map((one) => [one.name, one.title]), learners[0].name, open)));
  } else main.append(el("h2", { textContent: learners[0].title }));
  main.append(holder);
  open(learners[0].name);
}

function sheet(learner) {
  const { columns, target, task } = learner.material;
  const names = columns.map((column) => column.name);
  const all = [...names, target.name];
  const state = { rows: learner.material.rows.map((row) => all.map((name) => (row[name] ?? "").toString())) };
  const body = el("tbody"), notes = el("ul", { className: "notes" }), time = el("span", { className: "quiet small" });
  const lists = [...columns, { name: target.name, levels: target.classes }].map((column, i) =>
    el("datalist", { id: `levels-${i}` }, ...column.levels.map((value) => el("option", { value }))));
  const isClass = target.classes.length > 0;

  const filled = (row) => row.some((cell) => cell.trim());
  const record = (row, withLabel) => Object.fromEntries(all.map((name, i) => [name, row[i].trim()]).filter(([name, cell]) => cell && (withLabel || name !== target.name)));

  function request() {
    const used = state.rows.filter(filled);
    const known = used.filter((row) => row[names.length].trim()).map((row) => record(row, true));
    const open = used.filter((row) => !row[names.length].trim());
    const blank = Object.fromEntries(names.map((name) => [name, null]));
    const rows = used.map((row) => ({ ...blank, ...record(row, false) }));
    return { support: { rows: known }, query: { rows }, suggest: open.length ? 1 : 0 };
  }

  const ask = latest((asked) => post(`/learners/${learner.name}/predict`, asked), (answer, asked, took) => {
    show(answer);
    body.dataset.version = Number(body.dataset.version || 0) + 1;
    const known = asked.support.rows.length;
    time.textContent = `${known} labelled ${known === 1 ? "row" : "rows"}, ${Math.round(took)} ms`;
    notes.replaceChildren(...answer.notes.map((note) => el("li", { textContent: note })));
  });

  let waiting = 0;
  function changed(soon = true) {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const asked = request();
      if (!asked.query.rows.length) return;
      showRequest(`/learners/${learner.name}/predict`, asked);
      ask(asked);
    }, soon ? 120 : 0);
  }

  function cell(i, j) {
    const input = el("input", { value: state.rows[i][j], list: `levels-${j}`, autocomplete: "off", spellcheck: false,
      placeholder: j === names.length ? "?" : "",
      on: {
        input: () => { state.rows[i][j] = input.value; changed(); },
        paste: (event) => paste(event, i, j),
        keydown: (event) => {
          const down = { Enter: 1, ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (!down) return;
          const next = body.rows[i + down]?.cells[j]?.firstChild;
          if (next) { next.focus(); event.preventDefault(); }
        },
      } });
    input.setAttribute("aria-label", `${all[j]}, row ${i + 1}`);
    return el("td", { className: j === names.length ? "label" : "" }, input);
  }

  function paste(event, i, j) {
    const text = event.clipboardData.getData("text");
    if (!/[\t\n]/.test(text.trim())) return;
    event.preventDefault();
    const mark = text.includes("\t") ? "\t" : ",";
    let lines = text.replaceAll("\r", "").split("\n").filter((line) => line.trim()).map((line) => line.split(mark));
    let places = all.map((name, k) => k).slice(j);
    if (lines[0].some((word) => all.includes(word.trim()))) {
      places = lines[0].map((word) => all.indexOf(word.trim()));
      lines = lines.slice(1);
    }
    lines.slice(0, MOST - i).forEach((line, k) => {
      while (state.rows.length <= i + k) state.rows.push(all.map(() => ""));
      line.forEach((word, at) => { if (places[at] >= 0 && places[at] !== undefined) state.rows[i + k][places[at]] = word.trim(); });
    });
    build();
  }

  function build() {
    body.replaceChildren(...state.rows.map((row, i) => el("tr", {}, ...all.map((name, j) => cell(i, j)),
      el("td", { className: "said" }), el("td", { className: isClass ? "said" : "bar" }), el("td", { className: "said" }),
      el("td", {}, button("×", () => { state.rows.splice(i, 1); build(); }, { className: "bare", title: "remove this row", ariaLabel: `remove row ${i + 1}` })))));
    changed(false);
  }

  function show(answer) {
    const places = state.rows.map((row, i) => (filled(row) ? i : -1)).filter((i) => i >= 0);
    const low = isClass ? 0 : Math.min(...answer.rows.map((row) => row.q05), ...labels());
    const high = isClass ? 1 : Math.max(...answer.rows.map((row) => row.q95), ...labels());
    const unit = isClass ? 1 : Math.max(1e-9, (high - low) / 200);
    for (const line of body.rows) {
      line.classList.remove("next");
      for (const said of [...line.cells].slice(all.length, all.length + 3)) said.replaceChildren();
    }
    answer.rows.forEach((row, k) => {
      const line = body.rows[places[k]];
      if (!line) return;
      const label = state.rows[places[k]][names.length].trim();
      const [first, second, third] = [...line.cells].slice(all.length);
      first.textContent = isClass ? `${row.prediction}, ${Math.round(100 * row[`p_${row.prediction}`])} %` : to(row.prediction, unit);
      if (isClass) second.textContent = row.set90.replaceAll("|", " or ");
      else { second.replaceChildren(track(row, low, high, label)); second.title = `${to(row.q05, unit)} to ${to(row.q95, unit)}`; }
      if (!isClass) third.textContent = `${to(row.q05, unit)} to ${to(row.q95, unit)}`;
      if (row.suggested === 1 && !label) { line.classList.add("next"); first.append(" ", el("span", { className: "badge", textContent: "label next" })); }
    });
  }

  const labels = () => state.rows.map((row) => Number(row[names.length].trim() || NaN)).filter(Number.isFinite);
  const heads = [...all, "prediction", isClass ? "90 % set" : "", isClass ? "" : "90 % interval", ""];
  build();
  return [
    el("p", { className: "lead", textContent: `Rows of one group (one value of '${task}'). Fill in '${target.name}' where it is known: all other rows are predicted from these, and the row whose label would tell most is marked. Cells can be pasted from a spreadsheet.` }),
    el("div", { className: "tools" },
      button("Add row", () => { state.rows.push(all.map((name, j) => (j < names.length && state.rows.length ? state.rows.at(-1)[j] : ""))); build(); }),
      button("Remove all labels", () => { state.rows.forEach((row) => { row[names.length] = ""; }); build(); }),
      button("Empty table", () => { state.rows = [all.map(() => "")]; build(); }), time),
    el("div", { className: "sheet" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((name, j) =>
      el("th", { textContent: name, title: columns[j]?.words ?? "", scope: "col", className: j === all.length + 1 && !isClass ? "bar" : "" })))), body)),
    notes, ...lists];
}

function to(value, unit) {
  const places = Math.max(0, Math.min(8, -Math.floor(Math.log10(unit))));
  return value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: places });
}

function track(row, low, high, label) {
  const at = (value) => `${100 * (value - low) / Math.max(1e-12, high - low)}%`;
  const reach = el("span", { className: "reach" }), mid = el("span", { className: "mid" });
  reach.style.left = at(row.q05);
  reach.style.width = `${100 * (row.q95 - row.q05) / Math.max(1e-12, high - low)}%`;
  mid.style.left = at(row.prediction);
  const parts = [reach, mid];
  if (label && Number.isFinite(Number(label))) {
    const known = el("span", { className: "known" });
    known.style.left = at(Number(label));
    parts.push(known);
  }
  return el("div", { className: "track" }, ...parts);
}
