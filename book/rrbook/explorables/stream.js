// Who is left in the stream? Each write's share of the variance, sublayer by sublayer.

var RULES = {
  sum: [1, 1, "h + u"],
  half: [1, 0.5, "h + u/2"],
  convex: [0.5, 0.5, "(h + u)/2"]
};

// rms of the state after 0 … n sublayers, and what the embedding (first) and each write hold of
// the last state's variance.
function streamNumbers(n, rule) {
  var carry = RULES[rule][0], write = RULES[rule][1], parts = [1], rms = [1], total = 1;
  for (var l = 1; l <= n; l++) {
    parts = parts.map(function (v) { return v * carry * carry; });
    parts.push(write * write);
    total = parts.reduce(function (a, b) { return a + b; }, 0);
    rms.push(Math.sqrt(total));
  }
  return {rms: rms, shares: parts.map(function (v) { return v / total; })};
}

function streamSentence(n, rule) {
  var found = streamNumbers(n, rule), first = found.shares[0], last = found.shares[n];
  var exact = rule === "sum" ? "1/" + (n + 1) + " of the vector (" + share(first) + ")"
    : share(first) + " of the vector";
  var size = number(found.rms[n]);
  return "After " + n + " sublayers under " + RULES[rule][2] + " the embedding holds " + exact + {
    sum: ", exactly as much as every write. The stream has grown to " + size +
      " times the embedding’s size.",
    half: ", four times as much as any single write. The stream has grown to " + size +
      " times the embedding’s size.",
    convex: "; the last write alone holds " + share(last) + ". The stream has settled at " + size +
      " times the embedding’s size."
  }[rule];
}

function drawStream(svg, values, width) {
  var n = values.sublayers, rule = values.rule, left = 46, right = width - 104, top = 22;
  var bottom = 222, floor = 318, roof = 254;
  svg.setAttribute("viewBox", "0 0 " + width + " 352");
  add(svg, "text", {x: 0, y: 12, "class": "soft"}, "how much of the vector");
  var y = scale(0, 1, bottom, top), gap = (right - left) / (n + 1), bar = gap * (n > 32 ? 0.9 : 0.8);
  var bands = [];
  for (var k = 0; k <= n; k++) bands.push("");
  for (var l = 0; l <= n; l++) {
    var at = 0, shares = streamNumbers(l, rule).shares;
    shares.forEach(function (part, k) {
      if (part * (bottom - top) > 0.04) {
        bands[k] += "M" + round(left + gap * l) + " " + y(at).toFixed(2) + "h" + bar.toFixed(1) +
          "V" + y(at + part).toFixed(2) + "h-" + bar.toFixed(1) + "z";
      }
      at += part;
    });
  }
  bands.forEach(function (d, k) {
    if (d && k === 0) add(svg, "path", {d: d, "class": "is-red"});
    else if (d) add(svg, "path", {d: d, "class": "band", "stroke-width": n > 32 ? 0.2 : 0.6,
      "fill-opacity": (1 - 0.75 * k / n).toFixed(2)});
  });
  [0, 0.5, 1].forEach(function (v) {
    add(svg, "text", {x: left - 8, y: y(v) + 4, "text-anchor": "end", "class": "soft"},
      100 * v + "\u00a0%");
  });
  var end = right + 6, final = streamNumbers(n, rule), first = final.shares[0];
  add(svg, "text", {x: end, y: top + 11, "class": "b"}, "last write");
  add(svg, "text", {x: end, y: top + 28}, share(final.shares[n]));
  if (n > 3 && rule !== "convex") {
    add(svg, "text", {x: end, y: (top + bottom) / 2, "class": "soft"}, "earlier");
    add(svg, "text", {x: end, y: (top + bottom) / 2 + 16, "class": "soft"}, "writes");
  }
  add(svg, "text", {x: end, y: bottom - 17, "class": "b is-red"}, "embedding");
  add(svg, "text", {x: end, y: bottom}, share(first));
  var rms = scale(0, 8.1, floor, roof), x = function (l) { return left + gap * l + bar / 2; };
  add(svg, "text", {x: 0, y: roof - 10, "class": "soft"}, "size of the vector");
  [0, 4, 8].forEach(function (v) {
    add(svg, "path", {d: "M" + left + " " + rms(v) + "H" + right, "class": "grid"});
    add(svg, "text", {x: left - 8, y: rms(v) + 4, "text-anchor": "end", "class": "soft"}, v);
  });
  var points = final.rms.map(function (v, l) { return [x(l), rms(v)]; });
  add(svg, "path", {d: path(points), "class": "blue line"});
  add(svg, "circle", {cx: points[n][0], cy: points[n][1], r: 4, "class": "is-blue"});
  add(svg, "text", {x: end, y: points[n][1] + 4, "class": "b"}, "× " + number(final.rms[n]));
  var every = [1, 2, 4, 8, 16].filter(function (s) { return gap * s > 34; })[0] || 16;
  for (l = 0; l <= n; l += every) {
    add(svg, "text", {x: x(l), y: floor + 18, "text-anchor": "middle", "class": "soft"}, l);
  }
  add(svg, "text", {x: end, y: floor + 18, "class": "soft"}, "sublayer");
  return streamSentence(n, rule);
}

mount("stream-share", drawStream);
