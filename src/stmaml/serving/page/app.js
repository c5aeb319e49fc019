// The page: which learners there are, one tab for each kind of task.

import { complain, get } from "/page/api.js";
import { button, el, prose } from "/page/dom.js";
import { curves } from "/page/curves.js";
import { pixels } from "/page/pixels.js";
import { years } from "/page/years.js";
import { table } from "/page/table.js";

const PAGES = {
  curves: ["Curves", curves],
  pixels: ["Pictures", pixels],
  years: ["Weather", years],
  table: ["Table", table],
};
const main = document.getElementById("main");
const tabs = document.getElementById("tabs");

function showCards(learners) {
  const card = document.getElementById("card"), text = document.getElementById("card-text");
  const told = learners.filter((one) => one.card);
  card.hidden = !told.length;
  text.replaceChildren(...told.flatMap((one) => prose(one.card)));
}

let newest = 0;

// A learner once it can be asked; while it is compiled, the page says so, unless another tab was chosen meanwhile.
async function ready(name, number) {
  for (;;) {
    const found = await get(`/learners/${name}`);
    if (found.ready || number !== newest) return found;
    main.replaceChildren(el("p", { className: "quiet", textContent: `${found.title} is getting ready. The first time takes longest.` }));
    await new Promise((go) => { setTimeout(go, 700); });
  }
}

async function open(page, listed) {
  const number = ++newest;
  for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.dataset.page === page));
  const learners = await Promise.all(listed.filter((one) => one.page === page).map((one) => ready(one.name, number)));
  if (number !== newest) return; // another tab was chosen meanwhile
  main.replaceChildren();
  showCards(learners);
  PAGES[page][1](main, learners);
  main.dataset.page = PAGES[page][0];
}

async function begin() {
  const { learners } = await get("/learners");
  const pages = Object.keys(PAGES).filter((page) => learners.some((one) => one.page === page));
  const show = (page) => open(page, learners).catch((error) => complain(error.message));
  tabs.append(...pages.map((page) => button(PAGES[page][0], () => show(page), { role: "tab", data: { page } })));
  if (pages.length) await open(pages[0], learners);
  else main.replaceChildren(el("p", { textContent: "There is no learner to show." }));
}

begin().catch((error) => {
  main.replaceChildren(el("p", { textContent: error.message }));
});
