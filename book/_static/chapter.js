// A chapter's folded code appears by one switch, new lines of the growing file are marked, exercises
// open where they run.
(function () {
  function code() {
    var cells = document.querySelectorAll("main div.cell > details.hide");
    var title = document.querySelector("main article h1");
    if (cells.length < 2 || !title) return;
    var button = document.createElement("button");
    button.type = "button";
    button.className = "rr-code-switch";
    function set(on) {
      document.body.classList.toggle("rr-code-hidden", !on);
      cells.forEach(function (cell) { cell.open = on; });
      button.setAttribute("aria-pressed", on);
      button.textContent = (on ? "Hide" : "Show") + " all code of this chapter";
    }
    button.addEventListener("click", function () {
      set(document.body.classList.contains("rr-code-hidden"));
    });
    title.after(button);
    set(false);
  }

  // Lines of rr/small.py that a chapter adds end in this comment.
  function marks() {
    document.querySelectorAll("main .highlight pre span").forEach(function (comment) {
      if (comment.children.length || !/# NEW$/.test(comment.textContent)) return;
      var mark = document.createElement("span");
      mark.className = "rr-new";
      mark.textContent = "# NEW";
      comment.textContent = comment.textContent.replace(/# NEW$/, "");
      comment.append(mark);
    });
  }

  // Beside each exercise that is written in code, the way to where it runs.
  function openers() {
    var colab = document.querySelector("main a[href*='colab.research.google.com']");
    if (!colab) return;
    document.querySelectorAll("main div.cell").forEach(function (cell) {
      if (!/print\(check\("ex-/.test(cell.textContent)) return;
      var link = document.createElement("a");
      link.className = "rr-opener";
      link.href = colab.href;
      link.textContent = "Open in Colab to write and check it";
      cell.after(link);
    });
  }

  window.addEventListener("DOMContentLoaded", function () {
    code();
    openers();
    marks();
  });
})();
