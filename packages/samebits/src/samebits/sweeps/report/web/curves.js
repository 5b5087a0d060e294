"use strict";
// Learning curves: a line with a band for each group, or a line for each run; failed runs dashed up to a cross.
const logOf = {}; // metric -> whether its axis is logarithmic, once the reader has said so

function xOf(job, steps) {
  const how = $("x").value;
  if (how === "epoch" && job.epochsPerStep) return steps.map((step) => step * job.epochsPerStep);
  if (how === "time" && job.times) {
    const known = new Map(job.times[0].map((step, i) => [step, job.times[1][i]]));
    return steps.map((step) => (known.has(step) ? known.get(step) / 60 : null));
  }
  return how === "step" ? steps : null;
}

function bandOf(jobs, metric) { // mean and deviation at the steps that all these runs have that have come so far
  const runs = jobs.map((job) => ({ job, of: new Map(job.curves[metric][0].map((s, i) => [s, job.curves[metric][1][i]])) }));
  const ends = runs.map((run) => Math.max(...run.of.keys()));
  const steps = [...new Set(runs.flatMap((run) => [...run.of.keys()]))].sort((a, b) => a - b)
    .filter((step) => runs.every((run, i) => run.of.has(step) || ends[i] < step));
  const rows = steps.map((step) => runs.filter((run) => run.of.has(step)).map((run) => run.of.get(step)));
  const mean = rows.map((row) => row.reduce((a, b) => a + b, 0) / row.length);
  const std = rows.map((row, i) => (row.length > 1 ? Math.sqrt(row.reduce((a, v) => a + (v - mean[i]) ** 2, 0) / (row.length - 1)) : 0));
  return { steps, mean, std, count: jobs.length };
}

function colorOf(group) { // of a group, by its rank or by one of its values
  const by = $("color").value, colors = palette();
  if (by === "") return rankOf(group) < COLORED ? colors[rankOf(group)] : faintColor();
  const axis = D.axes.find((a) => a.key === by), cell = D.groups[group].values[by];
  if (placeOf(axis, cell) === null) return faintColor();
  if (axis.kind === "category") return colors[axis.texts.indexOf(cell.text) % colors.length];
  const to = axis.kind === "log" ? Math.log : (v) => v;
  const low = to(axis.values[0]), high = to(axis.values[axis.values.length - 1]);
  return viridis((to(cell.place) - low) / (high - low || 1));
}

function groupTraces(index, metric, log) {
  const group = D.groups[index], color = colorOf(index), strong = $("color").value !== "" || rankOf(index) < COLORED;
  const jobs = group.jobs.map((i) => D.jobs[i]).filter((job) => shownJob(job) && job.curves[metric]?.[0].length);
  const traces = [];
  for (const job of jobs.filter((j) => j.failed && j.status !== "not finite")) traces.push(...failedTraces(job, metric));
  const alive = jobs.filter((j) => !j.failed || j.status === "not finite");
  const name = plain(group.label);
  if ($("each").checked) {
    for (const job of alive) {
      const [steps, values] = job.curves[metric], x = xOf(job, steps);
      if (x) traces.push({ x, y: values, mode: "lines", line: { color, width: 1.2 }, opacity: strong ? 0.9 : 0.5,
        hovertemplate: `%{y:.5g}<extra>${name}<br>job ${job.number}${job.values.seed ? ", seed " + job.values.seed.text : ""} (${job.status})</extra>` });
    }
    return traces;
  }
  if (!alive.length) return traces;
  const band = bandOf(alive, metric), x = xOf(alive[0], band.steps);
  if (!x) return traces;
  if (band.count > 1 && strong && band.steps.length > 1) {
    const floor = log ? (i) => Math.max(band.mean[i] - band.std[i], band.mean[i] / 10) : (i) => band.mean[i] - band.std[i];
    traces.push({ x: [...x, ...[...x].reverse()], y: [...band.mean.map((m, i) => m + band.std[i]), ...band.mean.map((_, i) => floor(i)).reverse()],
      fill: "toself", fillcolor: rgba(color, 0.2), line: { width: 0 }, mode: "lines", hoverinfo: "skip" });
  }
  const few = band.steps.length <= 12 && strong;
  traces.push({ x, y: band.mean, mode: few ? "lines+markers" : "lines", line: { color, width: strong ? 2 : 1 },
    marker: { symbol: SHAPES[rankOf(index) % SHAPES.length], size: 7, color }, opacity: strong ? 1 : 0.6, customdata: band.std.map(round),
    hovertemplate: band.count > 1 ? `%{y:.5g} ± %{customdata} (${band.count} ${D.repeats})<extra>${name}</extra>` : `%{y:.5g}<extra>${name}</extra>` });
  return traces;
}

