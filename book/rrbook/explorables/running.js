// Chapter 17: what interruptions cost.

var RUNNING_SEEN = [0.25, 240], RUNNING_LOSS = [0.003, 3];

function overhead(every, save, between, back) {
  return between * Math.exp(back / between) * Math.expm1((every + save) / between) / every - 1;
}

function lostNumbers(v) {
  var save = v.save / 3600, back = v.back / 60, young = Math.sqrt(2 * save * v.between);
  var lost = overhead(v.every / 60, save, v.between, back);
  return {lost: lost, costs: v.price * (1 + lost), young: 60 * young,
    least: overhead(young, save, v.between, back)};
}

function lostSentence(v) {
  var found = lostNumbers(v);
  return "With a checkpoint of " + number(v.save) + " s every " + number(v.every) +
    " minutes, an hour of work loses " + share(found.lost) + " and costs " + number(found.costs) +
    " instead of " + number(v.price) + ". Young’s interval, " + number(found.young) +
    " minutes, loses " + share(found.least) + ".";
}

function drawLost(svg, v, width) {
  var found = lostNumbers(v), left = 52, right = width - 14, top = 34, bottom = top + 190;
  svg.setAttribute("viewBox", "0 0 " + width + " " + (bottom + 44));
  var across = scale(Math.log(RUNNING_SEEN[0]), Math.log(RUNNING_SEEN[1]), left, right);
  var up = scale(Math.log(RUNNING_LOSS[0]), Math.log(RUNNING_LOSS[1]), bottom, top);
  function x(minutes) { return across(Math.log(minutes)); }
  function y(lost) {
    return up(Math.log(Math.min(Math.max(lost, RUNNING_LOSS[0]), RUNNING_LOSS[1])));
  }
  [[0.01, "1 %"], [0.1, "10 %"], [1, "100 %"]].forEach(function (one) {
    add(svg, "path", {d: "M" + left + " " + round(y(one[0])) + "H" + right, "class": "grid"});
    add(svg, "text", {x: left - 6, y: y(one[0]) + 4, "text-anchor": "end", "class": "soft"}, one[1]);
  });
  [0.5, 2, 10, 60, 240].forEach(function (minutes) {
    add(svg, "text", {x: x(minutes), y: bottom + 18, "class": "soft",
      "text-anchor": minutes === 240 ? "end" : "middle"}, String(minutes));
  });
  add(svg, "text", {x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle",
    "class": "soft"}, "minutes between checkpoints");
  var curve = [];
  for (var i = 0; i <= 240; i++) {
    var minutes = RUNNING_SEEN[0] * Math.pow(RUNNING_SEEN[1] / RUNNING_SEEN[0], i / 240);
    var lost = overhead(minutes / 60, v.save / 3600, v.between, v.back / 60);
    if (lost < RUNNING_LOSS[1]) curve.push([x(minutes), y(lost)]);
  }
  if (curve.length) add(svg, "path", {d: path(curve), "class": "blue line"});
  var best = Math.min(Math.max(found.young, RUNNING_SEEN[0]), RUNNING_SEEN[1]);
  add(svg, "path", {d: "M" + round(x(best)) + " " + (top - 4) + "V" + bottom,
    "class": "green thin dash"});
  var late = x(best) > width / 2;
  add(svg, "text", {x: x(best) + (late ? -6 : 6), y: top + 6, "text-anchor": late ? "end" : "start",
    "class": "is-green b halo"}, "Young’s interval");
  var above = found.lost > RUNNING_LOSS[1];  // an arrow: its true place is not on the picture
  if (above) add(svg, "path", {d: "M" + round(x(v.every)) + " " + (top + 14) + "v-14m-5 6l5 -6l5 6",
    "class": "red line"});
  else add(svg, "circle", {cx: x(v.every), cy: y(found.lost), r: 6, "class": "is-red"});
  var right_of = x(v.every) < width * 0.6;
  add(svg, "text", {x: x(v.every) + (right_of ? 10 : -10), y: y(found.lost) + (above ? 22 : -8),
    "text-anchor": right_of ? "start" : "end", "class": "is-red b halo"},
    above ? "yours, above the picture" : "yours");
  add(svg, "text", {x: left, y: 14, "class": "is-blue b halo"}, "time lost, of the work done");
  return lostSentence(v);
}

mount("lost-work", drawLost);
