(function () {
  "use strict";
  // Copying, and arrow keys between the cells of a map. Everything else works without a script.
  document.querySelectorAll("button[data-copy]").forEach(function (b) {
    b.hidden = false;
    b.addEventListener("click", function () {
      var text = b.dataset.copy, done = function () { b.textContent = "Copied"; };
      if (navigator.clipboard) { navigator.clipboard.writeText(text).then(done, fallback); } else { fallback(); }
      function fallback() {
        var t = document.createElement("textarea");
        t.value = text; document.body.appendChild(t); t.select(); document.execCommand("copy"); t.remove(); done();
      }
    });
  });
  function mark() {
    document.querySelectorAll(".map a.here").forEach(function (a) { a.classList.remove("here"); });
    if (location.hash) {
      document.querySelectorAll('.map a[href="' + CSS.escape(location.hash).replace(/\\/g, "\\\\") + '"]').forEach(function (a) { a.classList.add("here"); });
      var card = document.getElementById(location.hash.slice(1));
      if (card && card.classList.contains("card")) { card.focus({ preventScroll: true }); }
    }
  }
  window.addEventListener("hashchange", mark);
  mark();
  document.querySelectorAll(".map").forEach(function (map) {
    var cells = Array.prototype.slice.call(map.querySelectorAll("a"));
    map.addEventListener("keydown", function (e) {
      var move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
      var from = cells.indexOf(document.activeElement);
      if (!move || from < 0) { return; }
      var at = cells[from].firstElementChild, x = +at.getAttribute("x"), y = +at.getAttribute("y"), best = null, least = Infinity;
      cells.forEach(function (c) {
        var dx = c.firstElementChild.getAttribute("x") - x, dy = c.firstElementChild.getAttribute("y") - y;
        var along = dx * move[0] + dy * move[1], across = Math.abs(dx * move[1]) + Math.abs(dy * move[0]);
        if (along > 0 && along + 3 * across < least) { least = along + 3 * across; best = c; }
      });
      if (best) { best.focus(); e.preventDefault(); }
    });
  });
})();
