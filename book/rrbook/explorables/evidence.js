// The published comparisons: the reader picks test, correction, sizes and baselines.

// ln Γ(x) for x > 0, by Lanczos' series with g = 7.
function lnGamma(x) {
  var c = [0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7], sum = c[0], t = x + 6.5;
  for (var i = 1; i < 9; i++) sum += c[i] / (x - 1 + i);
  return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(t) - t + Math.log(sum);
}

// Regularised incomplete beta I_x(a, b): Lentz's continued fraction, on the side where it is quick.
function betaShare(x, a, b) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - betaShare(1 - x, b, a);
  var tiny = 1e-300, c = 1, d = 1 / (1 - (a + b) * x / (a + 1)), f = d;
  for (var m = 1; m < 500; m++) {
    var step = 1, terms = [m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
      -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))];
    for (var i = 0; i < 2; i++) {
      d = 1 / (1 + terms[i] * d || tiny);
      c = 1 + terms[i] / c || tiny;
      step = c * d;
      f *= step;
    }
    if (Math.abs(step - 1) < 1e-15) break;
  }
  return f / a * Math.exp(lnGamma(a + b) - lnGamma(a) - lnGamma(b) + a * Math.log(x) +
    b * Math.log(1 - x));
}

// P(|T| ≥ |t|) of Student's t; by its complement where t² is lost beside df.
function tTail(t, df) {
  var all = df + t * t;
  return t * t < df ? 1 - betaShare(t * t / all, 0.5, df / 2) : betaShare(df / all, df / 2, 0.5);
}

function mean(list) {
  return list.reduce(function (a, b) { return a + b; }, 0) / list.length;
}

function squares(list) {
  var m = mean(list);
  return list.reduce(function (a, x) { return a + (x - m) * (x - m); }, 0);
}

function gaps(runs, base) {
  return runs[base].map(function (x, i) { return runs.review[i] - x; });
}

// Two-sided p of review − baseline at one size.
function chance(data, rung, base, test) {
  var runs = data[rung], d = gaps(runs, base), n = d.length;
  if (test === "welch") {
    var v = squares(runs[base]) / (n - 1) / n, w = squares(runs.review) / (n - 1) / n;
    return tTail(mean(d) / Math.sqrt(v + w), (v + w) * (v + w) * (n - 1) / (v * v + w * w));
  }
  if (test === "sign") {
    var up = d.filter(function (x) { return x > 0; }).length;
    var down = d.filter(function (x) { return x < 0; }).length, k = Math.min(up, down), sum = 0;
    for (var i = 0, ways = 1; i <= k; ways *= (up + down - i) / (i + 1), i++) sum += ways;
    return Math.min(1, 2 * sum / Math.pow(2, up + down));
  }
  var total = squares(d), df = n - 1;
  if (test === "pooled") {
    total = df = 0;
    for (var key in data) {
      var other = gaps(data[key], base);
      total += squares(other);
      df += other.length - 1;
    }
  }
  return tTail(mean(d) / Math.sqrt(total / df / n), df);
}

function adjusted(p, correction) {
  if (correction === "none") return p;
  var m = p.length, floor = 0, out = [];
  if (correction === "bonferroni") return p.map(function (x) { return Math.min(1, m * x); });
  p.map(function (x, i) { return i; }).sort(function (a, b) { return p[a] - p[b] || a - b; })
    .forEach(function (i, place) {
      floor = Math.max(floor, Math.min(1, (m - place) * p[i]));
      out[i] = floor;
    });
  return out;
}

// v: test, correction, alpha, baseline, and each size by its name: picked or not.
function verdictNumbers(data, v) {
  var rows = [];
  for (var rung in data) {
    if (v[rung]) for (var base in data[rung]) {
      if (base !== "review" && (v.baseline === "both" || v.baseline === base)) {
        rows.push({rung: rung, base: base, gap: mean(gaps(data[rung], base)),
          p: chance(data, rung, base, v.test)});
      }
    }
  }
  var q = adjusted(rows.map(function (row) { return row.p; }), v.correction);
  rows.forEach(function (row, i) {
    row.q = q[i];
    row.verdict = q[i] > v.alpha ? "undecided" : row.gap < 0 ? "review" : row.base;
  });
  return rows;
}

var TESTS = {welch: "Welch’s t", paired: "Paired t", pooled: "Paired t with one spread for all sizes",
  sign: "Sign test"};
