// A trained decoder in plain JavaScript: byte-level BPE, the forward pass, a gate in one's hand.
// What `rrbook.net` writes is read here; the tests hold every number to those of `rr`.

var MARK = "<|endoftext|>";

// GPT-2's alphabet: each of the 256 bytes is a letter that can be seen.
function byteLetters() {
  var letters = [], extra = 256;
  for (var b = 0; b < 256; b++) {
    var seen = (b > 32 && b < 127) || (b > 160 && b < 173) || b > 173;
    letters.push(String.fromCharCode(seen ? b : extra++));
  }
  return letters;
}

// float16 in base64, by name: Float32Array.
function netWeights(net) {
  var bytes = atob(net.weights), at = 0, weights = {};
  net.tensors.forEach(function (tensor) {
    var n = tensor[1].reduce(function (a, b) { return a * b; }, 1), x = new Float32Array(n);
    for (var i = 0; i < n; i++, at += 2) {
      var bits = bytes.charCodeAt(at) | bytes.charCodeAt(at + 1) << 8;
      var power = bits >> 10 & 31, part = (bits & 1023) / 1024;
      var size = power ? (1 + part) * Math.pow(2, power - 15) : part * Math.pow(2, -14);
      x[i] = bits & 32768 ? -size : size;
    }
    weights[tensor[0]] = x;
  });
  return weights;
}

function placesOf(list) {
  return new Map(list.map(function (x, i) { return [x, i]; }));
}

// Makes the file ready for use; throws where it is no such file.
function openNet(net) {
  if (!net || net.format !== 1 || !net.tensors) throw new Error("not a file of rrbook.net");
  var letters = byteLetters();
  return {net: net, weights: netWeights(net), ranks: placesOf(net.merges),
    numbers: placesOf(net.tokens), letters: letters, bytes: placesOf(letters)};
}

function encodeWord(opened, word) {
  var parts = Array.from(new TextEncoder().encode(word), function (b) { return opened.letters[b]; });
  for (;;) {
    var best = Infinity, at = -1;
    for (var i = 0; i + 1 < parts.length; i++) {
      var rank = opened.ranks.get(parts[i] + " " + parts[i + 1]);
      if (rank !== undefined && rank < best) { best = rank; at = i; }
    }
    if (at < 0) break;
    parts.splice(at, 2, parts[at] + parts[at + 1]);
  }
  return parts.map(function (part) { return opened.numbers.get(part); });
}

// Token numbers of a text, as `Vocabulary.encode`.
function encodeText(opened, text) {
  var words = new RegExp("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" +
    " ?[^\\p{White_Space}\\p{L}\\p{N}]+|\\p{White_Space}+(?!\\P{White_Space})|" +
    "\\p{White_Space}+", "gu"), ids = [];
  text.split(MARK).forEach(function (part, i) {
    if (i) ids.push(opened.net.eot);
    (part.match(words) || []).forEach(function (word) {
      ids = ids.concat(encodeWord(opened, word));
    });
  });
  return ids;
}

function decodeToken(opened, number) {
  var letters = Array.from(opened.net.tokens[number]);
  if (number === opened.net.eot) return MARK;
  return new TextDecoder().decode(Uint8Array.from(letters, function (c) {
    return opened.bytes.get(c);
  }));
}

function erf(x) {
  if (Math.abs(x) > 6) return x > 0 ? 1 : -1;
  var term = x, sum = x;
  for (var n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= 2 * x * x / (2 * n + 1);
    sum += term;
  }
  return 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * sum;
}

function rmsOf(x, gain) {
  var square = 0, i, y = new Float64Array(x.length);
  for (i = 0; i < x.length; i++) square += x[i] * x[i];
  var by = 1 / Math.sqrt(square / x.length + 1e-5);
  for (i = 0; i < x.length; i++) y[i] = x[i] * by * (gain ? gain[i] : 1);
  return y;
}

