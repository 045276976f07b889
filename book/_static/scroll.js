// Boxes that are wider than the screen say so (class rr-more), and can be scrolled by keyboard.
(function () {
  var BOXES =
    "main :is(.rr-figure-box, .pst-scrollable-table-container, .output.text_html," +
    " mjx-container[display=true])";
  function mark() {
    document.querySelectorAll(BOXES).forEach(function (box) {
      var more = box.scrollWidth > box.clientWidth + 2;
      box.classList.toggle("rr-more", more);
      if (more) box.tabIndex = 0;
    });
  }
  window.addEventListener("load", function () {
    mark();
    // mathematics and widgets come later, and change the height of the page
    new ResizeObserver(mark).observe(document.querySelector("main"));
  });
})();
