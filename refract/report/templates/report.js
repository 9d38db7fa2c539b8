(function () {
  "use strict";
  var root = document.documentElement;
  function all(selector, within) { return Array.prototype.slice.call((within || document).querySelectorAll(selector)); }

  var theme = document.getElementById("theme"), modes = ["auto", "light", "dark"], mode = "auto";
  function remember(value) { try { localStorage.setItem("refract-theme", value); } catch (e) { return; } }
  function recall() { try { return localStorage.getItem("refract-theme"); } catch (e) { return null; } }
  function show(next) {
    mode = modes.indexOf(next) < 0 ? "auto" : next;
    if (mode === "auto") { root.removeAttribute("data-theme"); } else { root.setAttribute("data-theme", mode); }
    theme.querySelector("span").textContent = mode;
  }
  show(recall());
  theme.hidden = false;
  theme.addEventListener("click", function () {
    show(modes[(modes.indexOf(mode) + 1) % 3]);
    remember(mode);
  });
  all(".keys").forEach(function (hint) { hint.hidden = false; });

  all(".filters").forEach(function (bar) {
    var prompts = all(".prompt", bar.parentNode), selects = all("select", bar), button = bar.querySelector("[data-open]");
    function chosen(name) {
      return selects.filter(function (s) { return s.dataset.filter === name; }).map(function (s) { return s.value; })[0] || "";
    }
    function apply() {
      var kind = chosen("kind"), category = chosen("category"), flag = chosen("flag"), count = 0;
      prompts.forEach(function (p) {
        var fits = (!kind || p.dataset.kind === kind || (kind === "different" && p.dataset.kind !== "same")) &&
          (!category || p.dataset.category === category) &&
          (!flag || (p.dataset.flags || "").split("|").indexOf(flag) >= 0);
        p.hidden = !fits;
        count += fits ? 1 : 0;
      });
      bar.querySelector("output").textContent = count + " shown";
    }
    selects.forEach(function (s) { s.addEventListener("change", apply); });
    button.addEventListener("click", function () {
      var open = button.textContent === "Open all";
      prompts.forEach(function (p) { if (!p.hidden) { p.open = open; } });
      button.textContent = open ? "Close all" : "Open all";
    });
    bar.hidden = false;
    apply();
  });

  function reveal() {
    var id;
    try { id = decodeURIComponent(location.hash.slice(1)); } catch (e) { return; }
    var found = id && document.getElementById(id);
    if (!found) { return; }
    found.hidden = false;
    for (var at = found; at; at = at.parentElement) { if (at.tagName === "DETAILS") { at.open = true; } }
    found.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  reveal();
  all(".prompt").forEach(function (p) {
    p.addEventListener("toggle", function () {
      if (p.open && p.contains(document.activeElement)) { history.replaceState(null, "", "#" + encodeURIComponent(p.id)); }
    });
  });

  function visible(p) { return !p.hidden && p.parentNode.parentNode.open; }
  function move(by) {
    var current = document.activeElement && document.activeElement.closest(".prompt"), list = all(".prompt").filter(visible);
    if (!list.length) {
      var folded = document.querySelector(".filters");
      if (folded) { folded.closest("details").open = true; }
      list = all(".prompt").filter(visible);
    }
    if (!list.length) { return; }
    var at = list.indexOf(current), next = list[Math.min(list.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    next.firstElementChild.focus();
    next.scrollIntoView({ block: "nearest" });
  }
  var help = document.getElementById("help");
  addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName)) { return; }
    if (event.key === "j") { move(1); }
    else if (event.key === "k") { move(-1); }
    else if (event.key === "f") {
      var near = document.activeElement && document.activeElement.closest(".candidate");
      var select = (near && near.querySelector(".filters select")) || document.querySelector(".filters select");
      if (select) {
        for (var at = select; at; at = at.parentElement) { if (at.tagName === "DETAILS") { at.open = true; } }
        select.focus();
        event.preventDefault();
      }
    } else if (event.key === "?") { if (help.open) { help.close(); } else if (help.showModal) { help.showModal(); } }
  });
  addEventListener("beforeprint", function () { all("details.axis").forEach(function (d) { d.open = true; }); });
})();
