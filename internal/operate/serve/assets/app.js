"use strict";
// Everything from the server is put on the page as text, never as markup: keys and names may hold anything.
const $ = (id) => document.getElementById(id);

function el(tag, text, cls) {
  const e = document.createElement(tag);
  if (text !== undefined && text !== null) e.textContent = shown(String(text));
  if (cls) e.className = cls;
  if (cls === "mono") e.title = e.textContent; // it may be cut
  return e;
}

// shown makes control and bidirectional characters visible.
function shown(s) {
  return s.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufffd]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function span(ms) {
  if (ms === null || ms === undefined) return "–";
  const a = Math.abs(ms);
  if (a >= 1000) return (ms / 1000).toFixed(a < 10000 ? 2 : 1) + " s";
  return (a > 0 && a < 10 ? ms.toFixed(1) : Math.round(ms)) + " ms";
}

function fill(id, heads, rows, empty) {
  const table = $(id);
  table.replaceChildren();
  if (!rows.length) {
    const tr = el("tr");
    tr.append(el("td", empty, "empty"));
    table.append(tr);
    return;
  }
  const head = el("tr");
  for (const [name, cls] of heads) head.append(el("th", name, cls));
  const thead = el("thead");
  thead.append(head);
  const body = el("tbody");
  for (const cells of rows) {
    const tr = el("tr");
    cells.forEach((c, i) => { c.dataset.label = heads[i][0]; tr.append(c); });
    body.append(tr);
  }
  table.append(thead, body);
}

// moments are those of the traffic while this page is open, half an hour at most; /metrics is for longer.
const moments = [];
let before = null;

// remember adds a moment: calls in a second, and acquisitions in a second that MONITOR ran, since the last one. The server's counters are read each 2 s.
function remember(s) {
  const seconds = before ? (Date.parse(s.now) - Date.parse(before.now)) / 1000 : 0;
  if (before && seconds < 4) return;
  const each = (now, was, seconds) => Object.fromEntries(Object.entries(now).map(([k, n]) => [k, Math.max(0, n - (was[k] || 0)) / seconds]));
  const watched = before ? s.monitored_seconds - before.monitored_seconds : 0;
  if (before) moments.push({ at: s.now, commands: each(s.totals, before.totals, seconds), kinds: watched > 0 ? each(s.acquired, before.acquired, watched) : null });
  if (moments.length > 450) moments.shift();
  before = s;
}

// chart draws what happened in a second over time; a moment without a value leaves a gap.
function chart(id, points, names, value, color) {
  lockmigrateChart($(id), {
    time: true, unit: "a second", x: points.map((p) => Date.parse(p.at) / 1000),
    series: names.map((n) => ({ name: n, color: color(n), y: points.map((p) => value(p, n) ?? null) })),
  });
}

function build(b) {
  if (!b || !b.program) return "-";
  const library = b.library && b.library !== b.version ? ` (library ${b.library})` : "";
  return b.program.split("/").pop() + (b.version ? "@" + b.version : "") + library;
}

function stage(n) {
  $("stage-card").hidden = !n;
  if (!n) return;
  $("ns").textContent = shown(n.namespace);
  const at = ["legacy", "bridge", "modern"].indexOf(n.stage);
  [...$("stages").children].forEach((li, i) => { li.className = i === at ? "now s" + i : ""; });
  $("since").textContent = `epoch ${n.epoch}, since ${localTime(n.since, true)}`;
  const late = n.members.map((m) => m.lease_left_ms < 0 ? " is silent" : m.misfit ? " cannot run this namespace: " + m.misfit : n.changing_over.includes(m.id) ? " is still on the previous epoch" : "")
    .map((why, i) => why && n.members[i].id + why).filter((text) => text);
  $("blocked").hidden = !late.length;
  $("blocked").textContent = shown(late.join("; "));
  fill("members", [["member"], ["host"], ["build"], ["stage"], ["epoch", "num"], ["seen", "num"], ["skew", "num"]], n.members.map((m) => [
    el("td", m.id, "mono"), el("td", m.host), el("td", build(m.build), m.build ? "" : "dim"), el("td", m.lease_left_ms < 0 ? "silent" : m.stage, m.lease_left_ms < 0 ? "bad" : "kind " + m.stage),
    el("td", m.epoch, "num"), el("td", span(m.seen_ms_ago) + " ago", "num"), el("td", span(m.skew_ms), "num")]), "no member has reported");
}

function skewCell(c, worst) {
  const td = el("td", undefined, "num");
  if (c.skew_ms === null) { td.textContent = "–"; return td; }
  td.append(el("span", (c.skew_ms > 0 ? "+" : "") + span(c.skew_ms) + " ±" + span(Math.max(1, c.skew_error_ms)) + (c.lease_doubt ? " ?" : "") + " "));
  const bar = el("span", undefined, "bar"), mark = el("i");
  const w = Math.min(50, 50 * Math.abs(c.skew_ms) / Math.max(worst, 1));
  mark.style.width = Math.max(w, 0.5) + "%";
  mark.style.left = (c.skew_ms < 0 ? 50 - w : 50) + "%";
  bar.append(mark);
  td.append(bar);
  return td;
}

function lease(c) {
  return c.lease_varies ? span(c.lease_least_ms) + " to " + span(c.lease_most_ms) : span(c.lease_ms) + (c.lease_doubt ? " ?" : "");
}

