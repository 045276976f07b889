// What every explorable shares. It is inlined with each picture, so that a page, a notebook and
// Colab's one frame per output all work alike, with no network and no module loader.

function add(parent, name, attributes, text) {
  var node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (var key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}

// Three significant digits, or two and a power of ten; labs use kit.number.
function number(x) {
  var size = Math.abs(x), text;
  if (x === 0) return "0";
  if (size >= 0.001 && size < 1000) {
    text = String(parseFloat(x.toPrecision(3)));
  } else {
    var parts = x.toExponential(1).split("e");
    var power = parts[1].replace("+", "").replace(/[-\d]/g, function (c) {
      return c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c];
    });
    text = parseFloat(parts[0]) + "\u00a0×\u00a010" + power;
  }
  return text.replace("-", "−");
}

function share(x) {
  return x >= 1e-4 ? number(100 * x) + "\u00a0%" : number(x);
}

function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

function round(x) {
  return Math.round(x * 10) / 10;
}

function path(points) {
  return "M" + points.map(function (p) { return round(p[0]) + " " + round(p[1]); }).join("L");
}

function scale(from, to, low, high) {
  return function (x) { return low + (x - from) / (to - from) * (high - low); };
}

function read(form) {
  var values = {};
  form.querySelectorAll("input, select").forEach(function (input) {
    if (input.type === "range") values[input.name] = parseFloat(input.value);
    else if (input.type === "checkbox") values[input.name] = input.checked;
    else if (input.type !== "radio" || input.checked) values[input.name] = input.value;
    var shown = input.type === "range" && input.parentNode.querySelector("b");
    if (shown) shown.textContent = input.value.replace("-", "−") + (input.dataset.unit || "");
  });
  return values;
}

// Brings every figure of this name to life that is not alive yet. `draw(svg, values, width, data,
// form)` fills the emptied svg and returns the sentence that says the result in words.
function mount(name, draw) {
  var selector = 'figure.rr-explorable[data-explorable="' + name + '"]:not([data-ready])';
  document.querySelectorAll(selector).forEach(function (root) {
    root.setAttribute("data-ready", "");
    var svg = root.querySelector("svg.rr-picture"), said = root.querySelector(".rr-said");
    var form = root.querySelector("form"), data = JSON.parse(root.dataset.values || "null");
    root.querySelector(".rr-live").hidden = false;
    function update() {
      var width = Math.max(260, Math.min(682, svg.parentNode.clientWidth || 682));
      svg.textContent = "";
      var text = draw(svg, read(form), width, data, form);
      if (said.textContent !== text) said.textContent = text;
    }
    form.addEventListener("input", update);
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    if (window.ResizeObserver) {
      var last = 0;
      new ResizeObserver(function (entries) {
        var now = Math.round(entries[0].contentRect.width);
        if (now && now !== last) { last = now; update(); }
      }).observe(svg.parentNode);
    }
    update();
  });
}
