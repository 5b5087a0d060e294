"use strict";
// Parallel coordinates, drawn here: an axis for each value and the score, a line for each job, brushes along the axes.
const STEP = 150, TOP = 34, HEIGHT = 300, LEFT = 30, BELOW = 42;
const brushes = new Map(); // axis number -> [low, high] in 0..1
const lastAxis = D.parallel.length - 1; // the score's
// job.heights: on each axis, 0..1; below 0: failed; null: nothing to draw

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function brushed() {
  if (!brushes.size) return null;
  const inside = (job) => [...brushes].every(([i, [low, high]]) => { const h = job.heights[i]; return h !== null && h >= low && h <= high; });
  return new Set(D.jobs.filter(inside).map((job) => job.number));
}

function drawParallel() {
  const root = $("parallel"), width = Math.max(LEFT + STEP * lastAxis + 110, 480);
  const spread = Math.max(STEP, (root.parentElement.clientWidth - LEFT - 120) / lastAxis);
  root.setAttribute("width", Math.max(width, LEFT + spread * lastAxis + 110));
  root.setAttribute("height", TOP + HEIGHT + BELOW + 24);
  const x = (i) => LEFT + 30 + i * spread, y = (h) => TOP + HEIGHT * (1 - h);
  const parts = [];
  const badness = (job) => { const h = job.heights[lastAxis]; return job.failed ? 3 : job.scores[0] === null ? 2 : objective.mode === "min" ? h : 1 - h; };
  const drawn = D.jobs.filter((job) => job.heights[lastAxis] !== null).sort((a, b) => badness(b) - badness(a));
  for (const job of drawn) {
    const points = job.heights.map((h, i) => [i, h]).filter(([, h]) => h !== null).map(([i, h]) => `${x(i)},${y(h)}`);
    const line = svg("polyline", { points: points.join(" "), stroke: job.failed ? failedColor() : job.scores[0] === null ? faintColor() : viridis(badness(job)), class: shownJob(job) ? "" : "out", "stroke-dasharray": job.failed ? "5 4" : "none" });
    line.append(svg("title", {}, `job ${job.number}: ${D.columns.map((c) => `${c.name}=${job.values[c.key].text}`).join(" ")} → ${job.scores[0] === null ? job.status : round(job.scores[0])}`));
    parts.push(line);
  }
  D.parallel.forEach(([name, ticks], i) => {
    parts.push(svg("text", { x: x(i), y: 16, class: "name", "text-anchor": "middle" }, name.length > 22 ? "…" + name.slice(-21) : name));
    parts.push(svg("line", { x1: x(i), x2: x(i), y1: y(1), y2: y(0), class: "axis" }));
    for (const [h, text] of ticks) parts.push(svg("text", { x: x(i) + 6, y: y(h) + 4, class: "tick" }, text.length > 15 ? text.slice(0, 14) + "…" : text));
    if (brushes.has(i)) { const [low, high] = brushes.get(i); parts.push(svg("rect", { x: x(i) - 8, width: 16, y: y(high), height: Math.max(2, y(low) - y(high)), class: "brush" })); }
    const hit = svg("rect", { x: x(i) - 12, width: 24, y: y(1) - 6, height: HEIGHT + 12 + BELOW, class: "hit" });
    hit.addEventListener("pointerdown", (event) => brush(event, i));
    parts.push(hit);
  });
  if (D.jobs.some((job) => job.failed)) { const t = svg("text", { x: x(lastAxis) + 6, y: y(-BELOW / HEIGHT) + 4, class: "tick" }, "failed"); t.style.fill = failedColor(); parts.push(t); }
  root.replaceChildren(...parts);
}

function brush(event, i) {
  event.preventDefault();
  const at = (e) => Math.min(1.02, Math.max(-0.2, 1 - (e.clientY - $("parallel").getBoundingClientRect().top - TOP) / HEIGHT));
  const from = at(event);
  const move = (e) => { brushes.set(i, [Math.min(from, at(e)), Math.max(from, at(e))]); chosen.jobs = brushed(); drawParallel(); };
  const end = (e) => {
    removeEventListener("pointermove", move); removeEventListener("pointerup", end);
    if (Math.abs(at(e) - from) < 0.015) brushes.delete(i);
    chosen.jobs = brushed();
    redraw();
  };
  addEventListener("pointermove", move); addEventListener("pointerup", end);
}

if (D.parallel.length) {
  $("parallel-section").hidden = false;
  redraws.push(drawParallel);
  addEventListener("resize", drawParallel);
}
