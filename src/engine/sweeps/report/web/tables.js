"use strict";
// The head of the page, the tables, and the first drawing of everything.
const SIGNS = { finished: "✓", failed: "✕", killed: "✕", "not finite": "✕", running: "▸", queued: "·", pruned: "✂", preempted: "⏸", interrupted: "⏸" };

function sortable(table, head, rows) { // rows: {cells: [{text, value, class, node}], row attributes}
  let by = null, down = false;
  const body = element("tbody");
  const fill = () => {
    const ordered = by === null ? rows() : [...rows()].sort((a, b) => compare(a.cells[by].value, b.cells[by].value) * (down ? -1 : 1));
    body.replaceChildren(...ordered.map((row) => element("tr", row.attributes || {}, ...row.cells.map((cell) => element("td", { class: cell.class }, cell.node || cell.text)))));
  };
  const headings = head.map((text, i) => element("th", { onclick: () => {
    down = by === i ? !down : false; by = i; fill();
    headings.forEach((h, k) => { h.className = k === by ? (down ? "down" : "up") : ""; });
  } }, text));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...headings)), body);
  fill();
  return fill;
}
function compare(a, b) { // nothing comes last
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}
const cellOf = (cell) => ({ text: cell ? cell.text : "–", value: cell ? cell.value : null });

