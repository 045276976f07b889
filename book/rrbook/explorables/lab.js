// Walks through a lab's recorded grid: what the real code drew and said at each setting.

function unpack(text) {
  var bytes = Uint8Array.from(atob(text), function (c) { return c.charCodeAt(0); });
  var plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain).json();
}

// A slider counts the settings of its axis; its label shows the setting itself.
function chosen(axes, values, form) {
  return axes.reduce(function (at, axis) {
    var i = Number(values[axis.name]), input = form.elements[axis.name];
    if (input.type === "range") {
      input.parentNode.querySelector("b").textContent = axis.words[i];
      input.setAttribute("aria-valuetext", axis.words[i]);
    }
    return at * axis.words.length + i;
  }, 0);
}

document.querySelectorAll("figure.rr-lab:not([data-unpacked])").forEach(function (root) {
  var data = JSON.parse(root.dataset.values);
  root.setAttribute("data-unpacked", "");
  unpack(data.packed).then(function (kept) {
    mount(root.dataset.explorable, function (svg, values, width, data, form) {
      var state = kept.states[chosen(data.axes, values, form)];
      var text = state.lines.map(function (i) { return kept.lines[i]; }).join("\n");
      var drawn = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
      svg.setAttribute("viewBox", drawn.getAttribute("viewBox"));
      svg.setAttribute("style", drawn.getAttribute("style"));
      svg.replaceChildren.apply(svg, Array.from(drawn.childNodes));
      svg.setAttribute("aria-label", state.said);
      return state.said;
    });
  });
});
