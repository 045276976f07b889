// A reference to an equation of this page shows it, on hover and on focus; Escape closes it.
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
  function show(event) {
    const over = event.target.closest?.('main a.reference[href^="#equation-"]');
    if (over === link) return;
    hide();
    const id = over && decodeURIComponent(over.hash.slice(1));
    const set = id && document.getElementById(id)?.querySelector("mjx-container");
    if (!set) return;
    link = over;
    box.replaceChildren(set.cloneNode(true));
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
