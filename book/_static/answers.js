// Questions that a page checks: one of several answers, or a number. Under an answer a line says
// whether it is right; the explanation is shown while it is, and goes with the next answer.
(function () {
  function verdict(box) {
    var why = box.querySelector(".rr-why"), line = document.createElement("p");
    line.className = "rr-verdict";
    line.setAttribute("aria-live", "polite");
    box.insertBefore(line, why);
    why.hidden = true;
    return function (right, text) {
      line.textContent = right ? "Right." : text;
      why.hidden = !right;
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

  // Numbers, + - * / ^, roots, brackets and a percent sign; null where it is something else.
  // percent: what "%" divides by, 1 where the answer is asked for in percent.
  function value(text, percent) {
    var at = 0;
    function sum() {
      for (var x = product(); ;) {
        if (take("+")) x += product();
        else if (take("-")) x -= product();
        else return x;
      }
    }
    function product() {
      for (var x = power(); ;) {
        if (take("*")) x *= power();
        else if (take("/")) x /= power();
        else return x;
      }
    }
    function power() {
      if (take("-")) return -power();
      var x = single();
      while (take("%")) x /= percent;
      return take("^") ? Math.pow(x, power()) : x;
    }
    function single() {
      if (take("√") || take("sqrt")) return Math.sqrt(single());
      if (take("(")) {
        var x = sum();
        return take(")") ? x : NaN;
      }
      var digits = /^(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i.exec(text.slice(at));
      if (!digits) return NaN;
      at += digits[0].length;
      return parseFloat(digits[0]);
    }
    function take(sign) {
      if (text.slice(at, at + sign.length) !== sign) return false;
      at += sign.length;
      return true;
    }
    var x = sum();
    return at === text.length && isFinite(x) ? x : null;
  }

  // What a reader may have meant: a comma separates thousands, or is a decimal point.
  function readings(text, unit) {
    var percent = /%|per ?cent/.test(unit) ? 1 : 100;
    var plain = text.trim().toLowerCase().replace(/[−–]/g, "-").replace(/[×·⋅]/g, "*")
      .replace(/÷/g, "/").replace(/\*\*/g, "^").replace(/per ?cent/g, "%").replace(/½/g, "(1/2)")
      .replace(/(\d)[\s\u00a0'’_](?=\d{3}(?!\d))/g, "$1").replace(/\s+(?!\d)|(?<!\d)\s+/g, "");
    var meant = [plain.replace(/,(?=\d{3}(?!\d))/g, ""), plain.replace(/,/g, ".")];
    return meant.map(function (one) { return value(one, percent); }).filter(function (x) {
      return x !== null;
    });
  }

  // A number, right within a share of itself.
  function numbers(box) {
    var right = parseFloat(box.dataset.right), within = parseFloat(box.dataset.within);
    var form = document.createElement("form"), field = document.createElement("input");
    var button = document.createElement("button");
    field.type = "text";
    field.inputMode = "text";  // a fraction needs its slash
    field.autocomplete = "off";
    field.placeholder = "a number";
    field.setAttribute("aria-label", "your answer");
    button.textContent = "Check";
    form.append(field, " " + box.dataset.unit + " ", button);
    box.insertBefore(form, box.querySelector(".rr-why"));
    var say = verdict(box);
    form.addEventListener("submit", function (event) {
      event.preventDefault();
      var given = readings(field.value, box.dataset.unit);
      var good = given.some(function (x) {
        return Math.abs(x - right) <= within * Math.abs(right) + 1e-9 * Math.abs(right) + 1e-12;
      });
      if (given.length) say(good, given[0] > right ? "Not yet: it is less." : "Not yet: it is more.");
      else say(false, "This box reads numbers: 0.5 or 0,5, 1200, 1/5, 64*65/2, 2^10, 20 %.");
    });
    field.addEventListener("input", function () { say(false, ""); });
  }

  window.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll(".rr-choose").forEach(choices);
    document.querySelectorAll(".rr-number").forEach(numbers);
  });
})();
