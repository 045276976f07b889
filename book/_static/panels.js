// On a phone the panels of a figure stand below each other where each has an axis of its own; where
// they share one, or a legend, the figure stays whole and its box scrolls.
(function () {
  var SVG = "http://www.w3.org/2000/svg", phone = window.matchMedia("(max-width: 600px)");
  function ownAxis(panel) { // words to the left of the frame
    var frame = panel.querySelector("path").getBoundingClientRect();
    return Array.from(panel.querySelectorAll("text")).some(function (text) {
      return text.getBoundingClientRect().right <= frame.left;
    });
  }
  function edges(svg) { // where to cut, from the left edge to the right one; null: nowhere
    var whole = svg.viewBox.baseVal, cuts = [whole.x];
    var panels = Array.from(svg.querySelectorAll(":scope > g > g")).filter(function (group) {
      return group.querySelector("text");
    });
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
    svg.setAttribute("viewBox", svg.dataset.whole);
    svg.style.width = "";
    delete svg.dataset.whole;
  }
  function arrange() {
    if (phone.matches) { // a lab draws its own anew
      document.querySelectorAll("svg.rr-figure:not(.rr-picture, [data-whole])").forEach(split);
    } else {
      document.querySelectorAll("svg.rr-panel").forEach(function (panel) { panel.remove(); });
      document.querySelectorAll("svg.rr-figure[data-whole]").forEach(join);
    }
  }
  window.addEventListener("load", arrange);
  phone.addEventListener("change", arrange);
})();
