"use strict";
// The page of ./run report --serve: it asks for what has changed since its last answer, and draws that.
const runs = new Map(); // name -> row, as the server sends it
const picked = new Set(), hiddenStates = new Set();
let version = 0, key = "", keys = [], logScale = null, sortBy = "written", offset = 0, failing = 0, hovered = null;
const ROWS = 300, EVERY_MS = 2000;
const ORDER = ["running", "created", "silent", "failed", "killed", "unreadable", "queued", "preempted", "interrupted", "pruned", "finished"];
const LIVE = ["running", "created"];

async function update() {
  const asked = key;
  try {
    const answer = await fetch(`data.json?since=${version}&key=${encodeURIComponent(asked)}`);
    if (!answer.ok) throw new Error(await answer.text());
    const data = await answer.json();
    if (asked !== key) return; // another curve was chosen meanwhile
    failing = 0;
    offset = data.now - Date.now() / 1000;
    data.gone.forEach((name) => { runs.delete(name); picked.delete(name); });
    data.runs.forEach((run) => runs.set(run.name, run));
    version = data.version;
    setKeys(data.keys);
    const reading = data.read < data.count ? ` · read ${data.read} of ${data.count}` : "";
    $("facts").textContent = `${data.count} runs${reading} · ${new Date().toLocaleTimeString()}`;
    if (!String(getSelection())) show(); // a redraw would end the selection of a text that is being copied
  } catch (error) {
    failing += 1;
    $("facts").textContent = `No answer (${error.message}): is ./run report --serve still running? This page tries again.`;
  }
}

async function loop() {
  if (!document.hidden) await update();
  setTimeout(loop, failing ? Math.min(EVERY_MS * 2 ** failing, 30000) : EVERY_MS);
}

function setKeys(now) {
  if (now.join("\n") === keys.join("\n")) return;
  keys = now;
  if (!keys.includes(key)) choose(keys.find((k) => k === "val/loss") || keys.find((k) => k.endsWith("/loss")) || keys[0] || "");
  $("metric").replaceChildren(...keys.map((k) => element("option", { value: k, selected: k === key }, k)));
}

function choose(now) { // the curves of another key are with the rows, so all rows are asked for
  key = now; version = 0; logScale = null;
  runs.forEach((run) => { run.curve = [[], []]; run.latest = run.score = null; });
  update();
}

function age(run) {
  const seconds = Math.max(0, Date.now() / 1000 + offset - run.written);
  if (!run.written) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

function shownRuns() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  return [...runs.values()].filter((run) => !hiddenStates.has(run.status) && (!$("going").checked || LIVE.includes(run.status))
    && words.every((word) => `${run.name} ${run.status} ${run.error} ${run.log}`.toLowerCase().includes(word))).sort(compare);
}

const place = (run) => (ORDER.indexOf(run.status) + ORDER.length) % ORDER.length;
const byName = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true });
function compare(a, b) {
  if (sortBy === "name") return byName(a, b);
  if (sortBy === "step") return b.step - a.step || byName(a, b);
  if (sortBy === "value") return (valueOf(a) ?? Infinity) - (valueOf(b) ?? Infinity) || byName(a, b);
  if (sortBy === "written") return LIVE.includes(b.status) - LIVE.includes(a.status) || (LIVE.includes(a.status) ? byName(a, b) : b.written - a.written);
  return place(a) - place(b) || byName(a, b);
}
const valueOf = (run) => run.score ?? run.latest;

function show() {
  const counts = new Map();
  runs.forEach((run) => counts.set(run.status, (counts.get(run.status) || 0) + 1));
  const states = [...counts.keys()].sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  $("counts").replaceChildren(...states.map((state) => element("button", { class: `chip ${state}${hiddenStates.has(state) ? " off" : ""}`,
    title: "show or hide them", onclick: () => { if (!hiddenStates.delete(state)) hiddenStates.add(state); show(); } }, `${counts.get(state)} ${state}`)));
  const shown = shownRuns(), colors = colorsOf(shown);
  drawTable(shown, colors);
  drawPlot(shown, colors);
}

function colorsOf(shown) { // a run keeps its colour while others come and go
  const all = [...runs.keys()].sort(), number = new Map(all.map((name, i) => [name, i]));
  return new Map(shown.map((run) => [run.name, palette()[number.get(run.name) % palette().length]]));
}

function drawTable(shown, colors) {
  const heads = [["name", "run"], ["state", "state"], ["step", "step"], ["value", key || "value"], ["written", "written"], [null, "last line of the log"]];
  const head = element("tr", {}, ...heads.map(([by, text]) => element("th", { class: by === sortBy ? "down" : "", onclick: () => { if (by) { sortBy = by; show(); } } }, text)));
  const rows = shown.slice(0, ROWS).map((run) => element("tr", { class: picked.has(run.name) ? "on" : "", onclick: () => { if (!picked.delete(run.name)) picked.add(run.name); show(); } },
    element("td", { class: "name" }, mark(colors.get(run.name)), run.name), element("td", {}, element("span", { class: `chip ${run.status}` }, run.status)),
    element("td", {}, run.step.toLocaleString()), element("td", { title: run.score === null ? "the last value" : "the score in result.json" }, round(valueOf(run))),
    element("td", {}, age(run)), element("td", { class: "log" }, run.error ? element("span", { class: "bad" }, run.error) : run.log)));
  $("runs").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
  $("more").textContent = shown.length > ROWS ? `${shown.length - ROWS} more runs: use the filter.` : shown.length ? "" : "No runs.";
}

