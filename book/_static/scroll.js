// Boxes that are wider than the screen say so (class rr-more), and can be scrolled by keyboard. The
// sidebar shows where one is. On a phone a picture that is low enough stays above its sliders.
(function () {
  var BOXES =
    "main :is(.rr-figure-box, .pst-scrollable-table-container, .output.text_html, .highlight pre," +
    " mjx-container[display=true])";
  var IN_A_LINE = "main span.math"; // without words below it
  function mark() {
    document.querySelectorAll([BOXES, IN_A_LINE]).forEach(function (box) {
      var more = box.scrollWidth > box.clientWidth + 2;
      box.classList.toggle("rr-more", more && box.matches(BOXES));
      box.tabIndex = more ? 0 : -1; // else a browser stops at a box that scrolls by a pixel
      if (more) {
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "wider than the screen, scrolls sideways");
      } else if (box.getAttribute("role") === "group") {
        box.removeAttribute("role");
        box.removeAttribute("aria-label");
      }
    });
  }
  function keep() {
    document.querySelectorAll("figure.rr-explorable svg.rr-picture").forEach(function (svg) {
      var low = svg.getBoundingClientRect().height < 0.5 * innerHeight;
      svg.parentNode.classList.toggle("rr-keeps", low);
    });
  }
  // Not scrollIntoView, after which the first Tab goes to what follows the entry.
  function reveal(entry) {
    var bar = entry.closest(".bd-sidebar-primary");
    var below = entry.getBoundingClientRect().bottom + 32 - bar.getBoundingClientRect().bottom;
    if (below > 0) bar.scrollTop += below;
  }
  window.addEventListener("load", function () {
    mark();
    keep();
    new ResizeObserver(keep).observe(document.querySelector("main"));
    var here = document.querySelectorAll("nav.bd-links li.current > a");
    if (here.length) reveal(here[here.length - 1]);
    // mathematics and widgets come later, and change the height of the page
    new ResizeObserver(mark).observe(document.querySelector("main"));
  });
})();
