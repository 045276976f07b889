// Chapter 15: what first place among many rules is worth.

var LUCK_STEP = 0.01, LUCK_REACH = 9, LUCK_SEEN = [-0.08, 0.14];

function luckDensity(y) {
  return Math.exp(-y * y / 2) / Math.sqrt(2 * Math.PI);
}

// Phi between two points of the grid, by a straight line; 1 beyond its end.
function luckBetween(cdf, y) {
  var place = (y + LUCK_REACH) / LUCK_STEP, i = Math.floor(place);
  if (i >= cdf.length - 1) return 1;
  return cdf[i] + (place - i) * (cdf[i + 1] - cdf[i]);
}

function luckNumbers(v) {
  var se = v.sd / Math.sqrt(v.seeds), cdf = [], total = 0, before = 0, i, y;
  for (i = 0; i <= Math.round(2 * LUCK_REACH / LUCK_STEP); i++) {
    var now = luckDensity(-LUCK_REACH + i * LUCK_STEP);
    total += i ? (before + now) / 2 * LUCK_STEP : 0;
    before = now;
    cdf.push(total);
  }
  var luck = 0, first = 0, below = 0;
  for (i = 0; i < cdf.length; i++) {
    y = -LUCK_REACH + i * LUCK_STEP;
    var best = Math.pow(cdf[i], v.rules);
    luck += (y - LUCK_STEP / 2) * (best - below);
    below = best;
    first += luckDensity(y) * Math.pow(luckBetween(cdf, y + v.lead / se), v.rules - 1) * LUCK_STEP;
  }
  return {se: se, luck: luck * se, first: first};
}

function luckSentence(v) {
  var found = luckNumbers(v);
  return v.rules + " rules that are equally good, " + v.seeds + " seeds: the best of them looks " +
    number(found.luck) + " nats ahead of what it is, by luck alone. One rule that is truly " +
    number(v.lead) + " ahead of the others comes first in " + share(found.first) +
    " of such tables.";
}

function drawLuck(svg, v, width) {
  var found = luckNumbers(v), left = 12, right = width - 12, narrow = width < 460;
  var top = narrow ? 62 : 46, bottom = top + 160;
  var x = scale(LUCK_SEEN[0], LUCK_SEEN[1], left, right);
  svg.setAttribute("viewBox", "0 0 " + width + " " + (bottom + 42));
  add(svg, "path", {d: "M" + left + " " + bottom + "H" + right, "class": "grid"});
  [-0.05, 0, 0.05, 0.1].forEach(function (nats) {
    add(svg, "path", {d: "M" + round(x(nats)) + " " + top + "V" + bottom, "class": "grid"});
    add(svg, "text", {x: x(nats), y: bottom + 18, "text-anchor": "middle", "class": "soft"},
      number(nats));
  });
  add(svg, "text", {x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle",
    "class": "soft"}, "measured lead, nats per token");
  [[0, "red"], [v.lead, "blue"]].forEach(function (one) {
    var curve = [];
    for (var i = 0; i <= 440; i++) {
      var nats = LUCK_SEEN[0] + i * 0.0005;
      var height = luckDensity((nats - one[0]) / found.se) / luckDensity(0);
      curve.push([x(nats), bottom - (bottom - top - 6) * height]);
    }
    add(svg, "path", {d: path(curve), "class": one[1] + " line"});
  });
  var at = Math.min(found.luck, LUCK_SEEN[1]);
  add(svg, "path", {d: "M" + round(x(at)) + " " + (top - 8) + "V" + bottom, "class": "red thin dash"});
  var late = x(at) > width * (narrow ? 0.44 : 0.55);
  add(svg, "text", {x: x(at) + (late ? -6 : 6), y: top - 12, "text-anchor": late ? "end" : "start",
    "class": "is-red b halo"}, "best of " + v.rules + " equal rules");
  add(svg, "text", {x: narrow ? left : right, y: narrow ? 28 : 12,
    "text-anchor": narrow ? "start" : "end", "class": "is-blue b halo"},
    "the rule that leads");
  add(svg, "text", {x: left, y: 12, "class": "is-red b halo"}, "one of the equal rules");
  return luckSentence(v);
}

mount("winners-luck", drawLuck);
