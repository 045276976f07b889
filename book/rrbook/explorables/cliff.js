// The depth cliff: how much of the embedding is left, by formula, beside what was recorded.

// r = σ(bias); after l sublayers: the direct path, and ‖what is left of h₀‖ / ‖hₗ‖.
function cliffNumbers(l, bias) {
  var r = sigmoid(bias), direct = Math.pow(1 - r, l), written = 0;
  for (var k = 0; k < l; k++) written += Math.pow(1 - r, 2 * k);
  return {
    r: r,
    convex: {direct: direct, share: direct / Math.sqrt(direct * direct + r * r * written)},
    additive: {direct: 1, share: 1 / Math.sqrt(1 + r * r * l)}
  };
}

function nearest(list, wanted) {
  return list.reduce(function (best, x) {
    return Math.abs(x - wanted) < Math.abs(best - wanted) ? x : best;
  });
}

function unique(list) {
  return list.filter(function (x, i) { return list.indexOf(x) === i; })
    .sort(function (a, b) { return a - b; });
}

// The recorded runs nearest to the chosen depth, and for each rule nearest to the chosen bias.
function recordedNear(data, l, bias) {
  var depth = nearest(unique(data.map(function (d) { return d.sublayers; })), l);
  var here = data.filter(function (d) { return d.sublayers === depth; }), rules = [];
  here.forEach(function (d) { if (rules.indexOf(d.rule) < 0) rules.push(d.rule); });
  rules.sort();  // the same order at every depth
  return {depth: depth, arms: rules.map(function (rule) {
    var mine = here.filter(function (d) { return d.rule === rule; });
    var at = nearest(unique(mine.map(function (d) { return d.bias; })).reverse(), bias);
    var runs = mine.filter(function (d) { return d.bias === at; });
    var ends = runs.map(function (d) { return d.held_out; });
    return {rule: rule, bias: at, runs: runs, steps: Math.max.apply(null, runs.map(function (d) {
      return d.steps[d.steps.length - 1] + 1; // they are counted from 0
    })), loss: ends.reduce(function (a, b) { return a + b; }, 0) / ends.length};
  })};
}

function range(list) {
  var low = Math.min.apply(null, list), high = Math.max.apply(null, list);
  return low === high ? String(low) : low + " to " + high;
}

function cliffSentence(l, bias, data) {
  var c = cliffNumbers(l, bias), text = "By formula, with r = " + number(c.r) + " and " + l +
    " sublayers: the convex form’s direct path keeps " + number(c.convex.direct) +
    " of the embedding, which is " + number(c.convex.share) +
    " of the last state’s length; the additive form keeps all of it, " +
    number(c.additive.share) + " of the length.";
  if (!data) return text;
  var near = recordedNear(data, l, bias), arms = near.arms.map(function (arm) {
    return arm.rule + " (b = " + number(arm.bias) + ") " + number(arm.loss);
  });
  var seeds = range(near.arms.map(function (arm) { return arm.runs.length; }));
  return text + "\nRecorded at " + near.depth + " sublayers: " + arms.join(", ") +
    " nats per token held out after " + range(near.arms.map(function (arm) { return arm.steps; })) +
    " steps, mean of " + seeds + (seeds === "1" ? " seed." : " seeds.");
}

var COLOURS = {additive: "blue", convex: "red"};