var CORRECTIONS = {none: "uncorrected", bonferroni: "Bonferroni", holm: "Holm"};

function verdictSentence(data, v) {
  var rows = verdictNumbers(data, v), n = rows.length;
  if (!n) return "No size is picked: there is nothing to test.";
  function count(rows, word) {
    return rows.length ? word + " in " + rows.length + " (" + rows.map(function (row) {
      return row.rung + " against " + row.base;
    }).join(", ") + ")" : word + " in none";
  }
  var better = rows.filter(function (row) { return row.verdict === "review"; });
  var open = rows.filter(function (row) { return row.verdict === "undecided"; }).length;
  var worse = rows.filter(function (row) { return row.verdict === row.base; });
  return TESTS[v.test] + ", " + CORRECTIONS[v.correction] + ", " + n +
    (n === 1 ? " test" : " tests") + " at α = " + number(v.alpha) + ": Review’s loss is " +
    count(better, "lower") + " and " + count(worse, "higher") + "; undecided: " + open + ".";
}

function drawVerdicts(svg, v, width, data) {
  var rows = verdictNumbers(data, v), wide = width >= 520, top = 26, step = 25;
  var bottom = top + step * rows.length, x0 = 216, x1 = width - 128;
  var corrected = v.correction === "none" ? "p" : "adjusted p";
  // what the words say of gaps and dots is only drawn where there is room
  svg.closest("figure").querySelectorAll(".rr-wide").forEach(function (part) {
    part.hidden = !wide;
  });
  svg.setAttribute("viewBox", "0 0 " + width + " " + (bottom + (wide ? 42 : 10)));
  var x = scale(0, -6, x0, x1);
  function at(p) { return x(Math.max(-6, Math.log10(p))); }
  [[0, "start", "size, baseline"], [wide ? 194 : width - 112, "end", wide ? "gap (nats)" : corrected],
    [width, "end", "lower loss"]].forEach(function (head) {
    add(svg, "text", {x: head[0], y: 12, "text-anchor": head[1], "class": "soft"}, head[2]);
  });
  if (wide) {
    add(svg, "text", {x: (x0 + x1) / 2, y: 12, "text-anchor": "middle", "class": "soft"},
      corrected === "p" ? "p" : "p → adjusted p");
    [0, -1, -2, -3, -4, -5, -6].forEach(function (power) {
      add(svg, "path", {d: "M" + round(x(power)) + " " + (top - 6) + "V" + bottom, "class": "grid"});
      add(svg, "text", {x: x(power), y: bottom + 17, "text-anchor": "middle", "class": "soft"},
        power > -3 ? String(Math.pow(10, power)) : number(Math.pow(10, power)).split("\u00a0").pop());
    });
    add(svg, "path", {d: "M" + round(at(v.alpha)) + " " + (top - 6) + "V" + bottom,
      "class": "ink thin dash"});
    add(svg, "text", {x: at(v.alpha), y: bottom + 36, "text-anchor": "middle"},
      "α = " + number(v.alpha));
  }
  rows.forEach(function (row, i) {
    var y = top + step * i + 14, colour = row.verdict === "undecided" ? "soft" :
      row.verdict === "review" ? "is-blue b" : "is-red b";
    add(svg, "text", {x: 0, y: y}, row.rung + ", " + row.base);
    add(svg, "text", {x: width, y: y, "text-anchor": "end", "class": colour},
      row.verdict === "review" ? "Review" : row.verdict);
    add(svg, "text", {x: wide ? 194 : width - 112, y: y, "text-anchor": "end"}, wide ?
      (row.gap < 0 ? "−" : "+") + Math.abs(row.gap).toFixed(4) : number(row.q));
    if (!wide) return;
    var style = row.verdict === "undecided" ? "ink" : row.verdict === "review" ? "blue" : "red";
    add(svg, "path", {d: path([[at(row.p), y - 4], [at(row.q), y - 4]]), "class": style + " line"});
    add(svg, "circle", {cx: round(at(row.p)), cy: y - 4, r: 3.5, "class": style + " hollow thin"});
    add(svg, "circle", {cx: round(at(row.q)), cy: y - 4, r: 5, "class": "is-" + style});
  });
  return verdictSentence(data, v);
}

mount("verdict-table", drawVerdicts);
