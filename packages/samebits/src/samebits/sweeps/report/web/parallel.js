"use strict";
// Parallel coordinates: an axis for each swept value and the score, a line for each job. What is dragged along an axis selects.
const lines = D.jobs.filter((job) => job.provisional !== null || job.failed);
const scores = lines.map((job) => job.provisional).filter((score) => score !== null).sort((a, b) => a - b);
const BELOW = 0.14; // of an axis: so far below it pass the lines of jobs that have no value there
const UNFINISHED = 1.2, FAILED = 1.5; // as colours, where 0 is the best score and 1 the worst

function dimension(axis, places) { // places: of the jobs along the axis; null: none. Plotly reads tags in the label, none in the ticks
  const [to, back] = axis.kind === "log" ? [Math.log10, (h) => 10 ** h] : [Number, Number];
  const heights = places.map((place) => (place === null ? null : to(place))), known = heights.filter((h) => h !== null);
  const low = Math.min(...known), span = Math.max(...known) - low || 1, none = low - BELOW * span;
  const ticks = axis.kind === "category" ? axis.texts.map((text, k) => [k, short(text)]) : axis.named ? axis.values.map((v, k) => [to(v), axis.texts[k]])
    : [0, 1, 2, 3, 4].map((i) => low + (span * i) / 4).map((h) => [h, round(back(h))]);
  if (known.length < heights.length) ticks.push([none, axis.key === objective.key ? "failed" : "–"]);
  return { label: plain(axis.key.length > 22 ? "…" + axis.key.slice(-21) : axis.key), range: [Math.min(...ticks.map(([h]) => h)), low + span],
    values: heights.map((h) => h ?? none), tickvals: ticks.map(([h]) => h), ticktext: ticks.map(([, text]) => text) };
}

function brushed(dimensions) { // the numbers of the jobs that the selections leave; null: nothing is selected
  const held = dimensions.filter((one) => one.constraintrange);
  const inside = (value, ranges) => (Array.isArray(ranges[0]) ? ranges : [ranges]).some(([low, high]) => value >= low && value <= high);
  const left = lines.filter((_, i) => held.every((one) => inside(one.values[i], one.constraintrange)));
  return held.length ? new Set(left.map((job) => job.number)) : null;
}

if (D.isSweep && D.axes.length > 1 && scores.length) {
  const dimensions = D.axes.slice(0, 12).map((axis) => dimension(axis, lines.map((job) => placeOf(axis, job.values[axis.key]))));
  dimensions.push(dimension({ key: objective.key, kind: D.logScore ? "log" : "linear" }, lines.map((job) => job.provisional)));
  const kind = D.logScore ? Math.log10 : Number, low = kind(scores[0]), span = kind(scores[scores.length - 1]) - low || 1;
  const height = (job) => (kind(job.scores[0]) - low) / span;
  const badness = (job) => (job.failed ? FAILED : job.scores[0] === null ? UNFINISHED : objective.mode === "min" ? height(job) : 1 - height(job));
  const isChosen = (job) => chosen.groups.size === 0 || chosen.groups.has(job.group);
  $("parallel-section").hidden = false;
  $("parallel").style.minWidth = `${150 * dimensions.length}px`;
  Plotly.newPlot("parallel", []); // has `on` from now on
  $("parallel").on("plotly_restyle", () => { chosen.jobs = brushed(dimensions); redraw(); });
  redraws.push(() => {
    const colors = [...[0, 0.25, 0.5, 0.75, 1].map((t) => [t / FAILED, viridis(t)]), [0.7, faintColor()], [0.9, faintColor()], [0.91, failedColor()], [1, failedColor()]];
    Plotly.react("parallel", [{ type: "parcoords", dimensions, labelfont: { size: 12 }, rangefont: { size: 1, color: "rgba(0,0,0,0)" }, unselected: { line: { color: css("--grid"), opacity: 0.4 } },
      line: { color: lines.map((job) => (isChosen(job) ? badness(job) : UNFINISHED)), cmin: 0, cmax: FAILED, colorscale: colors } }], layout({ margin: { l: 60, r: 90, t: 44, b: 20 } }), PLOT);
  });
}
