// Who reads what? What each sublayer reads of all earlier writes under depth attention.

// How often each source at the head holds write 0 (the embedding), 1, …
function lookingSources(n, size, seeded) {
  var held = [], write;
  function row(first) {
    var cells = [first];
    for (var j = 1; j <= n; j++) cells.push(0);
    held.push(cells);
  }
  row(1);
  for (write = 1; write <= n; write++) {
    if ((write - 1) % size === 0) row(seeded ? 1 : 0);
    held[held.length - 1][write] += 1;
  }
  return held;
}

// For every read, the head's last: weights of the sources, shares of the writes, and the cosine
// of what is read with the plain sum of all writes.
function lookingNumbers(n, size, tilt, seeded) {
  var found = {alpha: [], shares: [], cosine: []}, step = size === "all" ? n : Number(size);
  function sum(list) { return list.reduce(function (a, b) { return a + b; }, 0); }
  for (var before = 0; before <= n; before++) {
    var held = lookingSources(before, step, seeded), last = Math.max(1, held.length - 1);
    var parts = held.map(function (_, i) { return Math.exp(tilt * i / last); }), all = sum(parts);
    var alpha = parts.map(function (v) { return v / all; }), mixed = [];
    for (var j = 0; j <= before; j++) {
      mixed.push(sum(alpha.map(function (a, i) { return a * held[i][j]; })));
    }
    var power = sum(mixed.map(function (c) { return c * c; }));
    found.alpha.push(alpha);
    found.shares.push(mixed.map(function (c) { return c * c / power; }));
    found.cosine.push(sum(mixed) / Math.sqrt(power * (before + 1)));
  }
  return found;
}

function lookingSentence(n, size, tilt, seeded) {
  var found = lookingNumbers(n, size, tilt, seeded), shares = found.shares[n];
  var count = "After " + n + " sublayers " + found.alpha[n].length +
    " vectors per token are kept (standard: 1). ";
  if (found.cosine[n] > 1 - 1e-9) {
    return count + "The head reads every write in the same share, 1/" + (n + 1) +
      " of the variance: the standard stream, up to its length.";
  }
  return count + "Of what the head reads, the embedding holds " + share(shares[0]) +
    " of the variance and the last write " + share(shares[n]) + " (standard: " +
    share(1 / (n + 1)) + " each). Its cosine with the standard stream is " +
    number(found.cosine[n]) + ".";
}

function drawLooking(svg, values, width) {
  var n = values.sublayers, found = lookingNumbers(n, values.size, values.tilt, values.seeded);
  var narrow = width < 480, left = 62, right = width - (narrow ? 4 : 138), top = 24, floor = 262;
  var wide = (right - left) / (n + 1), high = (floor - top) / (n + 1), end = floor + 36;
  var step = values.size === "all" ? n : Number(values.size);
  svg.setAttribute("viewBox", "0 0 " + width + " " + (narrow ? floor + 100 : floor + 44));
  add(svg, "text", {x: 0, y: 12, "class": "soft"}, "read by");
  var every = [1, 2, 4, 8].filter(function (s) { return wide * s > 20; })[0] || 8;
  var skip = [1, 2, 4].filter(function (s) { return high * s > 14; })[0] || 4;
  found.shares.forEach(function (shares, row) {
    var y = floor - high * (row + 1);
    shares.forEach(function (part, j) {
      add(svg, "path", {d: "M" + round(left + wide * j) + " " + round(y) + "h" + round(wide - 1) +
        "v" + round(high - 1) + "h-" + round(wide - 1) + "z", "class": j ? "is-blue" : "is-red",
        "fill-opacity": Math.sqrt(part).toFixed(2)});
    });
    var name = row === n ? "head" : row + 1;
    if (row === n || (row % skip === 0 && row <= n - skip)) {
      add(svg, "text", {x: left - 8, y: y + high / 2 + 4, "text-anchor": "end", "class": "soft"},
        name);
    }
  });
  for (var edge = 1; edge <= n && step > 1; edge += step) {
    var x = round(left + wide * edge - 0.5);
    add(svg, "path", {d: "M" + x + " " + top + "V" + floor, "class": "ink thin dash"});
  }
  for (var j = 0; j <= n; j += every) {
    add(svg, "text", {x: left + wide * (j + 0.5), y: floor + 18, "text-anchor": "middle",
      "class": "soft"}, j);
  }
  add(svg, "text", {x: left, y: end, "class": "soft"}, "write (0: embedding)");
  var facts = [["embedding", share(found.shares[n][0]), "is-red"],
    ["last write", share(found.shares[n][n]), "is-blue"],
    ["kept per token", found.alpha[n].length + " vectors", ""]];
  if (!narrow) add(svg, "text", {x: right + 12, y: top + 12, "class": "b"}, "the head reads");
  facts.forEach(function (fact, i) {
    var at = narrow ? {x: 4 + (width - 8) / 3 * i, y: end + 30} :
      {x: right + 12, y: top + 36 + 41 * i};
    add(svg, "text", {x: at.x, y: at.y, "class": "b " + fact[2]}, fact[0]);
    add(svg, "text", {x: at.x, y: at.y + 17}, fact[1]);
  });
  return lookingSentence(n, values.size, values.tilt, values.seeded);
}

mount("depth-attention", drawLooking);
