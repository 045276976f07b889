// The gate by hand: two channels, so that vectors are arrows.

var STATE = [1.2, 0.9];

function rmsNormed(v) {
  var rms = Math.sqrt((v[0] * v[0] + v[1] * v[1]) / 2 + 1e-5);
  return [v[0] / rms, v[1] / rms];
}

// v: angle (degrees from h), size, rule, state, update (the two weights), bias.
function gateNumbers(v) {
  var turn = Math.atan2(STATE[1], STATE[0]) + v.angle * Math.PI / 180;
  var u = [v.size * Math.cos(turn), v.size * Math.sin(turn)];
  var h = STATE, nh = rmsNormed(h), nu = rmsNormed(u), r = [0, 1].map(function (i) {
    if (v.rule === "standard") return 1;
    if (v.rule === "constant") return 0.5;
    return sigmoid(v.state * nh[i] + (v.rule === "review" ? v.update * nu[i] : 0) + v.bias);
  });
  var step = [r[0] * u[0], r[1] * u[1]];
  return {u: u, r: r, step: step, next: [h[0] + step[0], h[1] + step[1]],
    convex: [(1 - r[0]) * h[0] + step[0], (1 - r[1]) * h[1] + step[1]]};
}

function gateSentence(v) {
  var g = gateNumbers(v), why = {
    standard: "The standard rule has no gate: r = 1 in both channels.",
    constant: "With W = 0 and b = 0 the gate lets half of everything in: r = 0.5 in both channels.",
    state: "The gate reads only the state, so turning u leaves it alone: r = ",
    review: "The gate reads state and update, each rms-normalised: r = "
  }[v.rule];
  if (v.rule === "state" || v.rule === "review") {
    why += number(g.r[0]) + " in channel 1 and " + number(g.r[1]) + " in channel 2.";
  }
  return why + " The state has length 1.5, the new one " + number(Math.hypot(g.next[0], g.next[1])) +
    "; the convex form would give " + number(Math.hypot(g.convex[0], g.convex[1])) + ".";
}

// Only what the rule reads can be moved.
function enable(form, rule) {
  var used = {state: ["state", "bias"], review: ["state", "update", "bias"]}[rule] || [];
  ["state", "update", "bias"].forEach(function (name) {
    var input = form.elements[name];
    input.disabled = used.indexOf(name) < 0;
    input.parentNode.classList.toggle("rr-off", input.disabled);
  });
}

function meter(svg, x, y, across, up, value, name) {
  add(svg, "rect", {x: x, y: y, width: across, height: up, rx: 3, "class": "grid"});
  if (across > up) add(svg, "rect", {x: x, y: y, width: across * value, height: up, rx: 3,
    "class": "is-mid"});
  else add(svg, "rect", {x: x, y: y + up * (1 - value), width: across, height: up * value, rx: 3,
    "class": "is-mid"});
  var middle = across > up ? [x + across / 2, y - 3, x + across / 2, y + up + 3]
    : [x - 3, y + up / 2, x + across + 3, y + up / 2];
  add(svg, "line", {x1: middle[0], y1: middle[1], x2: middle[2], y2: middle[3], "class": "ink"});
  var label = across > up ? {x: x + across + 8, y: y + up - 1} : {x: x - 14, y: y - 9};
  add(svg, "text", label, name + " = " + number(value));
}

function drawGate(svg, v, width, data, form) {
  enable(form, v.rule);
  var g = gateNumbers(v), side = Math.min(width - 60, 320), unit = side / 4.5;
  var left = Math.max(54, (width - side) / 2), height = unit * 4.1, top = 8;
  svg.setAttribute("viewBox", "0 0 " + width + " " + round(height + 62));
  var to = function (x, y) { return [left + (x + 1.6) * unit, top + (2.5 - y) * unit]; };
  add(svg, "path", {d: path([to(-1.6, 0), to(2.9, 0)]), "class": "grid"});
  add(svg, "path", {d: path([to(0, -1.6), to(0, 2.5)]), "class": "grid"});
  add(svg, "text", {x: to(2.9, 0)[0], y: to(0, 0)[1] + 17, "text-anchor": "end",
    "class": "soft"}, "channel 1");
  add(svg, "text", {x: to(0, 0)[0] - 7, y: top + 10, "text-anchor": "end", "class": "soft"},
    "channel 2");
  var zero = to(0, 0), h = to(STATE[0], STATE[1]), next = to(g.next[0], g.next[1]);
  var open = to(STATE[0] + g.u[0], STATE[1] + g.u[1]), convex = to(g.convex[0], g.convex[1]);
  add(svg, "path", {d: "M" + round(next[0]) + " " + round(h[1]) + "H" + round(open[0]) + "V" +
    round(open[1]) + "M" + path([next, [next[0], h[1]]]).slice(1), "class": "grid dash"});
  arrow(svg, zero, convex, "red thin dash");
  arrow(svg, h, open, "amber thin dash");
  arrow(svg, h, next, "amber line");
  arrow(svg, zero, h, "ink line");
  arrow(svg, zero, next, "blue line");
  place(svg, [[next, "h + r⊙u", "is-blue b"], [h, "h", "is-ink b"], [open, "h + u", "is-amber"],
    [convex, "convex", "is-red"]],
    [[zero, convex], [h, open], [h, next], [zero, h], [zero, next]]);
  handle(svg, open, "amber", function (x, y) {
    var u = [(x - left) / unit - 1.6 - STATE[0], 2.5 - (y - top) / unit - STATE[1]];
    var angle = (Math.atan2(u[1], u[0]) - Math.atan2(STATE[1], STATE[0])) * 180 / Math.PI;
    setSliders(form, {angle: angle - 360 * Math.round(angle / 360), size: Math.hypot(u[0], u[1])});
  });
  meter(svg, left - 36, top + 24, 12, height - 24, g.r[1], "r₂");
  meter(svg, left, top + height + 24, side - 92, 12, g.r[0], "r₁");
  return gateSentence(v);
}

mount("gate-playground", drawGate);
