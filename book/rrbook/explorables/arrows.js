// Vectors as arrows, with their names beside them, whose tips can be dragged.

function arrow(svg, from, to, style) {
  var dx = to[0] - from[0], dy = to[1] - from[1], length = Math.hypot(dx, dy);
  if (length < 2) return;
  var head = Math.min(11, length * 0.6), ux = dx / length, uy = dy / length;
  var neck = [to[0] - ux * head * 0.8, to[1] - uy * head * 0.8];
  add(svg, "path", {d: path([from, neck]), "class": style});
  var back = [to[0] - ux * head, to[1] - uy * head], side = head * 0.42;
  add(svg, "path", {"class": "is-" + style.split(" ")[0], d: path([to,
    [back[0] - uy * side, back[1] + ux * side], [back[0] + uy * side, back[1] - ux * side]]) + "z"});
}

// Puts each label beside its arrow's tip, on the side where it covers least.
function place(svg, labels, lines) {
  var taken = [];
  lines.forEach(function (line) {
    for (var i = 0; i <= 16; i++) {
      taken.push([line[0][0] + (line[1][0] - line[0][0]) * i / 16,
        line[0][1] + (line[1][1] - line[0][1]) * i / 16, 3, 3]);
    }
  });
  labels.forEach(function (label) {
    var wide = label[1].length * 3.9, best = null;
    for (var turn = 0; turn < 16; turn++) {
      var angle = turn * Math.PI / 8, x = label[0][0] + Math.cos(angle) * (wide + 10);
      var y = label[0][1] - Math.sin(angle) * 17, cost = turn % 4 ? 0.2 : 0;
      taken.forEach(function (t) {
        if (Math.abs(t[0] - x) < wide + t[2] && Math.abs(t[1] - y) < 8 + t[3]) cost += t[2];
      });
      if (!best || cost < best.cost) best = {cost: cost, x: x, y: y};
    }
    taken.push([best.x, best.y, wide, 9]);
    add(svg, "text", {x: round(best.x), y: round(best.y + 4), "text-anchor": "middle",
      "class": label[2] + " halo"}, label[1]);
  });
}

// Sets sliders, as far as they go, and lets the form say so.
function setSliders(form, values) {
  for (var name in values) form.elements[name].value = values[name];
  form.dispatchEvent(new Event("input"));
}

// A ring at a tip that a pointer drags: `to` is called with where it is, in the picture's units. The
// sliders beside the picture serve the keyboard.
function handle(svg, at, style, to) {
  add(svg, "circle", {cx: round(at[0]), cy: round(at[1]), r: 7, "class": style + " line"});
  var ring = add(svg, "circle", {cx: round(at[0]), cy: round(at[1]), r: 17,
    style: "fill: transparent; cursor: grab; touch-action: none"});
  ring.addEventListener("pointerdown", function (event) {
    event.preventDefault();
    svg.dragged = to;
    svg.setPointerCapture(event.pointerId);
  });
  svg.onpointermove = function (event) {
    if (!svg.hasPointerCapture(event.pointerId)) return;
    var box = svg.getBoundingClientRect(), zoom = svg.viewBox.baseVal.width / box.width;
    svg.dragged((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
  };
}
