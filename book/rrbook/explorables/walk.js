// One sentence on its way through a transformer: a row per word, a bar per number.

var WALK = {row: 27, word: 66, arcs: 34, next: 112, bar: 11,
  colour: {embedding: "is-blue", add: "is-blue", head: "is-blue", norm: "is-sky",
    attention: "is-green", mlp: "is-amber"}};

function walkSentence(data, stop, at) {
  var here = data.stops[stop], word = "“" + data.words[at] + "”", size = number(here.size[at]);
  var next = here.next[at], said = "“" + next[0] + "” (" + share(next[1]) + ")";
  var read = "Read as a prediction, the stream at " + word + " says " + said + ".";
  if (here.kind === "embedding") {
    var same = "The head uses the same table, so each word is still nearest to itself: ";
    return here.name + ": each word gets its vector from a table, and the vector of its place is " +
      "added. No word has met another yet. " + (next[0] === data.words[at] ? same + said + "." : read);
  }
  if (here.kind === "norm") {
    return here.name + ": a copy of the stream is scaled to size 1, channel by channel with a " +
      "learned gain. Only this copy is read; the stream itself stays. " + read;
  }
  if (here.kind === "attention") {
    var row = here.reads[at].map(function (x, i) { return [x, i]; });
    row.sort(function (a, b) { return b[0] - a[0]; });
    var most = row.slice(0, Math.min(3, at + 1)).map(function (pair) {
      return "“" + data.words[pair[1]] + "” " + share(pair[0]);
    });
    return here.name + ": " + word + " reads the words up to itself, most of all " +
      most.join(", ") + ". What it takes from them is its update, of size " + size + ".";
  }
  if (here.kind === "mlp") {
    return here.name + ": each word is now worked on alone. The update at " + word +
      " has the size " + size + ".";
  }
  if (here.kind === "add") {
    return here.name + ": the update is added to the stream, whose size at " + word + " is now " +
      size + ". " + read;
  }
  return here.name + ": after a last norm each vector is compared with that of every word. After " +
    word + " the net expects " + said +
    (at + 1 < data.words.length ? "; the sentence goes on with “" + data.words[at + 1] + "”." : ".");
}

function drawWalk(svg, values, width, data, form) {
  var stop = data.stops[values.stop], rows = stop.cells, at = values.word - 1;
  var left = WALK.arcs + WALK.word, right = width - WALK.next;
  var wide = (right - left) / rows[0].length, most = 0;
  rows.forEach(function (row) { row.forEach(function (x) { most = Math.max(most, Math.abs(x)); }); });
  svg.setAttribute("viewBox", "0 0 " + width + " " + (WALK.row * rows.length + 6));
  function middle(i) { return WALK.row * i + WALK.row / 2 + 3; }
  add(svg, "rect", {x: WALK.arcs - 3, y: round(middle(at) - WALK.row / 2 + 1), rx: 4,
    width: round(width - WALK.arcs + 3), height: WALK.row - 2, "class": "grid"});
  rows.forEach(function (row, i) {
    var y = middle(i);
    add(svg, "text", {x: WALK.arcs, y: y + 4, "class": i === at ? "b" : ""}, data.words[i]);
    add(svg, "path", {d: path([[left, y], [right - 8, y]]), "class": "grid"});
    row.forEach(function (x, k) {
      var tall = Math.max(0.5, Math.abs(x) / most * WALK.bar);
      add(svg, "rect", {x: round(left + k * wide), y: round(x > 0 ? y - tall : y),
        width: round(Math.max(1.5, wide - 2.5)), height: round(tall),
        "class": WALK.colour[stop.kind]});
    });
    add(svg, "text", {x: right, y: y + 4, "class": i === at ? "b" : "soft"},
      "→ " + (stop.next[i][0].length > 11 ? stop.next[i][0].slice(0, 10) + "…" : stop.next[i][0]));
  });
  if (stop.reads) stop.reads[at].forEach(function (x, i) {
    if (i > at || x < 0.02) return;
    var from = middle(at), to = middle(i), bow = Math.min(30, 6 + 4 * (at - i));
    add(svg, "path", {d: "M" + (WALK.arcs - 5) + " " + from + "C" + (WALK.arcs - 5 - bow) + " " +
      from + " " + (WALK.arcs - 5 - bow) + " " + to + " " + (WALK.arcs - 5) + " " + to,
      "class": "green", "stroke-width": round(0.5 + 6 * x)});
  });
  var slider = form.elements.stop;  // says the place, not a number alone
  slider.parentNode.querySelector("b").textContent = stop.name;
  slider.setAttribute("aria-valuetext", stop.name);
  return walkSentence(data, values.stop, at);
}

mount("sentence-walk", drawWalk);
