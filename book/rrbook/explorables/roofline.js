// Chapter 08: where a step's time should go on a card.

var STEP_NAMES = {attention: "attention", mlp: "MLP", rule: "rule", embedding: "embedding",
  head: "head", optimizer: "optimiser"};
var STEP_LONG = {attention: "attention", mlp: "the MLP", rule: "the rule’s norms, gate and write",
  embedding: "the embedding", head: "the head", optimizer: "the optimiser"};
var STEP_LOOKS = {attention: "blue", mlp: "mid", rule: "red", embedding: "ink", head: "amber",
  optimizer: "green"};
var STEP_FUSION = {none: "nothing fused", all: "everything fused"};

function stepNumbers(data, v) {
  var card = data.cards[v.card], peak = card[0], band = card[1];
  if (v.path === "reference" && !card[3]) return null;
  var reached = peak * (v.path === "reference" ? 0.5 : 1) * v.share / 100;
  var of = data.rungs[v.rung], one = of.paths[v.path];
  var found = {ms: {}, bound: {}, step: 0, largest: "attention"};
  Object.keys(one.parts).forEach(function (part) {
    var counts = one.parts[part];
    var think = 1000 * counts[0] / reached, move = 1000 * counts[1] / band;
    var alone = part === "embedding" || part === "optimizer";
    var beside = v.fusion === "all" && !alone ? 0 : 1000 * counts[2] / band;
    found.ms[part] = Math.max(think, move) + beside;
    found.bound[part] = think >= Math.max(move, beside) ? "arithmetic" : "memory";
    found.step += found.ms[part];
    if (found.ms[part] > found.ms[found.largest]) found.largest = part;
  });
  found.tokens = 1000 * of.tokens / found.step;
  found.mfu = 1000 * of.flops / (found.step * peak);
  found.fits = one.memory <= (1 - data.spare) * card[2];
  return found;
}

function timeWords(ms) {
  return ms < 999.5 ? number(ms) + "\u00a0ms" : number(ms / 1000) + "\u00a0s";
}

function pathWords(data, path, card) {
  if (path === "reference") return "reference path in TF32";
  return "fast path in " + (data.cards[card][3] ? "bf16" : "fp16");
}

function stepSentence(data, v) {
  var found = stepNumbers(data, v);
  var asked = v.rung + ", " + pathWords(data, v.path, v.card) + ", " + v.card + ", products at " +
    v.share + "\u00a0% of their peak, " + STEP_FUSION[v.fusion];
  if (!found) {
    return asked + ": not projected. The " + v.card +
      " has no TF32, and fp32 is not projected.";
  }
  var tokens = found.tokens / 1e3, unit = "thousand";
  if (tokens >= 999.5) {
    tokens = tokens / 1e3;
    unit = "million";
  }
  var largest = found.largest;
  return asked + ": " + timeWords(found.step) + " a step, " + number(tokens) + " " + unit +
    " tokens/s, an MFU of " + share(found.mfu) + ". The largest part, " +
    share(found.ms[largest] / found.step) + ", is " + STEP_LONG[largest] +
    ". Memory predicted for this path, " + data.rungs[v.rung].micro +
    " windows at once: " + number(data.rungs[v.rung].paths[v.path].memory / 1e9) +
    "\u00a0GB, which " + (found.fits ? "fits" : "does not fit") + " the card’s " +
    number(data.cards[v.card][2] / 1e9) + "\u00a0GB.";
}

function drawSteps(svg, v, width, data) {
  var chosen = v.path, other = chosen === "eager" ? "reference" : "eager";
  var both = {};
  [chosen, other].forEach(function (path) {
    both[path] = stepNumbers(data, Object.assign({}, v, {path: path}));
  });
  var longest = Math.max.apply(null, [chosen, other].map(function (path) {
    return both[path] ? both[path].step : 0;
  }));
  svg.setAttribute("viewBox", "0 0 " + width + " 258");
  function total(path) {
    return pathWords(data, path, v.card) + ": " +
      (both[path] ? timeWords(both[path].step) : "not projected");
  }
  function bar(parent, path, y, tall) {
    var x = 0;
    Object.keys(both[path] ? both[path].ms : {}).forEach(function (part) {
      var wide = width * both[path].ms[part] / longest;
      add(parent, "path", {d: "M" + round(x) + " " + y + "h" + round(wide) + "v" + tall + "h-" +
        round(wide) + "z", "class": "is-" + STEP_LOOKS[part]});
      x += wide;
    });
  }
  function row(y, words, style) {
    [[style ? 0 : 17, "start"], [width / 2, "end"], [width / 2 + 14, "start"],
      [width, "end"]].forEach(function (place, i) {
      add(svg, "text", {x: place[0], y: y, "text-anchor": place[1],
        "class": i === 3 ? "soft" : style}, words[i]);
    });
  }
  add(svg, "text", {x: 0, y: 13, "class": "b"}, total(chosen));
  bar(svg, chosen, 20, 30);
  add(svg, "text", {x: 0, y: 72, "class": "soft"}, total(other));
  bar(add(svg, "g", {opacity: 0.5}), other, 78, 12);
  row(118, ["part", "time", "limited by", "other path"], "soft");
  Object.keys(STEP_NAMES).forEach(function (part, i) {
    var y = 140 + 22 * i, here = both[chosen], there = both[other];
    add(svg, "path", {d: "M0 " + (y - 10) + "h11v11h-11z", "class": "is-" + STEP_LOOKS[part]});
    row(y, [STEP_NAMES[part], here ? timeWords(here.ms[part]) : "–",
      here ? here.bound[part] : "–", there ? timeWords(there.ms[part]) : "–"], "");
  });
  return stepSentence(data, v);
}

mount("step-roofline", drawSteps);
