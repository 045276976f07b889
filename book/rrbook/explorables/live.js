// The live network: sentence and gates in, chances and numbers out.

var STOPS = [0, null, 0.5, 1], WORDS = ["closed: r = 0", "as learned", "half: r = ½", "open: r = 1"];

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
  for (var s = 0; s < n; s++) gates.push(v.scope === "all" || s === v.place - 1 ? STOPS[v.gate] : null);
  return gates;
}

// Everything shown, from the values of the form.
function liveNumbers(opened, v) {
  var ids = liveIds(opened, v.sentence), now = netForward(opened, ids, liveGates(opened, v));
  var p = softmaxOf(now.logits), learned = softmaxOf(netForward(opened, ids, null).logits);
  var order = p.map(function (x, i) { return i; }).sort(function (a, b) { return p[b] - p[a]; });
  var at = Math.max(0, ids.length - 1 - v.word), step = now.steps[v.place - 1][at];
  return {ids: ids, logits: now.logits, p: p, learned: learned, picks: order.slice(0, 6), at: at,
    step: step};
}

function mean(x) {
  return x.reduce(function (a, b) { return a + b; }, 0) / x.length;
}

function fixed(x) {
  return x.toFixed(2).replace("-", "−");
}

function liveSentence(opened, v, n) {
  var usual = n.learned.indexOf(Math.max.apply(null, n.learned)), best = n.picks[0];
  var who = v.scope === "all" ? "all gates" : "the gate of sublayer " + v.place;
  var said = v.gate === 1 ? "With all gates as learned " : "With " + who + " " +
    ["closed", "", "at one half", "open"][v.gate] + " ";
  said += "the net would go on with " + shown(opened, best) + " (" + share(n.p[best]) + ")";
  if (v.gate !== 1) {
    said += best === usual ? ", as learned (" + share(n.learned[usual]) + ")" :
      "; as learned with " + shown(opened, usual) + " (" + share(n.learned[usual]) + ")";
  }
  var i = v.channel - 1, step = n.step;
  said += ". At " + (n.at ? shown(opened, n.ids[n.at]) : "the start") + ", in sublayer " +
    v.place + ", r is " + fixed(mean(step.r)) + " on average; channel " + v.channel +
    " goes from " + fixed(step.h[i]) + " to " + fixed(step.next[i]) + ".";
  if (encodeText(opened, v.sentence).length > opened.net.shape.seq_len - 1) {
    said += " The net reads the last " + (opened.net.shape.seq_len - 1) + " pieces alone.";
  }
  return said;
}

function drawChances(svg, opened, n, width) {
  var row = 34, name = 132, right = 64, most = 0;
  n.picks.forEach(function (i) { most = Math.max(most, n.p[i], n.learned[i]); });
  var long = scale(0, most, 1, width - name - right);
  svg.setAttribute("viewBox", "0 0 " + width + " " + (row * n.picks.length + 4));
  n.picks.forEach(function (i, k) {
    var y = row * k, label = shown(opened, i);
    add(svg, "text", {x: 0, y: y + 18}, label.length > 17 ? label.slice(0, 16) + "…" : label);
    add(svg, "rect", {x: name, y: y + 5, width: round(long(n.p[i])), height: 14, "class": "is-blue"});
    add(svg, "rect", {x: name, y: y + 20, width: round(long(n.learned[i])), height: 6,
      "class": "is-mid"});
    add(svg, "text", {x: round(name + Math.max(long(n.p[i]), long(n.learned[i])) + 6), y: y + 18},
      share(n.p[i]));
  });
}

function fillTable(root, opened, v, n) {
  root.querySelector("caption").textContent = "Sublayer " + v.place + " (" +
    (v.place % 2 ? "attention" : "MLP") + " of block " + Math.ceil(v.place / 2) + ") at " +
    (n.at ? shown(opened, n.ids[n.at]) : "the start of the story");
  root.querySelectorAll("tbody tr").forEach(function (row, k) {
    var i = v.channel - 1 + k, cells = row.children, s = n.step;
    [String(i + 1), fixed(s.h[i]), fixed(s.u[i]), fixed(s.r[i]), fixed(s.next[i])].forEach(
      function (text, c) { cells[c].textContent = text; });
  });
}

// The sliders reach as far as this net and this sentence do.
function fit(form, opened, v) {
  var shape = opened.net.shape, place = form.elements.place;
  while (place.options.length > 2 * shape.n_layer) place.remove(place.options.length - 1);
  while (place.options.length < 2 * shape.n_layer) {
    var s = place.options.length + 1;
    place.add(new Option(s + ": block " + Math.ceil(s / 2) + (s % 2 ? ", attention" : ", MLP"), s));
  }
  form.elements.channel.max = shape.d_model - 7;
  form.elements.word.max = Math.max(1, liveIds(opened, v.sentence).length - 1);
}

// Once: the buttons that add a piece, and the reader's own file.
function begin(form, root, data) {
  form.opened = openNet(data);
  root.querySelectorAll(".rr-picks button").forEach(function (button) {
    button.addEventListener("click", function () {
      form.elements.sentence.value += button.value;
      form.elements.word.value = 0;
      form.dispatchEvent(new Event("input"));
    });
  });
  root.querySelector("input[type=file]").addEventListener("change", function (event) {
    var reader = new FileReader(), file = event.target.files[0];
    reader.onload = function () {
      try {
        form.opened = openNet(JSON.parse(reader.result));
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
  form.elements.gate.setAttribute("aria-valuetext", WORDS[v.gate]);
  form.elements.gate.parentNode.querySelector("b").textContent = WORDS[v.gate];
  form.elements.word.parentNode.querySelector("b").textContent =
    n.at ? shown(opened, n.ids[n.at]) : "start";
  drawChances(svg, opened, n, width);
  root.querySelectorAll(".rr-picks button").forEach(function (button, k) {
    button.value = decodeToken(opened, n.picks[k]);
    button.textContent = "+ " + shown(opened, n.picks[k]);
  });
  fillTable(root, opened, v, n);
  form.logits = Array.from(n.logits);
  form.ids = n.ids;
  return (form.error || "") + liveSentence(opened, v, n);
}

mount("live-network", drawLive);
