// How far does a looped stream grow? The same blocks write again and again.

var SCALES = {one: "1", root: "1/√(NL)", passes: "1/N", both: "1/(N√L)"};

// rms after each block: rms² = 1 + ε²·(b·q(p + 1) + (L − b)·q(p)), q(m) = m + m(m − 1)c.
function loopNumbers(blocks, passes, cosine, chosen) {
  var epsilons = {one: 1, root: 1 / Math.sqrt(passes * blocks), passes: 1 / passes,
    both: 1 / (passes * Math.sqrt(blocks))};
  var q = function (m) { return m + m * (m - 1) * cosine; };
  var rms = function (after, name) {
    var whole = Math.floor(after / blocks), more = after % blocks, e = epsilons[name];
    return Math.sqrt(1 + e * e * (more * q(whole + 1) + (blocks - more) * q(whole)));
  };
  var found = {epsilon: epsilons[chosen], rms: [], last: {}}, depth = blocks * passes;
  for (var k = 0; k <= depth; k++) found.rms.push(rms(k, chosen));
  Object.keys(SCALES).forEach(function (name) { found.last[name] = rms(depth, name); });
  return found;
}

function loopSentence(blocks, passes, cosine, chosen) {
  var found = loopNumbers(blocks, passes, cosine, chosen);
  var rest = Object.keys(SCALES).filter(function (name) { return name !== chosen; });
  return passes + (passes === 1 ? " pass" : " passes") + " of " + blocks +
    (blocks === 1 ? " block" : " blocks") + ", updates of a block in two passes at cosine " +
    number(cosine) + ", ε = " + SCALES[chosen] +
    (chosen === "one" ? "" : " = " + number(found.epsilon)) +
    ": the stream ends at " + number(found.last[chosen]) +
    " times the embedding’s rms. It would end at " + rest.map(function (name) {
      return number(found.last[name]) + " with " + SCALES[name];
    }).join(", ") + ".";
}

function drawLoops(svg, values, width) {
  var L = values.blocks, N = values.passes, c = values.cosine, chosen = values.scale;
  var left = 46, right = width - 96, top = 28, bottom = 232, depth = L * N;
  svg.setAttribute("viewBox", "0 0 " + width + " 274");
  add(svg, "text", {x: 0, y: 12, "class": "soft"}, "rms of the stream, the embedding’s is 1");
  var x = scale(0, depth, left, right), y = scale(0, Math.log(300), bottom, top);
  [1, 10, 100].forEach(function (v) {
    add(svg, "path", {d: "M" + left + " " + round(y(Math.log(v))) + "H" + right, "class": "grid"});
    add(svg, "text", {x: left - 8, y: y(Math.log(v)) + 4, "text-anchor": "end", "class": "soft"}, v);
  });
  add(svg, "text", {x: left, y: bottom + 19, "text-anchor": "middle", "class": "soft"}, "0");
  add(svg, "text", {x: right, y: bottom + 19, "text-anchor": "middle", "class": "soft"}, depth);
  add(svg, "text", {x: (left + right) / 2, y: bottom + 37, "text-anchor": "middle",
    "class": "soft"}, "blocks of the unrolled network");
  var names = Object.keys(SCALES), last = loopNumbers(L, N, c, chosen).last;
  names.forEach(function (name) {
    var points = loopNumbers(L, N, c, name).rms.map(function (v, k) {
      return [x(k), y(Math.log(v))];
    });
    add(svg, "path", {d: path(points), "class": name === chosen ? "blue line" : "ink thin"});
  });
  add(svg, "circle", {cx: right, cy: y(Math.log(last[chosen])), r: 4, "class": "is-blue"});
  names.sort(function (a, b) { return last[b] - last[a]; });
  var at = names.map(function (name) { return y(Math.log(last[name])) + 4; });
  for (var i = 1; i < at.length; i++) at[i] = Math.max(at[i], at[i - 1] + 16);
  for (i = at.length - 1; i >= 0; i--) {
    at[i] = Math.min(at[i], i === at.length - 1 ? bottom + 4 : at[i + 1] - 16);
  }
  names.forEach(function (name, i) {
    add(svg, "text", {x: right + 8, y: at[i], "class": name === chosen ? "is-blue b" : "soft"},
      name === "one" ? "ε = 1" : SCALES[name]);
  });
  return loopSentence(L, N, c, chosen);
}

mount("loop-growth", drawLoops);
