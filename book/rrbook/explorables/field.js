// A toy stream under one rule, at its start: norm and gradient by depth, by reverse-mode
// derivatives on vectors of 32 channels.

var D = 32, EPS = 1e-5, GAIN = 1.6;

// Numbers of mean 0 and variance 1, the same on every machine (mulberry32, made uniform).
function draw(key, n) {
  var state = Math.imul(key + 1, 0x9E3779B1), out = new Float64Array(n);
  for (var i = 0; i < n; i++) {
    state = (state + 0x6D2B79F5) | 0;
    var t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    out[i] = (((t ^ (t >>> 14)) >>> 0) / 4294967296 * 2 - 1) * Math.sqrt(3);
  }
  return out;
}

function matrix(key, rows, std) {
  return draw(key, rows * D).map(function (x) { return x * std; });
}

// The tape: each value keeps its gradient g, and how to hand it on.
function Tape() {
  var ops = [];
  function made(x, back) {
    var v = {x: x, g: new Float64Array(x.length)};
    if (back) ops.push(function () { back(v.g); });
    return v;
  }
  function each(f, a) { return Float64Array.from(a.x, f); }
  var tape = {
    leaf: function (x) { return made(x); },
    add: function (a, b) {
      return made(each(function (x, i) { return x + b.x[i]; }, a), function (g) {
        for (var i = 0; i < D; i++) { a.g[i] += g[i]; b.g[i] += g[i]; }
      });
    },
    scale: function (a, k) {
      return made(each(function (x) { return k * x; }, a), function (g) {
        for (var i = 0; i < D; i++) a.g[i] += k * g[i];
      });
    },
    times: function (a, b) {
      return made(each(function (x, i) { return x * b.x[i]; }, a), function (g) {
        for (var i = 0; i < D; i++) { a.g[i] += g[i] * b.x[i]; b.g[i] += g[i] * a.x[i]; }
      });
    },
    apply: function (W, a, row) {
      var out = new Float64Array(D), at = (row || 0) * D * D, i, j;
      for (i = 0; i < D; i++) for (j = 0; j < D; j++) out[i] += W[at + i * D + j] * a.x[j];
      return made(out, function (g) {
        for (i = 0; i < D; i++) for (j = 0; j < D; j++) a.g[j] += W[at + i * D + j] * g[i];
      });
    },
    tanh: function (a) {
      var y = each(Math.tanh, a);
      return made(y, function (g) {
        for (var i = 0; i < D; i++) a.g[i] += g[i] * (1 - y[i] * y[i]);
      });
    },
    sigmoid: function (a, bias) {
      var y = each(function (x) { return sigmoid(x + bias); }, a);
      return made(y, function (g) {
        for (var i = 0; i < D; i++) a.g[i] += g[i] * y[i] * (1 - y[i]);
      });
    },
    norm: function (a) {
      var s = 0, i;
      for (i = 0; i < D; i++) s += a.x[i] * a.x[i];
      var k = 1 / Math.sqrt(s / D + EPS);
      return made(each(function (x) { return k * x; }, a), function (g) {
        var dot = 0;
        for (i = 0; i < D; i++) dot += g[i] * a.x[i];
        for (i = 0; i < D; i++) a.g[i] += k * g[i] - k * k * k * dot * a.x[i] / D;
      });
    },
    back: function () { for (var i = ops.length - 1; i >= 0; i--) ops[i](); }
  };
  return tape;
}

function length(x) {
  return Math.sqrt(x.reduce(function (s, v) { return s + v * v; }, 0));
}

