"use strict";
// Sliders and curves. Sliders are logarithmic except where noted.
const SLIDERS = [
  { id: "bandwidth", name: "Bandwidth", low: 1e6, high: 4e11, value: 1e8, show: (v) => si(v, "bit/s") },
  { id: "rtt", name: "Round-trip time", low: 0.1, high: 1000, value: 40, show: (v) => `${digits(v)} ms` },
  { id: "buffer", name: "Buffer of a stream", base: 1024, low: 4096, high: 2 ** 30, value: 2 ** 16, show: (v) => iec(v) },
  { id: "loss", name: "Loss without congestion", low: 1e-7, high: 0.2, value: 0, zero: true, show: (v) => (v ? percent(v) : "none") },
  { id: "packet", name: "Packet", low: 500, high: 9000, value: 1500, show: (v) => `${Math.round(v)} bytes` },
  { id: "most", name: "Most streams", low: 2, high: 4096, value: 128, show: (v) => `${Math.round(v)}` },
];
const digits = (v) => (v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : v.toFixed(0));
const percent = (v) => `${(100 * v).toPrecision(3)} %`;
function scaled(v, base, names, unit) {
  let index = 0;
  while (v >= base * 0.9995 && index < names.length - 1) { v /= base; index++; }
  return `${digits(v)} ${names[index]}${unit}`;
}
const si = (v, unit) => scaled(v, 1000, ["", "k", "M", "G", "T"], unit);
const iec = (v) => scaled(v, 1024, ["", "Ki", "Mi", "Gi"], "B");

// To two digits in the unit in which it is shown, so that a round value can be set.
function round(v, base) {
  const unit = base ** Math.floor(Math.log(v) / Math.log(base) + 1e-9);
  return Number((v / unit).toPrecision(v / unit < 100 ? 2 : 3)) * unit;
}

const STEPS = 1000;
function read(slider) {
  const at = Number(document.getElementById(slider.id).value);
  if (slider.zero && at === 0) return 0;
  const value = slider.low * (slider.high / slider.low) ** (at / STEPS);
  if (slider.id === "most") return Math.round(value);
  return round(value, slider.base || 10);
}
const place = (slider) =>
  slider.value ? Math.round(STEPS * Math.log(slider.value / slider.low) / Math.log(slider.high / slider.low)) : 0;

// Round numbers from 0 to `most`, about `count` of them.
function ticks(most, count, least) {
  const rough = most / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, power * ([1, 2, 5].find((factor) => factor * power >= rough * 0.999) || 10));
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
// Without zeros that say nothing: `1.50 Gbit/s` is `1.5 Gbit/s`.
const short = (text) => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

// One panel as SVG, as wide as there is room, so that its text keeps its size. Series are [class, [[x, y], ...]]; `capacity` is a
// height, or nothing.
function panel(title, series, xMost, yMost, show, mark, capacity) {
  const room = document.getElementById("plots").clientWidth || 760;
  const [width, height, left, right, bottom] = [Math.max(280, Math.min(room, 760)), 250, 80, 15, 42];
  const x = (v) => left + (width - left - right) * (v / xMost), y = (v) => height - bottom - (height - bottom - 25) * (v / yMost);
  let svg = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}"><text x="${left}" y="15">${title}</text>`;
  for (const v of ticks(yMost, 5, 0)) {
    const h = y(v).toFixed(1);
    svg += `<line class="grid" x1="${left}" x2="${width - right}" y1="${h}" y2="${h}"/>`;
    svg += `<text class="tick" x="${left - 6}" y="${(y(v) + 4).toFixed(1)}" text-anchor="end">${v ? short(show(v)) : 0}</text>`;
  }
  for (const n of ticks(xMost, width < 500 ? 5 : 10, 1)) {
    svg += `<text class="tick" x="${x(n).toFixed(1)}" y="${height - bottom + 15}" text-anchor="middle">${n}</text>`;
  }
  svg += `<text class="tick" x="${(left + width - right) / 2}" y="${height - 8}" text-anchor="middle">streams</text>`;
  if (capacity) {
    const h = y(capacity).toFixed(1);
    svg += `<line class="capacity" x1="${left}" x2="${width - right}" y1="${h}" y2="${h}"/>`;
    svg += `<text class="tick" x="${width - right}" y="${(y(capacity) - 5).toFixed(1)}" text-anchor="end">capacity of the link</text>`;
  }
  for (const [kind, points] of series) {
    const path = points.map(([a, b]) => `${x(a).toFixed(1)},${y(Math.min(b, yMost)).toFixed(1)}`).join(" ");
    svg += `<polyline class="${kind}" points="${path}" fill="none" stroke-width="2"/>`;
  }
  const m = x(mark).toFixed(1);
  return `${svg}<line class="mark" x1="${m}" x2="${m}" y1="25" y2="${height - bottom}"/></svg>`;
}

function draw() {
  const v = {};
  for (const slider of SLIDERS) {
    v[slider.id] = read(slider);
    document.getElementById(`${slider.id}-value`).textContent = slider.show(v[slider.id]);
  }
  const path = { bandwidth: v.bandwidth / (8000 * v.packet), rtt: v.rtt, window: v.buffer / v.packet, loss: v.loss };
  const best = model.optimum(path, v.most);
  const last = Math.max(2, Math.min(v.most, Math.max(16, 6 * best.streams)));
  const curves = { eq: [], real: [], lost: [], realLost: [] };
  const step = Math.max(1, Math.ceil(last / 400));
  for (let n = 1; n <= last; n += step) {
    const a = model.goodput(path, n), b = model.physical(path, n);
    curves.eq.push([n, a.goodput * 8000 * v.packet]);
    curves.real.push([n, b.goodput * 8000 * v.packet]);
    curves.lost.push([n, a.loss]);
    curves.realLost.push([n, b.loss]);
  }
  const lossMost = Math.max(1e-6, ...curves.lost.concat(curves.realLost).map((point) => point[1])) * 1.05;
  document.getElementById("plots").innerHTML =
    panel("Goodput by number of streams", [["model", curves.eq], ["link", curves.real]], last, v.bandwidth * 1.15, (b) => si(b, "bit/s"), best.streams, v.bandwidth)
    + panel("Loss by number of streams", [["model", curves.lost], ["link", curves.realLost]], last, lossMost, percent, best.streams);
  const at = model.goodput(path, best.streams);
  const why = best.limited ? `the link is not full; ${Math.ceil(best.streams_real)} streams would fill it`
    : best.streams === 1 ? "the bandwidth-delay product fits into one window"
    : at.regime === "loss" || best.x_star < model.xStar(path.window) ? "loss holds the windows down; so many fill the link"
    : "so many windows fill the link; more only add loss";
  document.getElementById("best").textContent =
    `Best: ${best.streams} stream${best.streams === 1 ? "" : "s"}, ${si(best.goodput * 8000 * v.packet, "bit/s")}, loss ${percent(at.loss)}: ${why}.`
    + (model.goodput(path, last).valid ? "" : " The right end is extrapolated: windows of less than three packets.");
}

const form = document.getElementById("sliders");
for (const slider of SLIDERS) {
  const row = document.createElement("label");
  row.innerHTML = `<span>${slider.name}</span><input type="range" id="${slider.id}" min="0" max="${STEPS}" value="${place(slider)}"><output id="${slider.id}-value"></output>`;
  form.append(row);
}
form.addEventListener("input", draw);
if (typeof addEventListener === "function") addEventListener("resize", draw);
const wrong = model.check(CHECKS);
if (wrong.length) {
  document.getElementById("wrong").textContent = `This page computes something else than the program: ${wrong.join("; ")}`;
}
draw();
