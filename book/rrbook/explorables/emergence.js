// Chapter 14: a gap that training makes, and one that size makes.

var WINDOW = 64 * 256;
var DESIGNS = {steps: "the study’s steps", tokens: "equal tokens",
  ratio: "equal tokens per parameter"};
var FALLS = {ratio: "tokens per parameter", tokens: "tokens alone"};

function toyGap(x, tenfolds, v) {
  return v.cost - Math.pow(x, -v.alpha) * (1 - Math.pow(v.speed, -v.alpha)) - v.size * tenfolds;
}

function toyNumbers(rungs, v) {
  var first = rungs[0][1], steps = rungs[0][2], start = steps * WINDOW / first;
  var ratios = [], gaps = [];
  rungs.forEach(function (rung) {
    var count = rung[1], own = rung[2], grown = count / first;
    var ratio = v.design === "ratio" ? start : (v.design === "steps" ? own : steps) * WINDOW / count;
    var more = v.design === "steps" ? own / steps : v.design === "tokens" ? 1 : grown;
    ratios.push(ratio);
    gaps.push(toyGap(v.falls === "ratio" ? ratio : start * more, Math.log10(grown), v));
  });
  var end = gaps.length - 1;
  return {ratios: ratios, gaps: gaps, change: gaps[end] - gaps[0],
    own: -v.size * Math.log10(rungs[end][1] / first) || 0};
}

function toySentence(rungs, v) {
  var found = toyNumbers(rungs, v), trained = found.change - found.own, end = rungs.length - 1;
  if (Math.abs(trained) < 1e-12) trained = 0;
  return "Compared at " + DESIGNS[v.design] + ", the gap goes from " + number(found.gaps[0]) +
    " nats at " + rungs[0][0] + " to " + number(found.gaps[end]) + " at " + rungs[end][0] +
    " (published: " + number(rungs[0][3]) + " and " + number(rungs[end][3]) + "). Size causes " +
    number(found.own) + " nats of this change, and training " + number(trained) + ". The rule learns as if from " +
    number(v.speed) + " times the tokens, gains " + number(v.size) + " nats per tenfold of size and loses " +
    number(v.cost) + " everywhere; what is left to learn falls with " + FALLS[v.falls] + ", exponent " +
    number(v.alpha) + ".";
}

// Round gaps from low to high, zero among them: seven at most.
function toyTicks(low, high) {
  var step = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5].filter(function (one) {
    return (high - low) / one <= 6;
  })[0], ticks = [];
  for (var k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9; k++) ticks.push(k * step || 0);
  return ticks;
}

function drawToy(svg, v, width, rungs) {
  var left = 62, right = width - 16, top = 34, bottom = 222, curves = {}, all = [];
  svg.setAttribute("viewBox", "0 0 " + width + " 268");
  Object.keys(DESIGNS).forEach(function (name) {
    curves[name] = toyNumbers(rungs, {speed: v.speed, size: v.size, alpha: v.alpha, cost: v.cost,
      design: name, falls: v.falls}).gaps;
    all = all.concat(curves[name]);
  });
  all = all.concat(rungs.map(function (rung) { return rung[3]; }));
  var high = Math.max.apply(null, all.concat([0])), low = Math.min.apply(null, all.concat([-0.02]));
  var x = scale(Math.log10(rungs[0][1]), Math.log10(rungs[rungs.length - 1][1]), left + 14, right - 14);
  var y = scale(low, high, bottom, top);
  add(svg, "text", {x: 0, y: 12, "class": "soft"}, "gap, rule − rival (nats per token)");
  toyTicks(low, high).forEach(function (gap) {
    add(svg, "path", {d: "M" + left + " " + round(y(gap)) + "H" + right, "class": "grid"});
    add(svg, "text", {x: left - 6, y: y(gap) + 4, "text-anchor": "end", "class": "soft"},
      number(gap));
  });
  rungs.forEach(function (rung) {
    add(svg, "text", {x: x(Math.log10(rung[1])), y: bottom + 19, "text-anchor": "middle",
      "class": "soft"}, rung[0]);
  });
  add(svg, "text", {x: (left + right) / 2, y: bottom + 39, "text-anchor": "middle",
    "class": "soft"}, "model size (parameters)");
  Object.keys(DESIGNS).forEach(function (name) {
    var points = curves[name].map(function (gap, i) { return [x(Math.log10(rungs[i][1])), y(gap)]; });
    add(svg, "path", {d: path(points), "class": name === v.design ? "blue line" : "ink thin"});
    if (name === v.design) points.forEach(function (p) {
      add(svg, "circle", {cx: p[0], cy: p[1], r: 4, "class": "is-blue"});
    });
  });
  rungs.forEach(function (rung) {
    add(svg, "circle", {cx: x(Math.log10(rung[1])), cy: y(rung[3]), r: 6, "class": "hollow amber"});
  });
  return toySentence(rungs, v);
}

mount("size-or-training", drawToy);
