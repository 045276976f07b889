// What four float formats keep of a number and of a sum.

var FORMATS = {fp32: [23, -126, 127], tf32: [10, -126, 127], bf16: [7, -126, 127],
  fp16: [10, -14, 15]};
var FORMAT_NAMES = {fp32: "fp32", tf32: "TF32", bf16: "bf16", fp16: "fp16"};
var ORDERS = {down: "largest first", up: "smallest first", pairs: "in pairs"};
var AROUND = 0.02, TICKS = 90;

function spacing(x, name) {
  var size = Math.abs(x), e = Math.floor(Math.log2(size));
  if (Math.pow(2, e) > size) e -= 1;
  if (Math.pow(2, e + 1) <= size) e += 1;
  return Math.pow(2, Math.max(e, FORMATS[name][1]) - FORMATS[name][0]);
}

function rounded(x, name) {
  if (x === 0 || !isFinite(x)) return x;
  var step = spacing(x, name), q = x / step, low = Math.floor(q), rest = q - low;
  var y = (rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low) * step;
  return Math.abs(y) < Math.pow(2, FORMATS[name][2] + 1) ? y : (x > 0 ? Infinity : -Infinity);
}

function harmonic(terms, name) {
  var parts = [], k, truth = 0, up = 0, down = 0;
  for (k = 1; k <= terms; k++) parts.push(rounded(1 / k, name));
  for (k = terms - 1; k >= 0; k--) {
    truth += 1 / (k + 1);
    up = rounded(up + parts[k], name);
  }
  for (k = 0; k < terms; k++) down = rounded(down + parts[k], name);
  while (parts.length > 1) {
    var pairs = [];
    for (k = 0; k + 1 < parts.length; k += 2) pairs.push(rounded(parts[k] + parts[k + 1], name));
    if (parts.length % 2) pairs.push(parts[parts.length - 1]);
    parts = pairs;
  }
  return {down: Math.abs(down - truth) / truth, up: Math.abs(up - truth) / truth,
    pairs: Math.abs(parts[0] - truth) / truth};
}

function floatNumbers(v) {
  var x = Math.pow(10, v.power);
  return {x: x, rounded: rounded(x, v.format), spacing: spacing(x, v.format),
    errors: harmonic(Math.pow(2, v.terms), v.format)};
}

function floatSentence(v) {
  var found = floatNumbers(v), name = FORMAT_NAMES[v.format], x = found.x, y = found.rounded, told;
  if (y === 0) told = number(x) + " is 0 in " + name + ": too small for it.";
  else if (!isFinite(y)) told = number(x) + " is infinite in " + name + ": too large for it.";
  else {
    told = number(x) + " in " + name + " is off by " + share(Math.abs(y - x) / x) +
      "; its neighbours there are " + number(found.spacing) +
      " apart, and numbers closer than that may become the same.";
  }
  var errors = Object.keys(ORDERS).map(function (order) {
    return share(found.errors[order]) + " " + ORDERS[order];
  }).join(", ");
  return told + " 1 + 1/2 + … + 1/" + Math.pow(2, v.terms) +
    ", rounded after every addition, is off by " + errors + ".";
}

// The format's numbers within 2 % of x; null where there are too many to draw.
function neighbours(x, name) {
  var y = rounded(x, name), found = [];
  if (y === 0 || !isFinite(y)) return [];
  if (Math.abs(y - x) <= AROUND * x) found.push(y);
  [1, -1].forEach(function (way) {
    var at = y;
    while (found.length <= TICKS) {
      // just below a power of two the numbers are twice as dense as above it
      at += way * spacing(way > 0 ? at : at * (1 - Math.pow(2, -30)), name);
      if (Math.abs(at - x) > AROUND * x) break;
      found.push(at);
    }
  });
  found.sort(function (a, b) { return a - b; });
  return found.length <= TICKS ? found : null;
}

function drawFloats(svg, v, width) {
  var found = floatNumbers(v), x = found.x, left = 108, right = width - 16;
  var at = scale(x * (1 - AROUND), x * (1 + AROUND), 12, width - 12);
  var across = function (error) {
    var power = error === 0 ? -9 : Math.max(-9, Math.log10(error));
    return left + (right - left) * (power + 9) / 9;
  };
  svg.setAttribute("viewBox", "0 0 " + width + " 230");
  add(svg, "text", {x: 0, y: 12, "class": "soft"},
    "numbers of " + FORMAT_NAMES[v.format] + " within 2 % of " + number(x));
  add(svg, "path", {d: "M12 60H" + (width - 12), "class": "grid"});
  var marks = neighbours(x, v.format);
  if (marks === null) {
    add(svg, "path", {d: "M12 46H" + (width - 12) + "V60H12z", "class": "is-mid"});
    add(svg, "text", {x: 12, y: 40, "class": "soft"}, "too many to draw");
  } else if (!marks.length) {
    add(svg, "text", {x: 12, y: 40, "class": "soft"}, "none");
  }
  (marks || []).forEach(function (value) {
    add(svg, "path", {d: "M" + round(at(value)) + " 44V60", "class": "blue thin"});
  });
  add(svg, "path", {d: "M" + round(at(x)) + " 30V68", "class": "red line"});
  add(svg, "text", {x: 0, y: 104, "class": "soft"}, "relative error of the sum");
  var others = {};
  Object.keys(FORMATS).forEach(function (name) {
    others[name] = harmonic(Math.pow(2, v.terms), name);
  });
  Object.keys(ORDERS).forEach(function (order, i) {
    var y = 132 + 28 * i;
    add(svg, "path", {d: "M" + left + " " + y + "H" + right, "class": "grid"});
    add(svg, "text", {x: left - 12, y: y + 4, "text-anchor": "end"}, ORDERS[order]);
    Object.keys(FORMATS).forEach(function (name) {
      if (name !== v.format) {
        add(svg, "circle", {cx: across(others[name][order]), cy: y, r: 3.5, "class": "soft"});
      }
    });
    add(svg, "circle", {cx: across(others[v.format][order]), cy: y, r: 6, "class": "is-blue"});
  });
  [-9, -6, -3, 0].forEach(function (tick) {
    add(svg, "text", {x: across(Math.pow(10, tick)), y: 222, "text-anchor": "middle",
      "class": "soft"}, tick ? "10" + {"-9": "⁻⁹", "-6": "⁻⁶", "-3": "⁻³"}[tick] : "1");
  });
  return floatSentence(v);
}

mount("float-formats", drawFloats);