function drawFormula(svg, l, bias, x0, x1, top, bottom) {
  var x = scale(0, 64, x0, x1), y = scale(0, -20, top, bottom), names = ["convex", "additive"];
  var level = function (v) { return y(Math.max(-20.4, Math.log10(v))); };
  [0, -5, -10, -15, -20].forEach(function (p) {
    add(svg, "path", {d: "M" + x0 + " " + round(y(p)) + "H" + x1, "class": "grid"});
    add(svg, "text", {x: x0 - 8, y: y(p) + 4, "text-anchor": "end", "class": "soft"},
      p ? number(Math.pow(10, p)).split("\u00a0").pop() : "1");
  });
  [0, 16, 32, 48, 64].forEach(function (d) {
    add(svg, "text", {x: x(d), y: bottom + 19, "text-anchor": "middle", "class": "soft"}, d);
  });
  add(svg, "text", {x: (x0 + x1) / 2, y: bottom + 37, "text-anchor": "middle", "class": "soft"},
    "sublayers");
  add(svg, "path", {d: "M" + round(x(l)) + " " + top + "V" + bottom, "class": "ink thin dash"});
  names.forEach(function (form) {
    ["direct", "share"].forEach(function (what) {
      var points = [], style = form === "convex" ? "red" : "blue";
      for (var d = 0; d <= 64; d++) points.push([x(d), level(cliffNumbers(d, bias)[form][what])]);
      add(svg, "path", {d: path(points), "class": style + (what === "direct" ? " thin dash" : " line")});
    });
    var dot = {cx: x(l), cy: level(cliffNumbers(l, bias)[form].share), r: 4.5};
    dot["class"] = form === "convex" ? "is-red" : "is-blue";
    add(svg, "circle", dot);
  });
  var now = cliffNumbers(l, bias), side = l > 40 ? -10 : 10, upper = level(now.additive.share) + 19;
  var lower = level(now.convex.share) - 8;
  if (lower < upper + 17) lower = Math.max(lower + 27, upper + 17);
  [["additive", upper, "is-blue"], ["convex", lower, "is-red"]].forEach(function (label) {
    add(svg, "text", {x: x(l) + side, y: label[1], "text-anchor": side < 0 ? "end" : "start",
      "class": label[2] + " b halo"}, label[0] + " " + number(now[label[0]].share));
  });
}

function drawRecorded(svg, near, data, x0, x1, top, bottom) {
  var last = Math.max.apply(null, data.map(function (d) { return d.steps[d.steps.length - 1]; }));
  var all = [].concat.apply([], data.map(function (d) { return d.loss; }));
  var low = Math.floor(Math.min.apply(null, all)), high = Math.ceil(Math.max.apply(null, all));
  var x = scale(0, last, x0, x1), y = scale(low, high, bottom, top);
  for (var v = low; v <= high; v += Math.max(1, Math.ceil((high - low) / 6))) {
    add(svg, "path", {d: "M" + x0 + " " + round(y(v)) + "H" + x1, "class": "grid"});
    add(svg, "text", {x: x0 - 8, y: y(v) + 4, "text-anchor": "end", "class": "soft"}, v);
  }
  [0, last / 2, last].forEach(function (s) {
    add(svg, "text", {x: x(s), y: bottom + 19, "text-anchor": "middle", "class": "soft"},
      Math.round(s));
  });
  add(svg, "text", {x: (x0 + x1) / 2, y: bottom + 37, "text-anchor": "middle", "class": "soft"},
    "training step");
  near.arms.forEach(function (arm) {
    arm.runs.forEach(function (run) {
      add(svg, "path", {"class": (COLOURS[arm.rule] || "ink") + " line",
        d: path(run.steps.map(function (s, i) { return [x(s), y(run.loss[i])]; }))});
    });
  });
  near.arms.forEach(function (arm, i) {  // below the axis: no name covers a curve
    add(svg, "text", {x: x0, y: bottom + 58 + 17 * i, "class": "is-" + (COLOURS[arm.rule] || "ink") +
      " b"}, arm.rule + ", b = " + number(arm.bias) + ": " + number(arm.loss) + " held out");
  });
}

function drawCliff(svg, v, width, data) {
  var two = data && width >= 560, l = v.sublayers, bias = v.bias;
  var middle = two ? Math.round(width * 0.5) : width, left = 46, top = 28, bottom = 232;
  svg.setAttribute("viewBox", "0 0 " + width + " " + (data ? (two ? 316 : 600) : 276));
  add(svg, "text", {x: 0, y: 12, "class": "b"}, "formula: the embedding’s part of the state");
  drawFormula(svg, l, bias, left, middle - (two ? 22 : 12), top, bottom);
  if (data) {
    var near = recordedNear(data, l, bias), x0 = two ? middle + 34 : left, down = two ? 0 : 284;
    add(svg, "text", {x: two ? middle + 6 : 0, y: 12 + down, "class": "b"},
      "recorded: loss (nats), " + near.depth + " sublayers");
    drawRecorded(svg, near, data, x0, width - 14, top + down, bottom + down);
  }
  return cliffSentence(l, bias, data);
}

mount("depth-cliff", drawCliff);
