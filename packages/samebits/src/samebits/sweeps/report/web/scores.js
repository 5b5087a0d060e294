"use strict";
// The score against each swept value, objectives against each other, importance.
const objective = D.objectives[0];

const short = (text) => (text.length > 16 ? text.slice(0, 15) + "…" : text);
function axisOf(axis) { // type and ticks for plotly
  const type = axis.kind === "log" ? "log" : "linear";
  if (axis.kind === "category") return { type, tickvals: axis.texts.map((_, k) => k), ticktext: axis.texts.map((text) => text.split("\n").map((line) => plain(short(line))).join("<br>")), range: [-0.5, axis.texts.length - 0.5] };
  if (axis.named) return { type, tickvals: axis.values, ticktext: axis.texts.map(plain) };
  const decades = type === "log" ? Math.log10(axis.values[axis.values.length - 1] / axis.values[0]) : 0;
  return { type, ...(decades > 1.5 ? { dtick: Math.ceil(decades / 8), tickformat: "~g" } : {}) }; // 0.001, 0.01 and so on: there is room for no others
}

const placeOf = (axis, cell) => cell?.place ?? null; // null: nowhere
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// of the configurations at one place, each with the same weight; the interval is of one configuration, all of whose jobs are shown
function meanAt(jobs) {
  const groups = [...new Set(jobs.map((job) => job.group))].map((i) => D.groups[i]);
  const scored = groups.flatMap((group) => group.jobs.filter((i) => D.jobs[i].scores[0] !== null));
  const whole = scored.length === jobs.length;
  return { mean: mean(whole ? groups.map((group) => group.means[0]) : jobs.map((job) => job.scores[0])), interval: whole && groups.length === 1 ? groups[0].interval : null };
}

function scoreTraces(axis, other) {
  const options = other ? other.texts : [null], colors = palette(), traces = [];
  options.forEach((option, k) => {
    const jobs = D.jobs.filter((j) => shownJob(j) && j.scores[0] !== null && (option === null || j.values[other.key]?.text === option));
    const aside = axis.kind === "category" ? (k - (options.length - 1) / 2) * Math.min(0.12, 0.7 / options.length) : 0;
    const points = jobs.map((job) => ({ job, x: placeOf(axis, job.values[axis.key]) })).filter((p) => p.x !== null).map((p) => ({ job: p.job, x: p.x + aside }));
    const color = colors[k], symbol = SHAPES[k];
    const about = (job) => D.columns.map((c) => `${plain(c.name)}=${plain(job.values[c.key].text)}`).join(" ");
    traces.push({ x: points.map((p) => p.x), y: points.map((p) => p.job.scores[0]), mode: "markers", marker: { color, symbol, size: 8, opacity: 0.65 },
      text: points.map((p) => `job ${p.job.number}: ${about(p.job)}`), hovertemplate: "%{y:.5g}<extra>%{text}</extra>" });
    const places = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
    if (points.length > places.length && (!axis.joined || places.length <= 12)) {
      const found = places.map((x) => meanAt(points.filter((p) => p.x === x).map((p) => p.job)));
      const [below, above] = [0, 1].map((end) => found.map((f) => (f.interval ? Math.abs(f.interval[end] - f.mean) : 0)));
      const said = found.map((f) => (f.interval ? `mean ${round(f.mean)}, 95 % interval ${f.interval.map(round).join(" to ")}` : `mean ${round(f.mean)}`));
      traces.push({ x: places, y: found.map((f) => f.mean), error_y: { type: "data", symmetric: false, array: above, arrayminus: below, color, thickness: 1.3, width: 3 },
        ...(axis.joined ? { mode: "lines+markers", line: { color, width: 1.6 }, marker: { color, symbol, size: 4 } } : { mode: "markers", marker: { color, symbol: "line-ew-open", size: 20, line: { width: 2 } } }),
        text: said, hovertemplate: `%{text}<extra>${option === null ? "" : plain(option)}</extra>` });
    }
  });
  return traces;
}

function unfinishedMarks(axis) { // what they had reached
  const jobs = D.jobs.filter((job) => shownJob(job) && job.scores[0] === null && job.provisional !== null);
  const points = jobs.map((job) => ({ job, x: placeOf(axis, job.values[axis.key]) })).filter((p) => p.x !== null);
  return [{ x: points.map((p) => p.x), y: points.map((p) => p.job.provisional), mode: "markers", marker: { color: faintColor(), symbol: "circle-open", size: 7 },
    text: points.map((p) => `job ${p.job.number}, ${p.job.status}`), hovertemplate: "%{y:.5g} so far<extra>%{text}</extra>" }];
}

