"use strict";
(() => {
  // Tables: a click on a head sorts by it, rising, then falling. Rows of equal value keep their order.
  const key = (row, place) => {
    const cell = row.cells[place];
    const value = cell.dataset.v;
    return value === undefined ? cell.textContent.trim() : Number(value);
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, head.cellIndex), row]);
      rows.sort(([a], [b]) => (a === "" || b === "" ? compare(a, b) : down ? compare(b, a) : compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  }

  // Figures: what a mark says stands beside the pointer, at once, and on touch. Without a script the browser says it.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll("svg title")) {
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  }
  const show = (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = mark === null;
    if (mark === null) return;
    tip.textContent = mark.dataset.tip;
    const width = tip.offsetWidth;
    const height = tip.offsetHeight;
    const x = Math.min(Math.max(event.clientX - width / 2, 4), document.documentElement.clientWidth - width - 4);
    const above = event.clientY - height - 14;
    tip.style.left = `${x}px`;
    tip.style.top = `${above < 4 ? event.clientY + 18 : above}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });

  // Paper has no folds.
  const folds = document.querySelectorAll("details");
  window.addEventListener("beforeprint", () => {
    for (const fold of folds) { fold.dataset.was = fold.open ? "1" : ""; fold.open = true; }
  });
  window.addEventListener("afterprint", () => {
    for (const fold of folds) fold.open = fold.dataset.was === "1";
  });
})();