// W x + b for W (rows, columns).
function linear(weight, bias, x) {
  var columns = x.length, rows = weight.length / columns, y = new Float64Array(rows);
  for (var i = 0, at = 0; i < rows; i++) {
    var sum = bias ? bias[i] : 0;
    for (var j = 0; j < columns; j++) sum += weight[at++] * x[j];
    y[i] = sum;
  }
  return y;
}

function attend(shape, xs, part) {
  var d = shape.d_model, e = d / shape.n_head;
  var rows = xs.map(function (x) { return linear(part("qkv.weight"), part("qkv.bias"), x); });
  return rows.map(function (row, t) {
    var mixed = new Float64Array(d);
    for (var head = 0; head < d; head += e) {
      var scores = [], most = -Infinity, total = 0, s, i;
      for (s = 0; s <= t; s++) {
        var score = 0;
        for (i = head; i < head + e; i++) score += row[i] * rows[s][d + i];
        scores.push(score / Math.sqrt(e));
        most = Math.max(most, scores[s]);
      }
      for (s = 0; s <= t; s++) total += scores[s] = Math.exp(scores[s] - most);
      for (s = 0; s <= t; s++) for (i = head; i < head + e; i++) {
        mixed[i] += scores[s] / total * rows[s][2 * d + i];
      }
    }
    return linear(part("out.weight"), part("out.bias"), mixed);
  });
}

function perceive(xs, part) {
  return xs.map(function (x) {
    var wide = linear(part("up.weight"), part("up.bias"), x);
    for (var i = 0; i < wide.length; i++) wide[i] *= (1 + erf(wide[i] / Math.SQRT2)) / 2;
    return linear(part("down.weight"), part("down.bias"), wide);
  });
}

// ids -> {logits: of the token after the last, steps: per sublayer what stands at each token}.
// gates: null, or for each sublayer null (as learned) or the number that every r is set to.
function netForward(opened, ids, gates) {
  var shape = opened.net.shape, weights = opened.weights, d = shape.d_model, steps = [];
  var stream = ids.map(function (token, t) {
    var x = new Float64Array(d);
    for (var i = 0; i < d; i++) {
      x[i] = weights["token.weight"][token * d + i] + weights["position.weight"][t * d + i];
    }
    return x;
  });
  for (var s = 0; s < 2 * shape.n_layer; s++) {
    var layer = "layers." + (s >> 1) + ".", kind = s % 2 ? "mlp" : "attn";
    var part = function (name) { return weights[layer + kind + "." + name]; };
    var own = function (name) { return weights[layer + kind + "_rule." + name]; };
    var xs = stream.map(function (h) { return rmsOf(h, own("gain")); });
    var us = s % 2 ? perceive(xs, part) : attend(shape, xs, part), step = [];
    stream = stream.map(function (h, t) {
      var u = us[t], r, next = new Float64Array(d), set = gates ? gates[s] : null;
      if (set !== null) r = new Float64Array(d).fill(set);
      else if (!own("weight")) r = new Float64Array(d).fill(opened.net.coefficient);
      else {
        var both = new Float64Array(2 * d);
        both.set(rmsOf(h));
        both.set(rmsOf(u), d);
        r = linear(own("weight"), own("bias"), both).map(sigmoid);
      }
      for (var i = 0; i < d; i++) next[i] = h[i] + r[i] * u[i];
      step.push({h: h, u: u, r: r, next: next});
      return next;
    });
    steps.push(step);
  }
  var last = rmsOf(stream[stream.length - 1], weights["final_rule.gain"]);
  return {logits: linear(weights["token.weight"], null, last), steps: steps};
}

function softmaxOf(logits) {
  var most = Math.max.apply(null, logits), total = 0;
  var p = Array.from(logits, function (x) { return Math.exp(x - most); });
  p.forEach(function (x) { total += x; });
  return p.map(function (x) { return x / total; });
}