// One write: h and u to the new h. v: the settings, l: the sublayer, form: how the rule writes.
function written(T, form, v, h, u, l) {
  var r, S = v.sublayers;
  if (form === "add") return T.add(h, T.scale(u, coefficient(v)));
  if (form === "state") {
    r = T.sigmoid(T.apply(matrix(1000 + l, D, 0.02), h), v.bias);
    return T.add(h, T.times(r, u));
  }
  if (form === "convex") {
    r = sigmoid(v.bias);
    return T.add(T.scale(h, 1 - r), T.scale(u, r));
  }
  if (form === "convex-state") {
    r = T.sigmoid(T.apply(matrix(1000 + l, D, 0.02), h), v.bias);
    return T.add(h, T.times(r, T.add(u, T.scale(h, -1))));
  }
  if (form === "gru") {
    var W = matrix(1000 + l, 3 * D, 0.02), U = matrix(2000 + l, 2 * D, 0.02);
    var C = matrix(3000 + l, D, 0.02);
    r = T.sigmoid(T.add(T.apply(W, u, 0), T.apply(U, h, 0)), 0);
    var z = T.sigmoid(T.add(T.apply(W, u, 1), T.apply(U, h, 1)), -v.bias);
    var candidate = T.tanh(T.add(T.apply(W, u, 2), T.apply(C, T.times(r, h))));
    return T.add(h, T.times(z, T.add(candidate, T.scale(h, -1))));
  }
  return T.norm(T.add(T.scale(h, Math.pow(S, 0.25)), u));  // DeepNorm: 2M = S
}

// The coefficient on u of the additive rules at their start.
function coefficient(v) {
  if (v.rule === "rezero") return 0;
  if (v.rule === "scaled") return Math.sqrt(24 / v.sublayers);
  if (v.rule === "layerscale") return v.sublayers <= 36 ? 0.1 : v.sublayers <= 48 ? 1e-5 : 1e-6;
  return /gate|^(review|constant)$/.test(v.rule) ? sigmoid(v.bias) : 1;
}

function biased(rule) {
  return /gate|review|highway|gtrxl|constant/.test(rule);
}

var FORMS = {highway: "state", "review-convex": "convex", "highway-carry": "convex-state",
  gtrxl: "gru", deepnorm: "post", attnres: "mean"};

// What the rule's own initialisation makes of the two matrices of a sublayer, as factors.
function initial(v) {
  var S = v.sublayers;
  if (v.start !== "own") return [1, 1];
  if (v.rule === "fixup") return [1 / Math.sqrt(S), 0];
  if (v.rule === "deepnorm") return [Math.pow(4 * S, -0.25), Math.pow(4 * S, -0.25)];
  return [1, 1 / Math.sqrt(S)];
}

// norms: rms of what is read, before any norm, at 0 … S; gradients: at the embedding and at u_1 … u_S.
function fieldNumbers(v) {
  var T = Tape(), form = FORMS[v.rule] || "add", S = v.sublayers, factors = initial(v), h, i;
  var bare = v.rule === "rezero" || v.rule === "fixup", post = form === "post";
  var first = h = T.leaf(draw(0, D)), sources = [first], updates = [], norms = [];
  function seen() {
    if (form !== "mean") return h;
    var sum = sources[0];
    for (var j = 1; j < sources.length; j++) sum = T.add(sum, sources[j]);
    return T.scale(sum, 1 / sources.length);
  }
  for (var l = 1; l <= S; l++) {
    var x = seen();
    norms.push(length(x.x) / Math.sqrt(D));
    if (!bare && !post) x = T.norm(x);
    var u = T.tanh(T.apply(matrix(2 * l, D, factors[0] / Math.sqrt(D)), x));
    u = T.apply(matrix(2 * l + 1, D, factors[1] * GAIN / Math.sqrt(D)), u);
    updates.push(u);
    if (form === "mean") sources.push(u);
    else h = written(T, form, v, h, u, l);
  }
  var last = seen();
  norms.push(length(last.x) / Math.sqrt(D));
  if (v.rule === "hyper-connections") last = T.scale(last, 4);  // the head reads the streams' sum
  if (!bare && !post) last = T.norm(last);
  var target = draw(1, D);
  for (i = 0; i < D; i++) last.g[i] += target[i] / D;
  T.back();
  return {norms: norms, gradients: [first].concat(updates).map(function (u) { return length(u.g); })};
}

function fieldSentence(v) {
  var found = fieldNumbers(v), g = found.gradients, S = v.sublayers;
  var text = v.rule + (biased(v.rule) ? " with b = " + number(v.bias) : "") + ", " + S + " sublayers: the stream’s rms goes from " + number(found.norms[0]) +
    " to " + number(found.norms[S]) + ". ";
  if (g[1] === 0 && g[S] === 0) {
    return text + "No sublayer gets a gradient at this start; the embedding gets " + number(g[0]) + ".";
  }
  var sum = function (part) { return part.reduce(function (a, b) { return a + b; }, 0); };
  return text + "The first quarter of the updates gets " +
    number(sum(g.slice(1, S / 4 + 1)) / sum(g.slice(-S / 4))) +
    " times the gradient of the last quarter.";
}

