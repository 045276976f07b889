// On a phone the panels of a figure stand below each other where each has an axis of its own. A
// figure of one panel gets a narrower frame around letters of the same size, unless words would then
// lie on each other. Any other figure stays as it is, and its box scrolls.
(function () {
  var SVG = "http://www.w3.org/2000/svg", phone = window.matchMedia("(max-width: 600px)");
  var kept = new Map(); // of a narrowed figure, what it held
  function ownAxis(panel) { // words to the left of the frame
    var frame = panel.querySelector("path").getBoundingClientRect();
    return Array.from(panel.querySelectorAll("text")).some(function (text) {
      return text.getBoundingClientRect().right <= frame.left;
    });
  }
  function panelsOf(svg) {
    return Array.from(svg.querySelectorAll(":scope > g > g")).filter(function (group) {
      return group.querySelector("text");
    });
  }
  function edges(svg) { // where to cut, from the left edge to the right one; null: nowhere
    var whole = svg.viewBox.baseVal, cuts = [whole.x];
    var panels = panelsOf(svg);
    var boxes = panels.map(function (panel) { return panel.getBBox(); });
    for (var i = 1; i < panels.length; i++) {
      var end = boxes[i - 1].x + boxes[i - 1].width;
      if (boxes[i].x < end || !boxes[i].width || !ownAxis(panels[i])) return null;
      cuts.push((end + boxes[i].x) / 2);
    }
    return panels.length > 1 ? cuts.concat(whole.x + whole.width) : null;
  }
  function show(svg, x, width, whole) {
    svg.setAttribute("viewBox", [x, whole.y, width, whole.height].join(" "));
    svg.style.width = "calc(40rem * " + width / whole.width + ")"; // the scale of custom.css
  }
  function split(svg, number) {
    var cuts = edges(svg), drawn = svg.querySelector("g"), from = svg.viewBox.baseVal;
    var whole = {y: from.y, width: from.width, height: from.height};
    if (!cuts) return;
    svg.dataset.whole = svg.getAttribute("viewBox");
    drawn.id = "rr-panels-" + number;
    for (var i = cuts.length - 2; i > 0; i--) {
      var panel = document.createElementNS(SVG, "svg"), use = document.createElementNS(SVG, "use");
      panel.setAttribute("class", "rr-panel");
      panel.setAttribute("style", svg.getAttribute("style") || "");
      panel.setAttribute("aria-hidden", "true"); // the figure's own words tell of all panels
      use.setAttribute("href", "#" + drawn.id);
      panel.append(use);
      show(panel, cuts[i], cuts[i + 1] - cuts[i], whole);
      svg.after(panel);
    }
    show(svg, cuts[0], cuts[1] - cuts[0], whole);
  }
  function join(svg) {
    if (kept.has(svg)) svg.replaceChildren.apply(svg, kept.get(svg));
    kept.delete(svg);
    svg.setAttribute("viewBox", svg.dataset.whole);
    svg.style.width = "";
    delete svg.dataset.whole;
  }

  // Moves everything in x: left of the frame it stays, in the frame it draws together, right of it
  // it follows. Letters and marks keep their shape.
  function move(root, x) {
    function drawn(path) {
      path.setAttribute("d", path.getAttribute("d").replace(
        /(-?[\d.]+)([\s,]+)(-?[\d.]+)/g, function (all, at, between, y) {
          return x(parseFloat(at)) + between + y;
        }));
    }
    root.querySelectorAll("path").forEach(function (path) {
      if (!path.closest("defs")) drawn(path); // a mark's own shape is in defs
    });
    root.querySelectorAll("use").forEach(function (use) {
      var shape = root.querySelector(use.getAttribute("href") || use.getAttribute("xlink:href"));
      var at = parseFloat(use.getAttribute("x"));
      if (at === 0 && shape) { // an area, where it is drawn
        if (!shape.dataset.moved) drawn(shape);
        shape.dataset.moved = "";
      } else if (use.hasAttribute("x")) {
        use.setAttribute("x", x(at));
      }
    });
    root.querySelectorAll("text").forEach(function (text) {
      var style = text.getAttribute("style") || "", gap = 5; // words stand beside what they name
      var beside = /anchor: end/.test(style) ? gap : /anchor: middle/.test(style) ? 0 : -gap;
      function to(at) { return x(at + beside) - beside; }
      if (text.hasAttribute("x")) text.setAttribute("x", to(parseFloat(text.getAttribute("x"))));
      var turned = text.closest("[transform]"), way = turned && turned.getAttribute("transform");
      if (way) turned.setAttribute("transform", way.replace(
        /(translate\(|rotate\(-?[\d.]+[\s,]+)(-?[\d.]+)/, function (all, head, at) {
          return head + (/-90/.test(way) ? x : to)(parseFloat(at));
        }));
    });
    root.querySelectorAll("clipPath rect").forEach(function (box) {
      var left = parseFloat(box.getAttribute("x")), wide = parseFloat(box.getAttribute("width"));
      box.setAttribute("x", x(left));
      box.setAttribute("width", x(left + wide) - x(left));
    });
  }
  function crossings(svg) { // words that lie on words or on marks, or that a curve runs through
    var texts = words(svg), found = new Set(), boxes = texts.map(function (text) {
      return text.getBoundingClientRect();
    });
    function holds(box, x, y) {
      return x > box.left && x < box.right && y > box.top + 2 && y < box.bottom - 2;
    }
    function note(i, other) { found.add(texts[i].textContent + " on " + other); }
    boxes.forEach(function (a, i) {
      boxes.slice(0, i).forEach(function (b, j) {
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 &&
            b.top < a.bottom - 2) note(i, texts[j].textContent);
      });
    });
    svg.querySelectorAll("use").forEach(function (mark, which) {
      var box = mark.getBoundingClientRect();
      boxes.forEach(function (a, i) {
        if (holds(a, (box.left + box.right) / 2, (box.top + box.bottom) / 2)) note(i, which);
      });
    });
    svg.querySelectorAll("path").forEach(function (curve, which) {
      if (curve.closest("defs") || !/fill: none/.test(curve.getAttribute("style")) ||
          curve.getAttribute("d").split("L").length < 4) return;
      var at = curve.getScreenCTM(), long = curve.getTotalLength();
      for (var k = 0; k <= 80; k++) {
        var point = curve.getPointAtLength(long * k / 80).matrixTransform(at);
        boxes.forEach(function (a, i) {
          if (holds(a, point.x, point.y)) note(i, "curve " + which);
        });
      }
    });
    return found;
  }
  function words(svg) {
    return Array.from(svg.querySelectorAll("text")).filter(function (text) {
      return text.getAttribute("visibility") !== "hidden" && text.textContent.trim();
    });
  }
  // Words below the frame stay within the picture, in two lines where they must.
  function below(text, width) {
    var box = text.getBBox(), line = text.cloneNode(true), all = text.textContent, more = 0;
    if (box.width > width && !text.children.length) {
      var cut = all.lastIndexOf(" ", all.length / 2 + 3);
      text.textContent = all.slice(0, cut);
      line.textContent = all.slice(cut + 1);
      more = 1.15 * box.height;
      line.setAttribute("y", parseFloat(text.getAttribute("y")) + more);
      text.after(line);
      below(line, width);
      box = text.getBBox();
    }
    var off = Math.max(0, -box.x) - Math.max(0, box.x + box.width - width);
    text.setAttribute("x", parseFloat(text.getAttribute("x")) + off);
    return more;
  }
  function narrow(svg, room) {
    var panels = panelsOf(svg);
    if (panels.length !== 1 || svg.querySelector("image")) return;
    var view = svg.viewBox.baseVal, frame = panels[0].querySelector("path").getBBox();
    var whole = {x: view.x, y: view.y, width: view.width, height: view.height};
    var scale = svg.getBoundingClientRect().width / whole.width, end = frame.x + frame.width;
    var before = crossings(svg), held = Array.from(svg.childNodes), goal = room / scale, over = 0;
    var right;
    svg.dataset.whole = svg.getAttribute("viewBox");
    kept.set(svg, held);
    for (var pass = 0; pass < 2; pass++) { // the second leaves room for words at the right edge
      var factor = 1 - (whole.width - goal + over) / frame.width, more = 0;
      right = 0;
      if (factor >= 1 || factor < 0.25) return join(svg);
      svg.replaceChildren.apply(svg, held.map(function (node) { return node.cloneNode(true); }));
      move(svg, function (at) {
        var to = Math.min(at, frame.x) + Math.min(Math.max(at - frame.x, 0), frame.width) * factor +
          Math.max(0, at - end);
        return Math.round(100 * to) / 100;
      });
      words(svg).forEach(function (text) {
        var box = text.getBBox();
        if (text.hasAttribute("transform") || box.y < frame.y + frame.height) {
          var now = text.getBoundingClientRect(), edge = svg.getBoundingClientRect().left;
          right = Math.max(right, (now.right - edge) / scale);
        }
      });
      if (right <= goal) break;
      over = right - goal + 2;
    }
    if (right > goal) return join(svg);
    var ticks = words(svg).filter(function (text) { // of the horizontal axis
      return /^[\s\d.,−+%×^½kM]*$/.test(text.textContent) &&
        text.getBBox().y > frame.y + frame.height;
    });
    var close = ticks.some(function (text, i) {
      var a = i && ticks[i - 1].getBoundingClientRect(), b = text.getBoundingClientRect();
      return i && a.left < b.left && a.right > b.left - 5;
    });
    if (close) ticks.forEach(function (text, i) {
      if (i % 2) text.setAttribute("visibility", "hidden");
    });
    words(svg).forEach(function (text) {
      if (!text.hasAttribute("transform") && text.getBBox().y > frame.y + frame.height &&
          !ticks.includes(text)) more = Math.max(more, below(text, goal));
    });
    if (Array.from(crossings(svg)).some(function (one) { return !before.has(one); })) {
      return join(svg);
    }
    show(svg, whole.x, goal, {y: whole.y, width: whole.width, height: whole.height + more});
  }
  function arrange() {
    if (phone.matches) { // a lab draws its own anew
      var whole = "svg.rr-figure:not(.rr-picture, [data-whole])";
      document.querySelectorAll(whole).forEach(split);
      document.querySelectorAll(whole).forEach(function (svg) {
        narrow(svg, svg.parentNode.clientWidth);
      });
    } else {
      document.querySelectorAll("svg.rr-panel").forEach(function (panel) { panel.remove(); });
      document.querySelectorAll("svg.rr-figure[data-whole]").forEach(join);
    }
  }
  window.addEventListener("load", arrange);
  phone.addEventListener("change", arrange);
})();
