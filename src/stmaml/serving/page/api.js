// Requests to the service this page came from, and nowhere else.

const token = new URLSearchParams(location.hash.slice(1)).get("token");
const problem = document.getElementById("problem");
const curl = document.getElementById("curl");
let hiding = 0;

function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

// A fault, or that something is under way, at the foot of the page for a while.
export function complain(words, waiting = false) {
  clearTimeout(hiding);
  problem.classList.toggle("waiting", waiting);
  problem.textContent = words;
  problem.hidden = !words;
  if (words) hiding = setTimeout(() => { problem.hidden = true; }, 6000);
}

async function read(response) {
  const body = await response.json().catch(() => ({ error: "the service sent no JSON." }));
  if (response.ok) return body;
  const error = new Error(body.error);
  error.wait = response.status === 503;
  throw error;
}

export async function get(path) {
  return read(await fetch(path, { headers: headers() }));
}

export async function post(path, body) {
  const text = JSON.stringify(body);
  return read(await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: text }));
}

export function showRequest(path, body) {
  const secret = token ? " \\\n  -H 'Authorization: Bearer TOKEN'" : "";
  const text = JSON.stringify(body, (name, value) => (typeof value === "number" ? Number(value.toPrecision(5)) : value));
  const safe = text.replaceAll("'", "'\\''");
  curl.textContent = `curl ${location.origin}${path} \\\n  -H 'Content-Type: application/json'${secret} \\\n  -d '${safe}'`;
}

// Asks for the newest state only: while one request is under way, later ones replace each other.
export function latest(ask, show) {
  let busy = false;
  let pending = null;
  async function run(argument) {
    busy = true;
    try {
      const began = performance.now();
      const answer = await ask(argument);
      complain("");
      show(answer, argument, performance.now() - began);
    } catch (error) {
      complain(error.wait ? "This learner is getting ready." : error.message, error.wait);
      if (error.wait && pending === null) setTimeout(() => { if (pending === null && !busy) run(argument); }, 1500);
    } finally {
      busy = false;
      if (pending !== null) {
        const next = pending;
        pending = null;
        run(next);
      }
    }
  }
  return (argument) => { if (busy) pending = argument; else run(argument); };
}
