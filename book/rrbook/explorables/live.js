// The live network: sentence and gates in, chances and numbers out.

var GATES = {closed: 0, learned: null, half: 0.5, open: 1};

function shown(opened, token) {
  if (token === opened.net.eot) return "end of the story";
  return "“" + decodeToken(opened, token).replace(/ /g, "␣").replace(/\n/g, "⏎") + "”";
}

// What the net reads: the mark that begins a story, then the sentence, as much as its window holds.
function liveIds(opened, sentence) {
  var ids = encodeText(opened, sentence), most = opened.net.shape.seq_len - 1;
  return [opened.net.eot].concat(ids.slice(-most));
}

function liveGates(opened, v) {
  var n = 2 * opened.net.shape.n_layer, gates = [];
  for (var s = 0; s < n; s++) {
    gates.push(v.scope === "all" || s === v.place - 1 ? GATES[v.gate] : null);
  }
  return gates;
}

// Everything shown, from the values of the form.
function liveNumbers(opened, v) {
  var ids = liveIds(opened, v.sentence), now = netForward(opened, ids, liveGates(opened, v));
  var p = softmaxOf(now.logits), learned = softmaxOf(netForward(opened, ids, null).logits);
  var order = Array.from(p.keys()).sort(function (a, b) { return p[b] - p[a]; });
  var at = Math.max(0, ids.length - 1 + v.word), step = now.steps[v.place - 1][at];
  return {ids: ids, logits: now.logits, p: p, learned: learned, picks: order.slice(0, 6),
    step: step, piece: at ? shown(opened, ids[at]) : "the start"};
}

function mean(x) {
  return x.reduce(function (a, b) { return a + b; }, 0) / x.length;
}

function fixed(x) {
  return x.toFixed(2).replace("-", "−");
}

// Always per cent, with two digits after the point.
function chance(p) {
  return p < 1e-4 ? "< 0.01\u00a0%" : (100 * p).toFixed(2) + "\u00a0%";
}

// Of the channels shown, the one that the write moves most.
function mostMoved(v, step) {
  function moved(i) { return Math.abs(step.next[i] - step.h[i]); }
  var most = v.channel - 1;
  for (var i = most; i < v.channel + 7; i++) if (moved(i) > moved(most)) most = i;
  return moved(most) ? "of the channels shown, " + (most + 1) + " moves most, from " +
    fixed(step.h[most]) + " to " + fixed(step.next[most]) : "no channel moves";
}

function liveSentence(opened, v, n) {
  var usual = n.learned.indexOf(Math.max.apply(null, n.learned)), best = n.picks[0];
  var who = v.scope === "all" ? "all gates" : "the gate of sublayer " + v.place;
  var said = v.gate === "learned" ? "With all gates as learned " : "With " + who + " " +
    (v.gate === "half" ? "at one half " : v.gate + " ");
  said += "the net would go on with " + shown(opened, best) + " (" + chance(n.p[best]) + ")";
  if (v.gate !== "learned") {
    said += best === usual ? ", as learned (" + chance(n.learned[usual]) + ")" :
      "; as learned with " + shown(opened, usual) + " (" + chance(n.learned[usual]) + ")";
  }
  said += ". At " + n.piece + ", in sublayer " + v.place + ", r is " +
    fixed(mean(n.step.r)) + " on average; " + mostMoved(v, n.step) + ".";
  if (encodeText(opened, v.sentence).length > opened.net.shape.seq_len - 1) {
    said += " The net reads the last " + (opened.net.shape.seq_len - 1) + " pieces alone.";
  }
  return said;
}

