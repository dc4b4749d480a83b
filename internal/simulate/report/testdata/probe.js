// It clicks, moves by keys, measures, and says what it saw.
(async function () {
  var say = {}, wait = function () { return new Promise(function (done) { setTimeout(done, 100); }); };
  var shown = function () { return [].filter.call(document.querySelectorAll(".card"), function (c) { return c.offsetParent !== null; }); };
  var names = function () { return shown().map(function (c) { return c.id; }).join(","); };
  say.Before = names();
  var cells = document.querySelectorAll(".map a"), last = cells[cells.length - 1];
  last.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  await wait();
  say.Target = last.getAttribute("href");
  say.After = "#" + names();
  say.Copy = document.querySelectorAll("button[data-copy]:not([hidden])").length;
  cells[0].focus();
  cells[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  say.Moved = document.activeElement === cells[1];
  say.Requests = performance.getEntriesByType("resource").length;
  say.Wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  document.querySelectorAll("details").forEach(function (d) { d.open = true; });
  say.Cut = [].filter.call(document.querySelectorAll(".scroll, .replay"), function (e) { return e.scrollWidth > e.clientWidth + 1; }).length;
  var meet = function (all) {
    var n = 0;
    all.forEach(function (a, i) { all.slice(i + 1).forEach(function (b) {
      if (a.contains(b) || b.contains(a)) { return; }
      var r = a.getBoundingClientRect(), s = b.getBoundingClientRect();
      if (Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 1) { n++; }
    }); });
    return n;
  };
  var seen = function (e) { var r = e.getBoundingClientRect(); return r.height > 0 && r.width > 0; };
  say.Overlaps = meet([].filter.call(document.querySelectorAll("body > section > *, body > header, article.scheme figure"), seen));
  say.Clash = meet([].filter.call(document.querySelectorAll(".card .run text.nm, .card .run text.sc, .card .run text.ax"), seen));
  say.Out = 0;
  document.querySelectorAll(".map text").forEach(function (t) {
    var r = t.getBoundingClientRect(), s = t.ownerSVGElement.getBoundingClientRect();
    if (r.left < s.left - 1 || r.right > s.right + 1) { say.Out++; }
  });
  say.Labels = meet([].filter.call(document.querySelector(".map").querySelectorAll("text"), seen));
  say.Pictures = [].filter.call(document.querySelectorAll(".card .run"), seen).length;
  return say;
})()