function failedTraces(job, metric) {
  const [steps, values] = job.curves[metric], x = xOf(job, steps), color = failedColor();
  if (!x) return [];
  const symbol = steps.map((_, i) => (i === steps.length - 1 ? "x" : "circle")), size = steps.map((_, i) => (i === steps.length - 1 ? 9 : 0.1));
  return [{ x, y: values, mode: "lines+markers", line: { color, width: 1.2, dash: "dash" }, marker: { symbol, size, color },
    hovertemplate: `%{y:.5g}<extra>job ${job.number} ${job.status}: ${plain((job.reason || "").slice(0, 90))}</extra>` }];
}

function drawCurves() {
  const metric = $("metric").value, scale = D.metrics.find((m) => m.key === metric);
  const log = logOf[metric] ?? scale.log, range = scale.limits && (log ? scale.limits.map(Math.log10) : [0, scale.limits[1]]);
  $("log").checked = log;
  const order = [...ranks.keys()].reverse(); // the best on top
  const traces = order.filter(shownGroup).flatMap((i) => groupTraces(i, metric, log));
  traces.sort((a, b) => (a.line?.dash === "dash") - (b.line?.dash === "dash")); // failed ones above all
  const unit = { step: "optimizer step", epoch: "epoch", time: "minutes since the first record" }[$("x").value];
  Plotly.react("curves", traces, layout({ uirevision: metric + $("x").value + log, xaxis: { title: { text: unit, standoff: 8 } },
    yaxis: { title: { text: plain(metric) + (range ? " (cut above)" : ""), standoff: 8 }, type: log ? "log" : "linear", ...(range ? { range } : {}) } }), PLOT_TOOLS);
  drawLegend();
}

function drawLegend() {
  const items = [], by = $("color").value;
  const axis = D.axes.find((a) => a.key === by);
  if (axis && axis.kind !== "category") {
    items.push(element("span", {}, `${by}: `), ...axis.values.filter((_, i, all) => i % Math.ceil(all.length / 9) === 0 || i === all.length - 1)
      .map((value) => element("span", {}, swatch(colorOf(D.groups.findIndex((g) => g.values[by]?.place === value))), ` ${round(value)}`)));
  } else if (axis) {
    items.push(element("span", {}, `${by}: `), ...axis.texts.map((text, k) => element("span", {}, swatch(palette()[k % COLORED]), ` ${text}`)));
  } else {
    ranks.forEach((rank, i) => {
      if (by === "" && rank >= COLORED && !chosen.groups.has(i)) return;
      items.push(element("button", { class: shownGroup(i) ? "" : "off", title: "this one alone, or with others; again: release", onclick: () => toggleGroup(i) },
        swatch(colorOf(i), SHAPES[rank % SHAPES.length]), element("span", {}, D.groups[i].label)));
    });
    if (by === "" && ranks.size > COLORED) items.push(element("span", {}, swatch(faintColor()), ` ${ranks.size - COLORED} others`));
  }
  const failed = D.jobs.filter((job) => job.failed && shownJob(job)).length;
  if (failed) items.push(element("span", {}, swatch(failedColor(), "x", true), ` ${failed} failed`));
  if (!$("each").checked && D.groups.some((g) => g.jobs.length > 1)) items.push(element("span", { class: "quiet" }, `band: mean ± standard deviation over ${D.repeats}`));
  $("legend").replaceChildren(...items);
}

if (D.metrics.length) {
  $("metric").append(...D.metrics.map(({ key }) => element("option", { value: key }, key)));
  $("color").append(element("option", { value: "" }, D.groups.length > COLORED ? "configuration (best first)" : "configuration"),
    ...(D.isSweep && D.groups.length > 1 ? D.axes.map((a) => element("option", { value: a.key }, a.key)) : []));
  for (const id of ["metric", "x", "color", "each"]) $(id).addEventListener("change", drawCurves);
  $("log").addEventListener("change", () => { logOf[$("metric").value] = $("log").checked; drawCurves(); });
  if (!D.jobs.some((job) => job.epochsPerStep)) $("x").querySelector('[value="epoch"]').remove();
  redraws.push(drawCurves);
} else $("curves").textContent = "Nothing has been logged yet.";
