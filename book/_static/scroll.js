// Boxes that are wider than the screen say so (class rr-more), and can be scrolled by keyboard.
(function () {
  var BOXES =
    "main :is(.rr-figure-box, .pst-scrollable-table-container, .output.text_html," +
    " mjx-container[display=true])";
  var IN_A_LINE = "main span.math"; // whose page shows a scroll bar, and no words below it
  function mark() {
    document.querySelectorAll([BOXES, IN_A_LINE]).forEach(function (box) {
      var more = box.scrollWidth > box.clientWidth + 2;
      box.classList.toggle("rr-more", more && box.matches(BOXES));
      if (!more) return;
      box.tabIndex = 0;
      if (!box.hasAttribute("role")) box.setAttribute("role", "group");
      box.setAttribute("aria-label", "wider than the screen, scrolls sideways");
    });
  }
  window.addEventListener("load", function () {
    mark();
    // mathematics and widgets come later, and change the height of the page
    new ResizeObserver(mark).observe(document.querySelector("main"));
  });
})();
