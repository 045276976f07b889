// Hides the cards of rules that answer one of the questions otherwise.
document.querySelectorAll(".rr-poster:not([data-ready])").forEach(function (poster) {
  var form = poster.querySelector("form"), said = poster.querySelector("[aria-live]");
  var cards = Array.from(poster.querySelectorAll(".rr-rule"));
  poster.setAttribute("data-ready", "");
  form.parentNode.hidden = false;
  var selects = Array.from(form.querySelectorAll("select"));
  function show() {
    var shown = 0;
    cards.forEach(function (card) {
      card.hidden = selects.some(function (asked) {
        return asked.value && card.dataset[asked.name] !== asked.value;
      });
      shown += !card.hidden;
    });
    said.textContent = shown + " of " + cards.length + " rules";
    if (location.protocol === "file:") return;  // whose address a script may not change
    var address = new URL(location.href);
    selects.forEach(function (asked) {
      address.searchParams.delete(asked.name);
      if (asked.value) address.searchParams.set(asked.name, asked.value);
    });
    history.replaceState(history.state, "", address);
  }
  // the filter stands in the address, so that it can be shared
  new URLSearchParams(location.search).forEach(function (value, name) {
    selects.forEach(function (asked) {
      if (asked.name === name && asked.querySelector('[value="' + CSS.escape(value) + '"]')) asked.value = value;
    });
  });
  form.addEventListener("input", show);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.addEventListener("reset", function () { setTimeout(show, 0); });
  show();
});