function drawChances(svg, opened, n, width) {
  var row = 25, name = 132, bottom = row * n.picks.length, long = scale(0, 1, 0, width - name - 64);
  function bar(x, y, size, tall, colour) {
    add(svg, "rect", {x: x, y: y, width: round(size), height: tall, "class": colour});
  }
  svg.setAttribute("viewBox", "0 0 " + width + " " + (bottom + 20));
  [0, 0.5, 1].forEach(function (p) {
    var x = round(name + long(p));
    add(svg, "path", {d: path([[x, 0], [x, bottom]]), "class": "grid"});
    add(svg, "text", {x: x, y: bottom + 16, "text-anchor": "middle", "class": "soft"},
      100 * p + "\u00a0%");
  });
  n.picks.forEach(function (i, k) {
    var y = row * k, label = shown(opened, i);
    add(svg, "text", {x: 0, y: y + 15}, label.length > 17 ? label.slice(0, 16) + "…" : label);
    bar(name, y + 2, long(n.p[i]), 13, "is-blue");
    bar(name, y + 16, long(n.learned[i]), 5, "is-mid");
    add(svg, "text", {x: round(name + long(Math.max(n.p[i], n.learned[i])) + 6), y: y + 15,
      "class": "halo"}, chance(n.p[i]));
  });
  bar(0, bottom + 8, 20, 6, "is-mid");
  add(svg, "text", {x: 26, y: bottom + 16}, "as learned");
}

function fillTable(root, v, n) {
  var place = root.querySelector("select").selectedOptions[0].text, rows = "", s = n.step;
  root.querySelector("caption").textContent = "Sublayer " + place + "; at " + n.piece;
  for (var i = v.channel - 1; i < v.channel + 7; i++) {
    rows += "<tr><th scope='row'>" + (i + 1) + "</th>" + [s.h, s.u, s.r, s.next].map(function (x) {
      return "<td>" + fixed(x[i]) + "</td>";
    }).join("") + "</tr>";
  }
  root.querySelector("tbody").innerHTML = rows;
}

// The controls reach as far as this net and this sentence do.
function fit(form, opened, v) {
  var shape = opened.net.shape, place = form.elements.place;
  place.length = Math.min(place.length, 2 * shape.n_layer);
  while (place.length < 2 * shape.n_layer) {
    var s = place.length + 1;
    place.add(new Option(s + ": block " + Math.ceil(s / 2) + (s % 2 ? ", attention" : ", MLP"), s));
  }
  form.elements.channel.max = shape.d_model - 7;
  form.elements.word.min = Math.min(-1, 1 - liveIds(opened, v.sentence).length);
}

// Once: the buttons, each with a sentence, and the reader's own file.
function begin(form, root, data) {
  form.opened = openNet(data);
  root.querySelectorAll(".rr-picks button, .rr-samples button").forEach(function (button) {
    button.addEventListener("click", function () {
      form.elements.sentence.value = button.value;
      form.elements.word.value = 0;
      form.dispatchEvent(new Event("input"));
    });
  });
  root.querySelector("input[type=file]").addEventListener("change", function (event) {
    var reader = new FileReader(), file = event.target.files[0];
    reader.onload = function () {
      try {
        var opened = openNet(JSON.parse(reader.result));
        if (netForward(opened, [opened.net.eot], null).logits.some(isNaN)) throw new Error("NaN");
        form.opened = opened;
        form.error = "";
      } catch (error) {
        form.error = file.name + " is no net of rrbook.net: write one with python -m rrbook.net " +
          "RUN FILE.json. ";
      }
      form.dispatchEvent(new Event("input"));
    };
    if (file) reader.readAsText(file);
  });
}

function drawLive(svg, values, width, data, form) {
  var root = form.closest("figure");
  if (!form.opened) begin(form, root, data);
  fit(form, form.opened, values);
  var opened = form.opened, v = read(form), n = liveNumbers(opened, v);
  var word = form.elements.word;
  word.setAttribute("aria-valuetext", n.piece);
  word.parentNode.querySelector("b").textContent = n.piece;
  drawChances(svg, opened, n, width);
  root.querySelectorAll(".rr-picks button").forEach(function (button, k) {
    button.value = v.sentence + decodeToken(opened, n.picks[k]);
    button.textContent = "+ " + shown(opened, n.picks[k]);
  });
  fillTable(root, v, n);
  form.logits = Array.from(n.logits);
  form.ids = n.ids;
  return (form.error || "") + liveSentence(opened, v, n);
}

mount("live-network", drawLive);
