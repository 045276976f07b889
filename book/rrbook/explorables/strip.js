// What a gate holds back, word by word, beside what the update is worth there.

var STRIP = {row: 96, letter: 7.8, gap: 7, bar: 20, down: 40, thick: 14, full: {saved: 8, loss: 4},
  below: {saved: "loss saved", loss: "loss of the next word"}};

function stripRanks(x) {
  return x.map(function (a) {
    var less = 0, same = 0;
    x.forEach(function (b) { less += b < a; same += b === a; });
    return less + (same + 1) / 2;
  });
}

function stripNumbers(data, sublayer, below) {
  var held = data.held[sublayer - 1], saved = data.saved[sublayer - 1];
  var a = stripRanks(held), b = stripRanks(below === "loss" ? data.loss : saved);
  var mid = (a.length + 1) / 2, over = 0, first = 0, second = 0, sum = 0, helped = 0;
  a.forEach(function (p, i) {
    over += (p - mid) * (b[i] - mid);
    first += (p - mid) * (p - mid);
    second += (b[i] - mid) * (b[i] - mid);
    sum += held[i];
    helped += saved[i] > 0;
  });
  var low = Math.min.apply(null, held), high = Math.max.apply(null, held);
  return {mean: sum / held.length, low: low, at_low: held.indexOf(low), high: high,
    at_high: held.indexOf(high), helped: helped, rank: over / Math.sqrt(first * second),
    luck: 1.96 / Math.sqrt(held.length - 1)};
}

function stripSentence(data, sublayer, below) {
  var found = stripNumbers(data, sublayer, below);
  var least = data.words[found.at_low].trim(), most = data.words[found.at_high].trim();
  return "Sublayer " + sublayer + ", " + data.kinds[sublayer - 1] + ": a channel holds back " +
    share(found.mean) + " of the update on average, least at “" + least + "” (" +
    share(found.low) + "), most at “" + most + "” (" + share(found.high) +
    "). The update lowers the loss at " + found.helped + " of " + data.loss.length +
    " tokens. Rank correlation of what is held back with the " + STRIP.below[below] + ": " +
    number(found.rank) + "; luck alone stays within ±" + number(found.luck) + ".";
}

function stripLayout(words, width) {
  var x = 0, row = 0;
  return words.map(function (word) {
    var wide = Math.max(STRIP.thick, STRIP.letter * word.trim().length);
    if (word[0] === " ") x += STRIP.gap;
    if (x + wide > width && x > 0) { x = 0; row += 1; }
    var place = [x, row, wide];
    x += wide + 2;
    return place;
  });
}

function drawStrip(svg, values, width, data) {
  var held = data.held[values.sublayer - 1], bar = STRIP.bar;
  var other = values.below === "loss" ? data.loss : data.saved[values.sublayer - 1];
  var places = stripLayout(data.words, width), rows = places[places.length - 1][1] + 1;
  svg.setAttribute("viewBox", "0 0 " + width + " " + STRIP.row * rows);
  places.forEach(function (place, i) {
    var y = STRIP.row * place[1], middle = place[0] + place[2] / 2, word = data.words[i].trim();
    var x = round(middle - STRIP.thick / 2);  // bars of one width: a long word weighs no more
    var tall = STRIP.down * Math.sqrt(Math.min(1, Math.abs(other[i]) / STRIP.full[values.below]));
    add(svg, "rect", {x: x, width: STRIP.thick, y: round(y + bar * (1 - held[i])),
      height: round(bar * held[i]), "class": "is-red"});
    add(svg, "text", {x: round(middle - STRIP.letter * word.length / 2), y: y + bar + 14,
      textLength: round(STRIP.letter * word.length), style: "font-family:monospace"}, word);
    add(svg, "rect", {x: x, width: STRIP.thick, y: y + bar + 19, height: round(tall),
      "class": other[i] > 0 ? "is-green" : "hollow amber"});
  });
  return stripSentence(data, values.sublayer, values.below);
}

mount("held-back", drawStrip);
