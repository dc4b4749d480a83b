"use strict";
// localTime writes a moment as "14:03:07 CET": the reader's clock, and its zone.
function localTime(date, day) {
  const o = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" };
  if (day) Object.assign(o, { year: "numeric", month: "short", day: "numeric" });
  return new Date(date).toLocaleString("en-GB", o);
}

// lockmigrateChart draws lines in a box, or redraws them. what:
//   x       numbers; with time: true, seconds since 1970
//   series  [{name, y, color}]: y as long as x, null where there is no value; color a variable of the style sheet
//           without its dashes ("legacy"), drawn as CSS says at this moment, light or dark
//   unit    of y, written on the axis; height in CSS pixels (180); xlabel; steps: true for a staircase
function lockmigrateChart(box, what) {
  const data = [what.x, ...what.series.map((s) => s.y)];
  if (box.plot) {
    box.plot.setData(data);
    return box.plot;
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const two = (n) => String(n).padStart(2, "0");
  const clock = (u, ticks, axis, space, step) => ticks.map((t) => {
    const d = new Date(t * 1000), minute = two(d.getHours()) + ":" + two(d.getMinutes());
    return step >= 86400 ? two(d.getMonth() + 1) + "-" + two(d.getDate()) : step >= 60 ? minute : minute + ":" + two(d.getSeconds());
  });
  const whole = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800]; // seconds from tick to tick
  const zone = () => localTime(Date.now()).split(" ").slice(1).join(" ");
  const axis = { stroke: () => css("dim"), grid: { stroke: () => css("line"), width: 1 }, ticks: { stroke: () => css("line"), width: 1 }, font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif" };
  const size = () => ({ width: Math.max(box.clientWidth, 200), height: what.height || 180 });
  const number = (v) => v === null || v === undefined ? "–" : Math.abs(v) >= 100 ? Math.round(v).toLocaleString("en-US") : String(+v.toFixed(Math.abs(v) < 10 ? 2 : 1));
  // A value between two gaps has no line: it is drawn as a point.
  const alone = (u, i) => u.data[i].map((v, at) => v != null && u.data[i][at - 1] == null && u.data[i][at + 1] == null ? at : -1).filter((at) => at >= 0);
  const plot = new uPlot({
    ...size(),
    // While nobody points at the chart, the legend shows the latest values.
    hooks: { draw: [(u) => queueMicrotask(() => { if (what.time && u.cursor.idx == null) u.setLegend({ idx: u.data[0].length - 1 }, false); })] },
    scales: { x: { time: !!what.time }, y: { range: (u, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)] } },
    cursor: { y: false, drag: { x: false, y: false } },
    axes: [
      { ...axis, space: 70, size: 30, labelSize: 20, label: what.time ? "time, " + zone() : what.xlabel, ...(what.time ? { values: clock, incrs: whole } : {}) },
      { ...axis, size: 46, labelSize: 16, label: what.unit, values: (u, ticks) => ticks.map((t) => t.toLocaleString("en-US")) },
    ],
    series: [
      { label: what.time ? "at" : what.xlabel || "x", value: (u, v) => v === null ? "–" : what.time ? localTime(v * 1000) : number(v) },
      ...what.series.map((s) => ({
        label: s.name, stroke: () => css(s.color), width: 1.8, spanGaps: false, points: { size: 5, filter: alone },
        value: (u, v) => number(v), ...(what.steps ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      })),
    ],
  }, data, box);
  box.plot = plot;
  new ResizeObserver(() => plot.setSize(size())).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false));
  return plot;
}
