// How alike do tokens become? Attention averages what the block below has averaged already.

var TOKENS = 16;

function unitRows(rows) {
  return rows.map(function (row) {
    var n = Math.sqrt(row.reduce(function (s, x) { return s + x * x; }, 0));
    return row.map(function (x) { return x / n; });
  });
}

function valueNumbers(rule, lam, even, blocks) {
  var h = [], found = {similarity: [], kept: []}, i, j;
  for (i = 0; i < TOKENS; i++) {
    h.push([]);
    for (j = 0; j < TOKENS; j++) h[i].push(i === j ? 1 : 0);
  }
  function measure() {
    var v = unitRows(h), total = 0, kept = 0;
    for (var j = 0; j < TOKENS; j++) {
      var column = v.reduce(function (s, row) { return s + row[j]; }, 0);
      total += column * column;
      kept += v[j][j];
    }
    found.similarity.push((total - TOKENS) / (TOKENS * (TOKENS - 1)));
    found.kept.push(kept / TOKENS);
    return v;
  }
  var first = measure(), v = first;
  for (var block = 1; block <= blocks; block++) {
    var pair = {identity: [0.5, 0.5], "constant-resformer": [lam, 1], svformer: [1, 0]}[rule];
    if (block === 1 || !pair) pair = [0, 1];
    var extra = rule === "neutreno" ? lam : 0, past = new Array(TOKENS).fill(0);
    for (i = 0; i < TOKENS; i++) {
      for (j = 0; j < TOKENS; j++) {
        var mixed = pair[0] * first[i][j] + pair[1] * v[i][j];
        past[j] += mixed;
        h[i][j] += (1 - even) * mixed + even * past[j] / (i + 1) + extra * (first[i][j] - v[i][j]);
      }
    }
    v = measure();
  }
  return found;
}

function valueSentence(v) {
  var last = function (list) { return number(list[list.length - 1]); };
  var found = valueNumbers(v.rule, v.lam, v.even, v.blocks);
  var plain = valueNumbers("own", v.lam, v.even, v.blocks);
  var scaled = v.rule === "constant-resformer" || v.rule === "neutreno";
  var words = scaled ? " with λ = " + number(v.lam) : "";
  var said = v.rule + words + ", " + v.blocks + " blocks: two tokens end at a mean cosine of " +
    last(found.similarity) + ", and a token at " + last(found.kept) + " to its own embedding.";
  if (v.rule === "own") return said;
  return said + " With own values it would be " + last(plain.similarity) + " and " +
    last(plain.kept) + ".";
}

function drawValues(svg, v, width, data, form) {
  var lam = form.elements.lam;
  lam.disabled = v.rule !== "constant-resformer" && v.rule !== "neutreno";
  lam.parentNode.classList.toggle("rr-off", lam.disabled);
  var left = 46, right = width - 84, top = 28, bottom = 232;
  svg.setAttribute("viewBox", "0 0 " + width + " 274");
  add(svg, "text", {x: 0, y: 12, "class": "soft"}, "mean cosine of two tokens’ states");
  var rules = v.rule === "own" ? ["own"] : ["own", v.rule], found = {};
  var low = 0;  // where tokens turn away from each other the picture reaches below zero
  rules.forEach(function (rule) {
    found[rule] = valueNumbers(rule, v.lam, v.even, v.blocks).similarity;
    low = Math.min(low, Math.min.apply(null, found[rule]));
  });
  var x = scale(0, v.blocks, left, right), y = scale(low, 1, bottom, top);
  [0, 0.5, 1].forEach(function (value) {
    add(svg, "path", {d: "M" + left + " " + round(y(value)) + "H" + right, "class": "grid"});
    add(svg, "text", {x: left - 8, y: y(value) + 4, "text-anchor": "end", "class": "soft"}, value);
  });
  add(svg, "text", {x: left, y: bottom + 19, "text-anchor": "middle", "class": "soft"}, "0");
  add(svg, "text", {x: right, y: bottom + 19, "text-anchor": "middle", "class": "soft"}, v.blocks);
  add(svg, "text", {x: (left + right) / 2, y: bottom + 37, "text-anchor": "middle",
    "class": "soft"}, "blocks passed");
  var ends = [];
  rules.forEach(function (rule) {
    var points = found[rule].map(function (value, k) {
      return [x(k), y(value)];
    });
    var chosen = rule === v.rule;
    add(svg, "path", {d: path(points), "class": chosen ? "blue line" : "ink thin"});
    points.forEach(function (p) {
      if (chosen) add(svg, "circle", {cx: round(p[0]), cy: round(p[1]), r: 3.5, "class": "is-blue"});
    });
    ends.push([points[points.length - 1][1] + 4, rule === "own" ? rule : "with V₁", chosen ? "is-blue b" : "soft"]);
  });
  if (ends.length > 1 && Math.abs(ends[0][0] - ends[1][0]) < 16) {
    var middle = (ends[0][0] + ends[1][0]) / 2, up = ends[0][0] <= ends[1][0] ? 0 : 1;
    ends[up][0] = middle - 8;
    ends[1 - up][0] = middle + 8;
  }
  ends.forEach(function (end) {
    add(svg, "text", {x: right + 8, y: round(end[0]), "class": end[2]}, end[1]);
  });
  return valueSentence(v);
}

mount("value-dilution", drawValues);
