"use strict";
// The equations of docs/models.md, as the program has them. Units: packets, milliseconds.
const model = (() => {
  const timeout = (w) => (w <= 3 ? 1 : 3 / w);
  const lossOfWindow = (w) =>
    w <= 0.75 ? 1 : w < 3 ? 1 / (1 - w + 4 * w * w / 3) : 1 / (2 * w * w / 3 + 2 * w - 2);
  const windowOfLoss = (p) =>
    p <= 0.1 ? Math.sqrt((6 + 21 * p) / p) / 2 - 1.5 : (3 + Math.sqrt(48 / p - 39)) / 8;
  const delivered = (w) => w * (1 - lossOfWindow(w));

  // The solution of x (1 - p(x)) = W above W: a cubic, or bisection where the model is extrapolated.
  function xStar(w) {
    if (w < 2.7) {
      let low = 0.75, high = 3;
      for (let i = 0; i < 200; i++) {
        const middle = 0.5 * (low + high);
        if (delivered(middle) < w) low = middle; else high = middle;
      }
      return 0.5 * (low + high);
    }
    const b = 3 - w, c = -(9 + 6 * w) / 2, d = 3 * w;
    const p = c - b * b / 3, q = 2 * b * b * b / 27 - b * c / 3 + d;
    const cosine = Math.min(1, Math.max(-1, 3 * q / (2 * p) * Math.sqrt(-3 / p)));
    let x = 2 * Math.sqrt(-p / 3) * Math.cos(Math.acos(cosine) / 3) - b / 3;
    for (let i = 0; i < 3; i++) {
      x -= (((x + b) * x + c) * x + d) / ((3 * x + 2 * b) * x + c);
    }
    return Math.max(x, w);
  }

  // While the link is not full.
  function limited(path, n) {
    const byLoss = path.loss > 0 ? windowOfLoss(path.loss) : Infinity;
    const window = Math.min(byLoss, path.window);
    const regime = byLoss < path.window ? "loss" : "window";
    // Windows that the model was made for, or a buffer that holds a packet.
    const valid = regime === "loss" ? byLoss >= 3 : path.window >= 1;
    return { goodput: n * window / path.rtt * (1 - path.loss), regime, valid };
  }

  // Eq (12).
  function goodput(path, n) {
    const share = path.bandwidth * path.rtt / n;
    const loss = lossOfWindow(share), full = path.bandwidth * (1 - loss), free = limited(path, n);
    const valid = share >= 3;
    return free.goodput <= full
      ? { goodput: free.goodput, loss: path.loss, regime: free.regime, valid: valid && free.valid }
      : { goodput: full, loss, regime: "network", valid };
  }

  // The link delivers its bandwidth.
  function physical(path, n) {
    const share = path.bandwidth * path.rtt / n, free = limited(path, n);
    const valid = share >= 3;
    return free.goodput <= path.bandwidth
      ? { goodput: free.goodput, loss: path.loss, regime: free.regime, valid: valid && free.valid }
      : { goodput: path.bandwidth, loss: Math.max(path.loss, lossOfWindow(xStar(share))), regime: "network", valid };
  }

  function optimum(path, most) {
    const byLoss = path.loss > 0 ? windowOfLoss(path.loss) : Infinity;
    const x = xStar(Math.min(path.window, byLoss) * (1 - path.loss));
    const real = path.bandwidth * path.rtt / x;
    const clamp = (n) => Math.min(Math.max(n, 1), most);
    const low = clamp(Math.floor(real)), high = clamp(Math.ceil(real));
    const streams = goodput(path, high).goodput > goodput(path, low).goodput ? high : low;
    return { x_star: x, streams_real: real, streams, goodput: goodput(path, streams).goodput, limited: real > most };
  }

  // Compares with what the program computed: a list of differences.
  function check(table) {
    const wrong = [];
    const differ = (a, b) => Math.abs(a - b) > 1e-9 * Math.max(Math.abs(a), Math.abs(b), 1e-6);
    for (const row of table) {
      const path = { bandwidth: row.bandwidth, rtt: row.rtt, window: row.window, loss: row.loss };
      const best = optimum(path, row.most), steady = goodput(path, row.streams), real = physical(path, row.streams);
      const got = {
        best: best.streams, x_star: best.x_star, best_goodput: best.goodput, goodput: steady.goodput,
        lost: steady.loss, physical: real.goodput, physical_lost: real.loss,
      };
      for (const key of Object.keys(got)) {
        if (differ(got[key], row[key])) wrong.push(`${key}: ${got[key]}, the program says ${row[key]}`);
      }
      if (steady.regime !== row.regime || steady.valid !== row.valid) wrong.push(`regime: ${steady.regime}`);
    }
    return wrong;
  }

  return { timeout, lossOfWindow, windowOfLoss, xStar, goodput, physical, optimum, check };
})();
if (typeof module !== "undefined") module.exports = model;