function groupRows() { // those that the brushes leave, the best first
  return [...ranks].map(([i, rank]) => [stats[i], i, rank]).map(([group, i, rank]) => ({ attributes: { class: chosen.groups.has(i) ? "chosen" : shownGroup(i) ? "" : "out", onclick: () => toggleGroup(i) },
    cells: [{ node: rank < COLORED ? swatch(palette()[rank], SHAPES[rank % SHAPES.length]) : element("span"), value: rank },
      ...(D.isSweep && D.groupColumns.length ? D.groupColumns.map((c) => cellOf(group.values[c.key])) : [{ text: group.label, value: group.label, class: "wide" }]),
      ...D.objectives.map((_, k) => ({ text: group.texts[k], value: group.means[k] })), { text: String(group.n), value: group.n },
      { text: group.failures ? `✕ ${group.failures}` : "", value: group.failures, class: "bad" },
      { text: String(group.left - group.n - group.failures || ""), value: group.left - group.n - group.failures }] }));
}
function about(job) {
  if (!job.reason) return element("span");
  const line = element("span", { class: job.failed ? "bad" : "" }, job.reason);
  return job.traceback ? element("details", {}, element("summary", {}, line), element("pre", {}, job.traceback)) : line;
}
function jobRows() {
  const words = $("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const text = (job) => [job.status, job.key, job.reason, D.groups[job.group].label, ...D.columns.flatMap((c) => [`${c.name}=${job.values[c.key].text}`, `${c.key}=${job.values[c.key].text}`])].join(" ").toLowerCase();
  const score = (job, k) => (job.scores[k] !== null ? round(job.scores[k]) : job.soFar[k] !== null ? `(${round(job.soFar[k])})` : "–");
  return D.jobs.filter((job) => shownJob(job) && words.every((w) => text(job).includes(w))).map((job) => ({ cells: [{ text: String(job.number), value: job.number },
    ...(D.isSweep ? D.columns.map((c) => cellOf(job.values[c.key])) : [{ text: D.groups[job.group].label, value: D.groups[job.group].label, class: "wide" }]),
    { text: `${SIGNS[job.status] || ""} ${job.status}`, value: job.status, class: job.failed ? "bad" : job.status === "finished" ? "good" : "" },
    ...D.objectives.map((_, k) => ({ text: score(job, k), value: job.scores[k] ?? job.soFar[k] })), { text: job.step.toLocaleString("en"), value: job.step },
    { text: job.seconds === null || job.seconds === undefined ? "–" : `${round(job.seconds)} s`, value: job.seconds }, { text: job.key, value: job.key }, { node: about(job), value: job.reason, class: "wide" }] }));
}

function head() {
  $("name").textContent = D.name;
  $("counts").append(...Object.entries(D.counts).map(([status, n]) => element("span", { class: `chip ${status}` }, `${SIGNS[status] || ""} ${n} ${status}`)));
  const what = D.objectives.map((o) => `${o.key} (${o.mode === "min" ? "less" : "more"} is better)`).join(", ");
  $("facts").textContent = `${D.jobs.length} ${D.isSweep ? "jobs" : "runs"}, score: ${what}${D.typed.map((line) => ` · ${line}`).join("")}${D.created ? ` · begun ${D.created}` : ""}`;
  $("caution").hidden = !D.caution;
  $("caution").textContent = D.caution || "";
  if (D.paper) { // as it is in paper/table.md, whatever the brushes select
    $("paper-section").hidden = false;
    $("paper-title").textContent = D.paper.title;
    const shown = (cell) => element("td", {}, cell.best ? element("b", {}, cell.text) : cell.text);
    $("paper").append(element("thead", {}, element("tr", {}, ...D.paper.head.map((text) => element("th", {}, text)))),
      element("tbody", {}, ...D.paper.rows.map((row) => element("tr", {}, ...row.map(shown)))));
    $("paper-notes").append(...D.paper.notes.map((line) => element("div", {}, line)));
  }
  if (D.unlike) {
    $("unlike-section").hidden = false;
    $("unlike-title").textContent = D.unlike.title;
    $("unlike").textContent = `${D.unlike.what}.`;
    $("unlike-note").textContent = D.unlike.note;
  }
}

function bestOf(objective, k) { // of the selection, by the report's own rule: the most scores, then the mean
  const sign = objective.mode === "min" ? 1 : -1, count = (g) => g.jobs.filter((i) => inBrush(D.jobs[i]) && D.jobs[i].scores[k] !== null).length;
  const left = [...ranks.keys()].map((i) => stats[i]).filter((g) => g.means[k] !== null).map((g) => ({ g, n: count(g) }));
  const [best] = left.sort((a, b) => (D.isSweep ? b.n - a.n : 0) || sign * (a.g.means[k] - b.g.means[k]));
  return best && { key: objective.key, label: best.g.label, score: best.g.texts[k], n: best.n, command: best.g.command, note: "Of the selection." };
}
function drawBest() {
  const found = chosen.jobs === null ? D.best : D.objectives.map(bestOf).filter(Boolean);
  $("best-section").hidden = !found.length;
  $("best").replaceChildren(...found.flatMap((best) => {
    const code = element("code", {}, best.command), button = element("button", { onclick: () => {
      const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
      const mark = () => getSelection().selectAllChildren(code); // a page of file:// may have no clipboard
      navigator.clipboard ? navigator.clipboard.writeText(best.command).then(done, mark) : mark();
    } }, "Copy");
    return [element("p", { class: "best" }, element("b", {}, best.label), ` — ${best.key} ${best.score} (${best.n === 1 ? "n = 1" : `${best.n} seeds`})`),
      element("div", { class: "command" }, code, button), element("p", { class: "quiet" }, best.note || "")];
  }));
}

head();
redraws.push(drawBest);
select();
const names = D.objectives.map((o) => o.key);
redraws.push(sortable($("groups"), ["", ...(D.isSweep && D.groupColumns.length ? D.groupColumns.map((c) => c.name) : ["configuration"]), ...names, "n", "failures", "pruned, unfinished"], groupRows));
for (const found of D.comparisons) { // of all seeds, whatever the brushes select
  const table = element("table", { class: "compared" });
  sortable(table, D.comparisonColumns, () => found.rows.map((row) => ({ cells: row.texts.map((text, i) => ({ text, value: row.values[i], class: i ? "" : "wide" })) })));
  $("comparisons").append(element("section", {}, element("h2", {}, `More than seeds? ${found.key}`), element("p", { class: "quiet" }, found.note), element("div", { class: "scroll" }, table)));
}
const fillJobs = sortable($("jobs"), ["job", ...(D.isSweep ? D.columns.map((c) => c.name) : ["configuration"]), "status", ...names, "step", "time", "directory", "why no score"], jobRows);
redraws.push(fillJobs);
$("filter").addEventListener("input", fillJobs);
if (D.differences.length) {
  $("differences-section").hidden = false;
  sortable($("differences"), ["", ...D.jobs.map((job) => job.key)], () => D.differences.map((row) => ({ cells: [{ text: row.key, value: row.key }, ...row.values.map((text) => ({ text, value: text }))] })));
}
sortable($("common"), ["key", "value"], () => D.common.map(([key, text]) => ({ cells: [{ text: key, value: key }, { text, value: text, class: "wide" }] })));
setTheme(theme);
watch();
