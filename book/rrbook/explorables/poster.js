// Hides the cards of rules that answer one of the questions otherwise.
document.querySelectorAll(".rr-poster:not([data-ready])").forEach(function (poster) {
  var form = poster.querySelector("form"), said = poster.querySelector("[aria-live]");
  var cards = Array.from(poster.querySelectorAll(".rr-rule"));
  poster.setAttribute("data-ready", "");
  form.parentNode.hidden = false;
  function show() {
    var shown = 0;
    cards.forEach(function (card) {
      card.hidden = Array.from(form.querySelectorAll("select")).some(function (asked) {
        return asked.value && card.dataset[asked.name] !== asked.value;
      });
      shown += !card.hidden;
    });
    said.textContent = shown + " of " + cards.length + " rules";
  }
  form.addEventListener("input", show);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.addEventListener("reset", function () { setTimeout(show, 0); });
  show();
});
