// Elements, written shortly. Text is always text, never markup.

export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function button(words, act, properties = {}) {
  return el("button", { type: "button", textContent: words, on: { click: act }, ...properties });
}

export function choice(words, options, value, act) {
  const select = el("select", { on: { change: () => act(select.value) } },
    ...options.map(([name, text]) => el("option", { value: name, textContent: text, selected: name === value })));
  if (!words) return select;
  return el("label", {}, words, select);
}

// A slider over a list of values.
export function slider(words, values, value, act) {
  const output = el("output", { textContent: value });
  const input = el("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: Math.max(0, values.indexOf(value)),
    on: { input: () => { output.textContent = values[input.value]; input.setAttribute("aria-valuetext", values[input.value]); act(values[input.value]); } } });
  input.setAttribute("aria-valuetext", value);
  return el("label", {}, words, input, output);
}

export function toggle(words, checked, act) {
  const box = el("input", { type: "checkbox", checked, on: { change: () => act(box.checked) } });
  return el("label", {}, el("span", {}, box, words));
}

export function legend(...items) {
  return el("ul", { className: "legend" }, ...items.map(([kind, words]) => el("li", {}, el("i", { className: kind }), words)));
}

// Markdown of a model card: headings, lists, tables, paragraphs, code; everything else is plain text.
export function prose(text) {
  const parts = [];
  for (const block of text.replaceAll("\r", "").split(/\n{2,}/)) {
    const lines = block.split("\n").filter((line) => line.trim());
    if (!lines.length) continue;
    const head = lines[0].match(/^(#{1,6})\s+(.*)/);
    if (head) {
      parts.push(el(`h${Math.min(6, head[1].length + 1)}`, { textContent: head[2] }));
      lines.shift();
      if (!lines.length) continue;
    }
    if (lines.every((line) => /^\s*([-*]|\d+\.)\s/.test(line) || /^\s{2,}/.test(line))) {
      const items = lines.join("\n").split(/\n(?=\s*(?:[-*]|\d+\.)\s)/);
      parts.push(el("ul", {}, ...items.map((item) => el("li", {}, ...spans(item.replace(/^\s*([-*]|\d+\.)\s+/, ""))))));
    } else if (lines.length > 1 && lines.every((line) => /^\s*\|/.test(line))) {
      parts.push(sheet(lines));
    } else if (lines.every((line) => /^ {4}/.test(line)) || lines[0].startsWith("```")) {
      parts.push(el("pre", { textContent: lines.filter((line) => !line.startsWith("```")).join("\n") }));
    } else {
      parts.push(el("p", {}, ...spans(lines.join(" "))));
    }
  }
  return parts;
}

// A table of Markdown: a head, a line of dashes, rows.
function sheet(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (kind, line) => el("tr", {}, ...cells(line).map((cell) => el(kind, {}, ...spans(cell))));
  const rest = lines.slice(1).filter((line) => !/^[\s|:-]+$/.test(line));
  return el("div", { className: "sheet" }, el("table", {}, el("thead", {}, row("th", lines[0])), el("tbody", {}, ...rest.map((line) => row("td", line)))));
}

function spans(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("`")) return el("code", { textContent: part.slice(1, -1) });
    if (part.startsWith("**")) return el("strong", { textContent: part.slice(2, -2) });
    return part.replace(/\[([^\]]*)\]\(([^)]*)\)/g, "$1");
  });
}