function clients(list) {
  let worst = 0;
  for (const c of list) if (c.skew_ms !== null) worst = Math.max(worst, Math.abs(c.skew_ms));
  $("t-skew").textContent = list.some((c) => c.skew_ms !== null) ? span(worst) : "–";
  const order = { legacy: 0, member: 1, bridge: 2, sidecar: 3, modern: 4, redisson: 5, unknown: 6 };
  list.sort((a, b) => order[a.kind] - order[b.kind] || b.acquired - a.acquired);
  fill("clients", [["client"], ["kind"], ["dialect"], ["skew", "num"], ["lease", "num"], ["poll", "num"], ["acquired", "num"], ["hold p50", "num"], ["wait p50", "num"], ["keys"]],
    list.map((c) => [
      el("td", c.addr + (c.name && c.name !== c.addr ? " " + c.name : ""), "mono"), el("td", c.kind, "kind " + c.kind), el("td", c.dialect + (c.dialect_or ? "? or " + c.dialect_or : "")),
      skewCell(c, worst), el("td", lease(c), "num"), el("td", span(c.poll_ms), "num"), el("td", c.acquired, "num"),
      el("td", span(c.hold_p50_ms), "num"), el("td", span(c.wait_p50_ms), "num"), el("td", (c.keys || []).slice(0, 3).join(" ") + ((c.databases || []).some((n) => n) ? " in database " + c.databases.join(", ") : ""), "mono")]),
    "no client has used a lock while MONITOR ran");
}

function show(s) {
  $("server").textContent = shown(s.server);
  $("monitor").textContent = "MONITOR " + shown(s.monitor);
  $("monitor").className = "pill" + (s.monitor === "on" ? " good" : s.monitor.startsWith("stopped") ? " bad" : "");
  $("fresh").textContent = s.error ? shown(s.error) : "live " + localTime(s.now);
  $("fresh").className = "pill " + (s.error ? "bad" : "good");
  stage(s.namespace);
  remember(s);
  const last = moments.length ? moments[moments.length - 1].commands : null;
  $("t-legacy").textContent = last ? ((last.setnx || 0) + (last.getset || 0)).toFixed(1) : "–";
  $("t-overlaps").textContent = s.monitored_seconds ? s.overlaps : "–"; // without MONITOR nobody has looked
  $("t-overlaps").className = s.overlaps ? "bad" : s.monitored_seconds ? "good" : "";
  const idle = s.quiet_seconds ?? null; // null: MONITOR has not run
  $("t-quiet").textContent = idle === null ? "–" : idle < 2 ? "now" : Math.round(idle) + " s ago";
  $("t-quiet").className = idle === null ? "" : idle > 60 ? "warn" : "good";
  $("quiet").hidden = idle === null || idle <= 60;
  $("quiet").textContent = `nobody has acquired for ${Math.round(idle)} s of the time that MONITOR ran`;
  const hazards = Object.values(s.hazards).reduce((a, b) => a + b, 0);
  $("t-hazards").textContent = s.monitored_seconds ? hazards : "–";
  $("t-hazards").className = hazards ? "bad" : s.monitored_seconds ? "good" : "";
  $("t-ghosts").textContent = s.locks.by_state ? (s.locks.by_state.ghost || 0) : "–";
  chart("chart-commands", moments, ["setnx", "getset", "set", "del", "evalsha"], (p, n) => p.commands[n],
    (n) => ({ setnx: "legacy", getset: "redisson", set: "modern", del: "unknown", evalsha: "bridge" })[n]);
  chart("chart-kinds", moments, ["legacy", "member", "bridge", "sidecar", "modern", "redisson"], (p, n) => p.kinds ? (p.kinds[n] || 0) : null, (n) => n);
  clients(s.clients);
  fill("events", [["at"], ["what"], ["key"], ["by"], ["against"], ["note"]], [...s.events].sort((a, b) => Date.parse(b.at) - Date.parse(a.at)).slice(0, 25).map((e) => [
    el("td", localTime(e.at)), el("td", e.hazard, "bad"), el("td", e.key, "mono"),
    el("td", e.by ? e.by.addr + " " + (e.by.name || "") : "", "mono"), el("td", e.victim ? e.victim.addr + " " + (e.victim.name || "") : "", "mono"), el("td", e.note || "")]),
    "none while MONITOR ran");
  const formats = Object.entries(s.locks.by_format || {}).map(([f, n]) => `${n} ${f}`).join(", ");
  $("locks").textContent = s.locks.scanned ? `${s.locks.scanned} keys looked at ${localTime(s.locks.at)}: ${formats || "no locks"}` : "no census yet";
  if (s.locks.unread) $("locks").textContent += `; ${s.locks.unread} keys could not be read`;
  for (const why of [...(s.locks.lacks || []), ...(s.refused || [])]) $("locks").textContent += `; ${why}`;
  if (s.locks.error) $("locks").textContent += `; the last look failed: ${s.locks.error}`;
}

async function tick() {
  try {
    const answer = await fetch("/api/state", { cache: "no-store" });
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    show(await answer.json());
  } catch (e) {
    $("fresh").textContent = "no answer: " + e.message;
    $("fresh").className = "pill bad";
  }
  setTimeout(tick, 1000);
}
tick();
