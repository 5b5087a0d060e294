"use strict";
// The head of the page, the tables, and the first drawing of everything.
const SIGNS = { finished: "✓", failed: "✕", killed: "✕", "not finite": "✕", running: "▸", queued: "·", pruned: "✂", preempted: "⏸", interrupted: "⏸" };

const WHY = D.jobs.some((job) => job.reason) ? ["why no score"] : []; // the heading of a column

function sortable(table, head, rows) { // rows: {cells: [{text, value, class, node}], row attributes}
  let by = null, down = false;
  const body = element("tbody");
  const fill = () => {
    const ordered = by === null ? rows() : [...rows()].sort((a, b) => compare(a.cells[by].value, b.cells[by].value) * (down ? -1 : 1));
    body.replaceChildren(...ordered.map((row) => element("tr", row.attributes || {}, ...row.cells.map((cell) => element("td", { class: cell.class }, cell.node || (cell.best ? element("b", {}, cell.text) : cell.text))))));
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
const byRow = (table) => table.rows.map((cells) => ({ cells }));

function groupRows() { // those that the brushes leave, the best first
  return [...ranks].map(([i, rank]) => ({ attributes: { class: chosen.groups.has(i) ? "chosen" : shownGroup(i) ? "" : "out", onclick: () => toggleGroup(i) },
    cells: [{ node: rank < COLORED ? swatch(palette()[rank], SHAPES[rank % SHAPES.length]) : element("span"), value: rank }, ...D.groupTable.rows[i]] }));
}
function about(job) {
  if (!job.reason) return element("span");
  const line = element("span", { class: job.failed ? "bad" : "" }, job.reason);
  return job.traceback ? element("details", {}, element("summary", {}, line), element("pre", {}, job.traceback)) : line;
}
function jobRows() {
  const words = $("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const text = (job) => [job.status, job.key, job.reason, D.groups[job.group].label, ...D.columns.flatMap((c) => [`${c.name}=${job.values[c.key].text}`, `${c.key}=${job.values[c.key].text}`])].join(" ").toLowerCase();
  return D.jobs.map((job, i) => [job, i]).filter(([job]) => shownJob(job) && words.every((w) => text(job).includes(w)))
    .map(([job, i]) => ({ attributes: { class: job.failed ? "bad" : "" }, cells: [...D.jobTable.rows[i], ...(WHY.length ? [{ node: about(job), value: job.reason, class: "wide" }] : [])] }));
}

function head() {
  $("name").textContent = D.name;
  $("counts").append(...Object.entries(D.counts).map(([status, n]) => element("span", { class: `chip ${status}` }, `${SIGNS[status] || ""} ${n} ${status}`)));
  $("facts").textContent = D.facts;
  $("caution").hidden = !D.caution;
  $("caution").textContent = D.caution || "";
}

function sections(id, found) { // they hold for all jobs, whatever is selected
  for (const { title, lines, table } of found) {
    const body = element("table", { class: "section" });
    if (table) sortable(body, table.head, () => byRow(table));
    $(id).append(element("section", {}, element("h2", {}, title), ...lines.map((line) => element("p", { class: "quiet" }, line)), table ? element("div", { class: "scroll" }, body) : null,
      ...(table?.notes ?? []).map((line) => element("div", { class: "quiet" }, line))));
  }
}

function drawBest() {
  $("best-section").hidden = !D.best.length;
  $("best").append(...D.best.flatMap((best) => {
    const code = element("code", {}, best.command), button = element("button", { onclick: () => {
      const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
      const mark = () => getSelection().selectAllChildren(code); // a page of file:// may have no clipboard
      navigator.clipboard ? navigator.clipboard.writeText(best.command).then(done, mark) : mark();
    } }, "Copy");
    return [element("p", { class: "best" }, element("b", {}, best.label), ` — ${best.key} ${best.score} (${best.averaged})`),
      element("div", { class: "command" }, code, button), element("p", { class: "quiet" }, best.note)];
  }));
}

head();
drawBest();
for (const [place, found] of Object.entries(D.sections)) sections(`sections-${place}`, found);
select();
redraws.push(sortable($("groups"), ["", ...D.groupTable.head], groupRows));
$("group-notes").append(...D.groupTable.notes.map((line) => element("div", {}, line)));
const fillJobs = sortable($("jobs"), [...D.jobTable.head, ...WHY], jobRows);
redraws.push(fillJobs);
$("filter").addEventListener("input", fillJobs);
sortable($("common"), D.common.head, () => byRow(D.common));
redraw();
watch();
