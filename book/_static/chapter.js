// A chapter's folded code appears by one switch, questions are answered on the page, exercises open
// where they run.
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

  // Under an answer a line says whether it is right; the explanation is shown once it is.
  function verdict(box) {
    var why = box.querySelector(".rr-why"), line = document.createElement("p");
    line.className = "rr-verdict";
    line.setAttribute("aria-live", "polite");
    box.insertBefore(line, why);
    why.hidden = true;
    return function (right, text) {
      line.textContent = right ? "Right." : text;
      if (right) why.hidden = false;
    };
  }

  // One of several answers.
  function choices(box) {
    var items = box.querySelectorAll(".rr-options > li"), say = verdict(box);
    items.forEach(function (item, place) {
      var button = document.createElement("button"), words = item.querySelector("p") || item;
      button.type = "button";
      // mathematics becomes a picture without words: alone, it needs a name
      var rest = words.cloneNode(true);
      rest.querySelectorAll(".math").forEach(function (node) { node.remove(); });
      if (!rest.textContent.trim())
        button.setAttribute("aria-label", "formula " + (place + 1));
      button.append.apply(button, Array.from(words.childNodes));
      item.textContent = "";
      item.append(button);
      button.addEventListener("click", function () {
        var right = item.classList.contains("rr-right");
        items.forEach(function (other) { other.classList.remove("rr-chosen"); });
        item.classList.add("rr-chosen");
        say(right, "Not this one.");
      });
    });
  }

  // A number, right within a share of itself.
  function numbers(box) {
    var right = parseFloat(box.dataset.right), within = parseFloat(box.dataset.within);
    var form = document.createElement("form"), field = document.createElement("input");
    var button = document.createElement("button");
    field.type = "text";
    field.inputMode = "decimal";
    field.setAttribute("aria-label", "your answer");
    button.textContent = "Check";
    form.append(field, " " + box.dataset.unit + " ", button);
    box.insertBefore(form, box.querySelector(".rr-why"));
    var say = verdict(box);
    form.addEventListener("submit", function (event) {
      event.preventDefault();
      var given = parseFloat(field.value.replace(/[,\s](?=\d{3}\b)/g, "").replace("−", "-"));
      var good = Math.abs(given - right) <= within * Math.abs(right) + 1e-12;
      if (isNaN(given)) say(false, "Write a number, such as 0.5 or 1200.");
      else say(good, given > right ? "Not yet: it is less." : "Not yet: it is more.");
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
    document.querySelectorAll(".rr-choose").forEach(choices);
    document.querySelectorAll(".rr-number").forEach(numbers);
  });
})();
