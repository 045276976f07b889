// One gated write in two channels: what a gate can write that a constant cannot.

var HERE = [2.2, 0.6];

// v: u1, u2, r1, r2.
function writeNumbers(v) {
  var u = [v.u1, v.u2], step = [v.r1 * v.u1, v.r2 * v.u2];
  var size = Math.hypot(u[0], u[1]), turn = Math.abs(Math.atan2(
    u[0] * step[1] - u[1] * step[0], u[0] * step[0] + u[1] * step[1])) * 180 / Math.PI;
  return {next: [HERE[0] + step[0], HERE[1] + step[1]], turn: turn,
    kept: size ? Math.hypot(step[0], step[1]) / size : 0};
}

function writeSentence(v) {
  var g = writeNumbers(v);
  if (!v.u1 && !v.u2) return "The update is zero, so every rule leaves h as it is.";
  if (!g.kept) return "The gate is closed where the update has anything: h stays as it is.";
  if (v.r1 === v.r2) {
    return "One r for both channels keeps the update’s direction and writes " + share(g.kept) +
      " of its length. h + u is r = 1, h + ½u is r = ½.";
  }
  return "r is " + number(v.r1) + " in channel 1 and " + number(v.r2) + " in channel 2: the " +
    "update is written at " + share(g.kept) + " of its length and turned by " + number(g.turn) +
    "°. A constant never turns it.";
}

function drawWrite(svg, v, width, data, form) {
  var unit = Math.min(112, width / 5.1), left = (width - 5.1 * unit) / 2 + 0.3 * unit;
  var top = 6, high = 1.95, height = 2.75 * unit;
  svg.setAttribute("viewBox", "0 0 " + width + " " + round(height + 12));
  var to = function (p) { return [left + p[0] * unit, top + (high - p[1]) * unit]; };
  var channels = function (x, y) {
    return [(x - left) / unit - HERE[0], high - (y - top) / unit - HERE[1]];
  };
  var g = writeNumbers(v), zero = to([0, 0]), h = to(HERE), next = to(g.next);
  var open = to([HERE[0] + v.u1, HERE[1] + v.u2]);
  var half = to([HERE[0] + v.u1 / 2, HERE[1] + v.u2 / 2]);
  add(svg, "path", {d: path([to([-0.25, 0]), to([4.75, 0])]), "class": "grid"});
  add(svg, "path", {d: path([to([0, -0.75]), to([0, 1.9])]), "class": "grid"});
  add(svg, "text", {x: to([4.75, 0])[0], y: zero[1] + 17, "text-anchor": "end", "class": "soft"},
    "channel 1");
  add(svg, "text", {x: zero[0] + 7, y: top + 10, "class": "soft"}, "channel 2");
  // all that a gate can write
  add(svg, "rect", {x: round(Math.min(h[0], open[0])), y: round(Math.min(h[1], open[1])),
    width: round(Math.abs(open[0] - h[0])), height: round(Math.abs(open[1] - h[1])),
    "class": "is-blue", opacity: 0.1});
  arrow(svg, h, open, "amber thin dash");
  arrow(svg, h, next, "amber line");
  arrow(svg, zero, h, "ink line");
  arrow(svg, zero, next, "blue line");
  add(svg, "circle", {cx: round(half[0]), cy: round(half[1]), r: 4, "class": "is-amber"});
  place(svg, [[next, "h + r⊙u", "is-blue b"], [h, "h", "is-ink b"], [open, "h + u", "is-amber"],
    [half, "h + ½u", "is-amber"]], [[h, open], [h, next], [zero, h], [zero, next]]);
  handle(svg, open, "amber", function (x, y) {
    var u = channels(x, y);
    setSliders(form, {u1: u[0], u2: u[1]});
  });
  handle(svg, next, "blue", function (x, y) {
    var step = channels(x, y), r = {};
    if (v.u1) r.r1 = step[0] / v.u1;
    if (v.u2) r.r2 = step[1] / v.u2;
    setSliders(form, r);
  });
  return writeSentence(v);
}

mount("gated-write", drawWrite);
