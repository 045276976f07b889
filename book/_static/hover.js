// A reference to an equation of this page shows it, a word of the glossary its meaning: on hover,
// on focus and on touch; Escape closes it.
(function () {
  const box = document.createElement("div");
  box.className = "rr-hover";
  box.id = "rr-hover";
  box.setAttribute("role", "tooltip");
  let link = null;
  function hide() {
    link?.removeAttribute("aria-describedby");
    link = null;
    box.remove();
  }
  // The meaning stands in the title, which a browser shows late and a phone never.
  function meaning(over) {
    if (over.title) {
      over.dataset.meaning = over.title;
      over.removeAttribute("title");
    }
    return over.dataset.meaning;
  }
  function show(event) {
    const over = event.target.closest?.(
      'main a.reference[href^="#equation-"], main a[href*="glossary.html#term-"]');
    if (over === link) return;
    hide();
    const words = over && meaning(over);
    const id = over && decodeURIComponent(over.hash.slice(1));
    const set = !words && id && document.getElementById(id)?.querySelector("mjx-container");
    if (!words && !set) return;
    link = over;
    box.replaceChildren(words || set.cloneNode(true));
    box.querySelector("[id]")?.removeAttribute("id");
    document.body.append(box);
    link.setAttribute("aria-describedby", box.id);
    const place = link.getBoundingClientRect();
    const left = Math.min(place.left, innerWidth - box.offsetWidth - 8);
    box.style.left = Math.max(8, left) + scrollX + "px";
    box.style.top = place.bottom + scrollY + 6 + "px";
  }
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