function drawPanel(svg, box, words, lists, low, high, ticks, log) {
  var S = lists[0].values.length - 1;
  var x = scale(0, S, box.left, box.right), level = log ? Math.log10 : function (t) { return t; };
  var y = scale(level(low), level(high), box.bottom, box.top);
  add(svg, "text", {x: box.left - 40, y: box.top - 12, "class": "b"}, words);
  ticks.forEach(function (t) {
    add(svg, "path", {d: "M" + box.left + " " + round(y(level(t))) + "H" + box.right, "class": "grid"});
    add(svg, "text", {x: box.left - 7, y: y(level(t)) + 4, "text-anchor": "end", "class": "soft"},
      log && t < 0.01 ? number(t).split("\u00a0").pop() : number(t));
  });
  [0, S / 2, S].forEach(function (l) {
    add(svg, "text", {x: l === S ? box.right + 30 : x(l), y: box.bottom + 17, "class": "soft",
      "text-anchor": l === S ? "end" : "middle"}, l === S ? S + " sublayers" : l);
  });
  lists.forEach(function (list) {
    var points = [];
    list.values.forEach(function (t, l) {
      if (!log || t > 0) points.push([x(l), Math.min(box.bottom + 2, Math.max(box.top, y(level(t))))]);
    });
    if (points.length > 1) add(svg, "path", {d: path(points), "class": list.style});
    else points.forEach(function (p) { add(svg, "circle", {cx: p[0], cy: p[1], r: 4, "class": "is-blue"}); });
  });
}

function nice(top) {
  var step = Math.pow(10, Math.floor(Math.log10(top)));
  step = top / step > 5 ? 2 * step : top / step > 2 ? step : step / 2;
  var ticks = [];
  for (var t = 0; t <= top * 1.001; t += step) ticks.push(t);
  return ticks;
}

function drawField(svg, v, width, data, form) {
  var input = form.querySelector("[name=bias]");
  input.disabled = !biased(v.rule);
  input.parentNode.classList.toggle("rr-off", input.disabled);
  var mine = fieldNumbers(v), plain = fieldNumbers(Object.assign({}, v, {rule: "standard"}));
  var two = width >= 560, half = two ? Math.round(width / 2) : width;
  svg.setAttribute("viewBox", "0 0 " + width + " " + (two ? 258 : 506));
  var lists = function (key) {
    return [{values: plain[key], style: "ink thin dash"}, {values: mine[key], style: "blue line"}];
  };
  var high = Math.max.apply(null, plain.norms.concat(mine.norms)) * 1.05;
  drawPanel(svg, {left: 40, right: half - 34, top: 34, bottom: 214}, "rms of the stream",
    lists("norms"), 0, high, nice(high), false);
  var all = plain.gradients.concat(mine.gradients).filter(function (g) { return g > 0; });
  var most = Math.ceil(Math.log10(Math.max.apply(null, all)));
  var least = Math.min(most - 2, Math.max(most - 12, Math.floor(Math.log10(Math.min.apply(null, all)))));
  var ticks = [], step = Math.ceil((most - least) / 5);
  for (var p = most; p >= least; p -= step) ticks.push(Math.pow(10, p));
  var at = two ? half : 0, down = two ? 0 : 254;
  drawPanel(svg, {left: at + 44, right: width - 40, top: 34 + down, bottom: 214 + down},
    "gradient at each update", lists("gradients"), Math.pow(10, least), Math.pow(10, most), ticks, true);
  add(svg, "text", {x: 44, y: 250, "class": "is-blue b"}, v.rule);
  add(svg, "text", {x: two ? half + 44 : half - 34, y: 250, "text-anchor": two ? "start" : "end",
    "class": "soft"}, "dashed: standard");
  return fieldSentence(v);
}

mount("rule-field", drawField);
