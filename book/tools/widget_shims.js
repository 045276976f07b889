// Four small bridges between the theme, MathJax 3 and the widget manager; loaded before it.
(function () {
  // The widget manager finds its icon fonts beside where require.js thinks that it is: beside us.
  window.require.config({ baseUrl: new URL(".", document.currentScript.src).href });

  // Play's icons: the theme's Font Awesome replaces <i> elements that the widget still holds, and the
  // exception stops every link after it. Nested icons leave the element in place.
  window.FontAwesomeConfig = Object.assign({}, window.FontAwesomeConfig, { autoReplaceSvg: "nest" });

  // The widget manager typesets with MathJax 2's queue; MathJax 3 has typesetPromise instead. Both
  // listen for `load`, and this file stands first.
  function hub() {
    if (window.MathJax && !window.MathJax.Hub) {
      window.MathJax.Hub = {
        Queue: function (job) {
          var nodes = Array.isArray(job) && job[2] ? [job[2]] : undefined;
          if (window.MathJax.typesetPromise) {
            window.MathJax.typesetPromise(nodes).catch(function () {});
          }
        },
        Config: function () {},
        Register: { StartupHook: function () {} },
      };
    }
  }
  window.addEventListener("load", hub);

  // The handle of a slider has no name for screen readers; the words beside it are its label.
  function named() {
    document.querySelectorAll("[role=slider]:not([aria-label])").forEach(function (handle) {
      var box = handle, label = null;
      while (!label && box && !box.matches(".cell_output")) {
        label = box.querySelector(".widget-label");
        box = box.parentElement;
      }
      if (label && label.textContent) handle.setAttribute("aria-label", label.textContent);
    });
  }
  new MutationObserver(named).observe(document, { childList: true, subtree: true });
})();
