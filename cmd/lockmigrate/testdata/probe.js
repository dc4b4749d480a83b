// It measures a page as a reader sees it.
(async function () {
  var all = function (q) { return [].slice.call(document.querySelectorAll(q)); };
  var meet = function (a, b) {
    var r = a.getBoundingClientRect(), s = b.getBoundingClientRect();
    return Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 1;
  };
  var cells = all("table.stack tr > *"), overlaps = 0;
  cells.forEach(function (c, i) { cells.slice(i + 1, i + 12).forEach(function (d) { if (meet(c, d)) { overlaps++; } }); });
  var luma = function (color) { var c = color.match(/\d+/g); return +c[0] + +c[1] + +c[2]; };
  var body = getComputedStyle(document.body);
  return {
    Title: document.title, Wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    Cut: all("section, table.stack, table.stack td, table.stack th").filter(function (e) { return e.scrollWidth > e.clientWidth + 1; }).length,
    Overlaps: overlaps, Requests: performance.getEntriesByType("resource").length,
    Dark: luma(body.backgroundColor) < luma(body.color),
    Small: all("p, li, td, th, code").filter(function (e) { return parseFloat(getComputedStyle(e).fontSize) < 11; }).length,
  };
})()
