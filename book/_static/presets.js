// Buttons in the text that set an explorable (role preset), and one in it that sets it back.
(function () {
  function redraw(form) {
    form.dispatchEvent(new Event("input"));
  }
  function set(figure, settings) {
    var form = figure.querySelector("form"), texts = form.querySelectorAll("input[type=text]");
    var typed = Array.from(texts, function (field) { return field.value; });
    form.reset();
    texts.forEach(function (field, i) { field.value = typed[i]; });  // the reader's own words stay
    new URLSearchParams(settings).forEach(function (value, name) {
      var field = form.elements[name];
      if (field.type === "checkbox") field.checked = value === "on";
      else field.value = value;
    });
    redraw(form);
    figure.scrollIntoView({block: "nearest"});
  }
  document.addEventListener("click", function (event) {
    var button = event.target.closest("button.rr-preset");
    if (!button) return;
    var name = button.dataset.explorable;
    set(document.querySelector('figure[data-explorable="' + name + '"]'), button.dataset.set);
  });
  window.addEventListener("load", function () {
    document.querySelectorAll("figure.rr-explorable form").forEach(function (form) {
      var button = document.createElement("button");
      button.type = "reset";
      button.textContent = "reset";
      form.append(button);
      form.addEventListener("reset", function () { setTimeout(redraw, 0, form); });
    });
  });
})();
