"use strict";
// Of a search: the score of each trial and the best so far, and the score over two keys.
const lessIsBetter = objective.mode === "min";
const better = (a, b) => (lessIsBetter ? a < b : a > b);

function bestSoFar(scores) {
  let best = null;
  return scores.map((score) => (best = best === null || better(score, best) ? score : best));
}

function drawHistory() {
  const scored = D.jobs.filter((job) => job.scores[0] !== null), shown = scored.filter(shownJob);
  const pruned = D.jobs.filter((job) => shownJob(job) && job.scores[0] === null && job.provisional !== null);
  const about = (job) => `${plain(job.key)}: ${plain(D.groups[job.group].label)}`;
  Plotly.react("history", [
    { x: pruned.map((job) => job.number), y: pruned.map((job) => job.provisional), mode: "markers", marker: { color: faintColor(), symbol: "circle-open", size: 7 },
      name: "pruned, unfinished: so far", text: pruned.map(about), hovertemplate: "%{y:.5g} so far<extra>%{text}</extra>" },
    { x: shown.map((job) => job.number), y: shown.map((job) => job.scores[0]), mode: "markers", marker: { color: css("--accent"), size: 7, opacity: 0.65 },
      name: "score", text: shown.map(about), hovertemplate: "%{y:.5g}<extra>%{text}</extra>" },
    { x: scored.map((job) => job.number), y: bestSoFar(scored.map((job) => job.scores[0])), mode: "lines", line: { color: css("--ink"), width: 1.6, shape: "hv" },
      name: "best so far", hovertemplate: "best so far %{y:.5g}<extra></extra>" },
  ], layout({ showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, xaxis: { title: { text: "trial" } },
    yaxis: { title: { text: plain(objective.key) }, type: D.logScore ? "log" : "linear" } }), PLOT_TOOLS);
}

// [{x, y, z}, ...] -> the sorted places and, for each pair of them, the mean of z; null where there is none
function gridOf(points) {
  const sorted = (name) => [...new Set(points.map((p) => p[name]))].sort((a, b) => a - b);
  const xs = sorted("x"), ys = sorted("y");
  const cells = new Map();
  for (const p of points) { const key = `${p.x} ${p.y}`; cells.set(key, [...(cells.get(key) || []), p.z]); }
  const z = ys.map((y) => xs.map((x) => { const found = cells.get(`${x} ${y}`); return found ? mean(found) : null; }));
  return { xs, ys, z };
}

const contourAxis = (end) => D.axes.find((axis) => axis.key === $(`contour-${end}`).value);
const contourLayout = (axis) => ({ title: { text: plain(axis.key) }, ...axisOf(axis) });

function drawContour() {
  const a = contourAxis("x"), b = contourAxis("y");
  const points = D.jobs.filter((job) => shownJob(job) && job.scores[0] !== null)
    .map((job) => ({ job, x: placeOf(a, job.values[a.key]), y: placeOf(b, job.values[b.key]), z: D.logScore ? Math.log10(job.scores[0]) : job.scores[0] }))
    .filter((p) => p.x !== null && p.y !== null);
  const { xs, ys, z } = gridOf(points), name = D.logScore ? `log10 of ${objective.key}` : objective.key;
  const area = { type: "contour", x: xs, y: ys, z, connectgaps: true, colorscale: [0, 0.25, 0.5, 0.75, 1].map((t) => [t, viridis(lessIsBetter ? t : 1 - t)]), line: { width: 0.6 },
    colorbar: { title: { text: plain(name), side: "right" }, thickness: 12 }, hoverinfo: "skip" };
  const dots = { x: points.map((p) => p.x), y: points.map((p) => p.y), mode: "markers", marker: { color: css("--ink"), size: 5, line: { color: css("--card"), width: 1 } },
    text: points.map((p) => `${plain(p.job.key)}: ${plain(objective.key)} ${round(p.job.scores[0])}`), hovertemplate: "%{x}, %{y}<extra>%{text}</extra>" };
  Plotly.react("contour", [...(xs.length > 1 && ys.length > 1 ? [area] : []), dots], layout({ xaxis: contourLayout(a), yaxis: contourLayout(b) }), PLOT_TOOLS);
}

if (D.isSearch && D.jobs.some((job) => job.scores[0] !== null)) {
  $("history-section").hidden = false;
  redraws.push(drawHistory);
  if (D.axes.length > 1) {
    $("contour-section").hidden = false;
    const keys = D.axes.map((axis) => axis.key), first = Object.keys(D.importance?.shares || {}).filter((key) => keys.includes(key));
    for (const [i, end] of ["x", "y"].entries()) {
      const other = i === 0 ? "y" : "x";
      $(`contour-${end}`).append(...keys.map((key) => element("option", { value: key }, key)));
      $(`contour-${end}`).value = (first.length > 1 ? first : keys)[i];
      $(`contour-${end}`).addEventListener("change", () => {
        if (contourAxis(end) === contourAxis(other)) $(`contour-${other}`).value = keys.find((key) => key !== $(`contour-${end}`).value);
        drawContour();
      });
    }
    redraws.push(drawContour);
  }
}