function failedMarks(axis) { // above the frame, where they stand along the axis
  const failed = D.jobs.filter((job) => job.failed && shownJob(job)).map((job) => ({ job, x: placeOf(axis, job.values[axis.key]) })).filter((p) => p.x !== null);
  return failed.length ? [{ x: failed.map((p) => p.x), y: failed.map(() => 0.5), yaxis: "y2", mode: "markers", marker: { symbol: "x", size: 8, color: failedColor() },
    text: failed.map((p) => `job ${p.job.number} ${p.job.status}: ${plain((p.job.reason || "").slice(0, 90))}`), hovertemplate: "<extra>%{text}</extra>" }] : [];
}

function drawScores() {
  const panels = D.axes.slice(0, 12), failed = D.jobs.some((job) => job.failed);
  panels.forEach((axis, i) => {
    const partner = panels.length === 2 && panels[1 - i].texts.length <= COLORED ? panels[1 - i] : null;
    Plotly.react(`score-${i}`, [...unfinishedMarks(axis), ...scoreTraces(axis, partner), ...failedMarks(axis)], layout({
      title: { text: `<b>${plain(axis.key)}</b>`, font: { size: 13 }, y: 0.98, yanchor: "top" }, margin: { l: 56, r: 14, t: 30, b: 40 },
      xaxis: axisOf(axis), yaxis: { title: { text: plain(objective.key), standoff: 6 }, type: D.logScore ? "log" : "linear", domain: [0, failed ? 0.9 : 1] },
      ...(failed ? { yaxis2: { domain: [0.92, 1], range: [0, 1], visible: false, fixedrange: true } } : {}) }), PLOT);
    $(`score-legend-${i}`).replaceChildren(...(partner ? [element("b", {}, `${partner.key}`), ...partner.texts.map((text, k) => element("span", {}, swatch(palette()[k], SHAPES[k]), ` ${text}`))] : []),
      ...($(`score-${i}`).data.some((trace) => trace.error_y?.array.some((half) => half > 0)) ? [element("span", { class: "quiet" }, "mean and its 95 % interval")] : []),
      ...(D.jobs.some((job) => job.scores[0] === null && job.provisional !== null) ? [element("span", { class: "quiet" }, "○ pruned, unfinished: so far")] : []),
      ...(failed ? [element("span", {}, swatch(failedColor(), "x", true), " failed")] : []));
  });
}

function drawObjectives() {
  const [a, b] = D.objectives, groups = D.groups.filter((g, i) => g.means.every((m) => m !== null) && shownGroup(i));
  const trace = (front, color, symbol) => {
    const part = groups.filter((g) => g.front === front).sort((p, q) => p.means[0] - q.means[0]);
    return { x: part.map((g) => g.means[0]), y: part.map((g) => g.means[1]), mode: front ? "lines+markers" : "markers", text: part.map((g) => plain(g.label)),
      marker: { color, symbol, size: 9 }, line: { color, width: 1.2 }, name: front ? "no other is better in both" : "beaten in both", hovertemplate: "%{x:.5g}, %{y:.5g}<extra>%{text}</extra>" };
  };
  Plotly.react("objectives", [trace(false, faintColor(), "circle"), trace(true, css("--accent"), "diamond")], layout({ showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, xaxis: { title: { text: `${plain(a.key)} (${a.mode})` }, type: D.logScore ? "log" : "linear" }, yaxis: { title: { text: `${plain(b.key)} (${b.mode})` } } }), PLOT);
}

if (D.axes.length && D.jobs.some((job) => job.provisional !== null)) {
  $("scores").append(...D.axes.slice(0, 12).map((_, i) => element("div", {}, element("div", { id: `score-${i}`, class: "plot" }), element("div", { id: `score-legend-${i}`, class: "legend" }))));
  redraws.push(drawScores);
} else $("scores-section").hidden = true;
if (D.objectives.length > 1) { $("objectives-section").hidden = false; redraws.push(drawObjectives); }
if (D.importance) {
  $("importance-section").hidden = false;
  $("importance").append(...Object.entries(D.importance.shares).flatMap(([key, share]) => [element("span", {}, key),
    element("div", {}, element("div", { class: "bar", style: `width:${(100 * share).toFixed(1)}%` })), element("span", {}, `${Math.round(100 * share)} %`)]));
  $("importance-note").textContent = `${D.importance.note}.`;
}
