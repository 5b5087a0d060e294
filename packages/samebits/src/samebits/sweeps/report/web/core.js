"use strict";
// What the others share: the data, the theme, what is chosen, and small builders of elements.
const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "hexagon"];
const COLORED = D.colors.light.length; // the best so many groups have a colour of their own
const chosen = { groups: new Set(), jobs: null }; // jobs: the numbers that the brushes leave, null without brushes
const redraws = []; // each part's own function, called when the theme or the choice changes

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const dark = () => prefersDark.matches;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// plotly reads a few tags in labels; a value's < is a character
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
const round = (v) => (v === null || v === undefined ? "–" : Number(v).toPrecision(4).replace(/(\.\d*?)0+(e|$)/, "$1$2").replace(/\.(e|$)/, "$1"));
const palette = () => (dark() ? D.colors.dark : D.colors.light);
const failedColor = () => D.colors.failed[dark() ? 1 : 0];
const faintColor = () => D.colors.faint[dark() ? 1 : 0];
const rgba = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis
function viridis(t) { // 0..1; on dark paper from its light end, so that the best always stands out
  const at = Math.min(Math.max(dark() ? 1 - 0.85 * t : 0.93 * t, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(at), STOPS.length - 2);
  return "#" + STOPS[i].map((low, k) => Math.round(low + (at - i) * (STOPS[i + 1][k] - low)).toString(16).padStart(2, "0")).join("");
}

const inBrush = (job) => chosen.jobs === null || chosen.jobs.has(job.number);
const shownJob = (job) => inBrush(job) && shownGroup(job.group);
const shownGroup = (index) => ranks.has(index) && (chosen.groups.size === 0 || chosen.groups.has(index));

let ranks = new Map(); // of the groups that the brushes leave a job of: index -> rank, best first
const rankOf = (index) => ranks.get(index);
function select() {
  const left = D.groups.map((_, i) => i).filter((i) => D.groups[i].jobs.some((k) => inBrush(D.jobs[k])));
  ranks = new Map(left.map((i, rank) => [i, rank]));
}
function toggleGroup(index) {
  if (chosen.groups.has(index)) chosen.groups.delete(index); else chosen.groups.add(index);
  redraw();
}
const redraw = () => { select(); redraws.forEach((draw) => draw()); };

function layout(extra = {}) {
  const axis = (more = {}) => ({ gridcolor: css("--grid"), zerolinecolor: css("--grid"), linecolor: css("--line"), tickcolor: css("--line"),
    automargin: true, title: { standoff: 8 }, exponentformat: "power", ...more });
  const { xaxis, yaxis, ...rest } = extra;
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 14, t: 26, b: 44 }, showlegend: false,
    font: { color: css("--ink"), size: 12, family: getComputedStyle(document.body).fontFamily }, hovermode: "closest",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") } }, uirevision: "keep",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
    xaxis: axis(xaxis), yaxis: axis(yaxis), ...rest };
}
// plotly watches the window only; a plot must also follow its own box
const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => { if (target.data) Plotly.Plots.resize(target); }));
const watch = () => document.querySelectorAll(".plot").forEach((plot) => watcher.observe(plot));
// plotly's button that uploads a chart is not among these, and has nowhere to send it to
const PLOT = { displaylogo: false, displayModeBar: false, showSendToCloud: false, plotlyServerURL: "" };
const BUTTONS = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
const PLOT_TOOLS = { ...PLOT, displayModeBar: true, modeBarButtons: BUTTONS };

prefersDark.addEventListener("change", redraw);

function swatch(color, shape, dash) {
  const mark = { circle: '<circle cx="12" cy="6" r="3.6"/>', square: '<rect x="8.6" y="2.6" width="6.8" height="6.8"/>',
    "triangle-up": '<path d="M12 1.6 16.2 9.4H7.8Z"/>', diamond: '<path d="M12 1.4 16.4 6 12 10.6 7.6 6Z"/>',
    "triangle-down": '<path d="M12 10.4 16.2 2.6H7.8Z"/>', cross: '<path d="M10.6 2h2.8v2.6H16v2.8h-2.6V10h-2.8V7.4H8V4.6h2.6Z"/>',
    hexagon: '<path d="M10 2.4h4L16.2 6 14 9.6h-4L7.8 6Z"/>', x: '<path d="M8.5 2.5l7 7m0-7l-7 7" stroke-width="2"/>' }[shape] || "";
  const made = element("span");
  made.innerHTML = `<svg width="24" height="12" fill="${color}" stroke="${color}"><path d="M0 6H24" stroke-width="2" ${dash ? 'stroke-dasharray="4 3"' : ""}/>${mark}</svg>`;
  return made.firstChild;
}