function mark(color) {
  const made = element("span", { class: "swatch" });
  made.style.background = color;
  return made;
}

let drawn = []; // what the pointer can find: {run, x, y}
function drawPlot(shown, colors) {
  const canvas = $("plot"), scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale; canvas.height = height * scale;
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  draw.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const chosenRuns = shown.filter((run) => run.curve[0].length && (!picked.size || picked.has(run.name)));
  let values = chosenRuns.flatMap((run) => run.curve[1]);
  const positive = values.filter((v) => v > 0);
  const low0 = Math.min(...finite(positive)), high0 = Math.max(...finite(positive));
  const log = positive.length > 0 && (logScale ?? (positive.length === values.length && high0 / low0 > 100));
  $("log").checked = log;
  if (log) values = positive;
  drawn = [];
  if (!values.length) { draw.fillStyle = css("--quiet"); draw.fillText("Nothing has been logged yet.", 56, height / 2); return; }
  let [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))].map((v) => (log ? Math.log10(v) : v));
  if (high - low < 1e-12) { low -= 0.5; high += 0.5; }
  const pad = (high - low) * 0.04; low -= pad; high += pad;
  const last = Math.max(1, chosenRuns.reduce((a, run) => Math.max(a, run.curve[0][run.curve[0].length - 1]), 0));
  const box = { left: 64, right: width - 14, top: 8, bottom: height - 30 };
  const xAt = (step) => box.left + (step / last) * (box.right - box.left);
  const yAt = (v) => box.bottom - (((log ? Math.log10(v) : v) - low) / (high - low)) * (box.bottom - box.top);
  draw.textBaseline = "middle"; draw.textAlign = "right"; draw.lineWidth = 1;
  for (const at of ticks(low, high, 5)) {
    const y = box.bottom - ((at - low) / (high - low)) * (box.bottom - box.top);
    draw.strokeStyle = css("--grid"); draw.beginPath(); draw.moveTo(box.left, y); draw.lineTo(box.right, y); draw.stroke();
    draw.fillStyle = css("--quiet"); draw.fillText(round(log ? 10 ** at : at), box.left - 8, y);
  }
  draw.textAlign = "center";
  for (const at of ticks(0, last, 6)) draw.fillText(at.toLocaleString(), Math.min(xAt(at), box.right - 12), box.bottom + 16);
  for (const run of chosenRuns) {
    const ended = ["failed", "killed", "silent"].includes(run.status), over = hovered === run.name;
    draw.strokeStyle = ended ? failedColor() : colors.get(run.name);
    draw.lineWidth = over ? 3 : chosenRuns.length > 40 ? 1 : 1.6;
    draw.globalAlpha = hovered && !over ? 0.35 : 1;
    draw.setLineDash(ended ? [5, 4] : []);
    draw.beginPath();
    run.curve[0].forEach((step, i) => {
      const v = run.curve[1][i];
      if (log && v <= 0) return;
      const [x, y] = [xAt(step), yAt(v)];
      draw.lineTo(x, y);
      drawn.push({ run, x, y, step, v });
    });
    draw.stroke();
    const end = drawn[drawn.length - 1];
    if (end && end.run === run && (LIVE.includes(run.status) || run.curve[0].length === 1)) { // where it is now
      draw.fillStyle = draw.strokeStyle; draw.setLineDash([]); draw.beginPath(); draw.arc(end.x, end.y, 3.5, 0, 7); draw.fill();
    }
  }
  draw.globalAlpha = 1;
}

const finite = (list) => (list.length ? [list.reduce((a, b) => Math.min(a, b)), list.reduce((a, b) => Math.max(a, b))] : [1]);
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

$("plot").addEventListener("pointermove", (event) => {
  const near = drawn.reduce((best, point) => {
    const d = (point.x - event.offsetX) ** 2 + (point.y - event.offsetY) ** 2;
    return d < best.d ? { d, point } : best;
  }, { d: 900, point: null }).point;
  $("hover").textContent = near ? `${near.run.name} · step ${near.step.toLocaleString()} · ${round(near.v)}` : "";
  if ((near && near.run.name) !== hovered) { hovered = near && near.run.name; show(); }
});
$("plot").addEventListener("pointerleave", () => { hovered = null; $("hover").textContent = ""; show(); });
$("metric").addEventListener("change", () => choose($("metric").value));
$("log").addEventListener("change", () => { logScale = $("log").checked; show(); });
for (const id of ["going", "filter"]) $(id).addEventListener("input", show);
window.addEventListener("resize", show);
prefersDark.addEventListener("change", show);
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });
$("name").textContent = D.title;
document.title = D.title;
loop();
