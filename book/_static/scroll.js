// Boxes that are wider than the screen say so (class rr-more), and can be scrolled by keyboard.
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
  window.addEventListener("load", function () {
    mark();
    // mathematics and widgets come later, and change the height of the page
    new ResizeObserver(mark).observe(document.querySelector("main"));
  });
})();
