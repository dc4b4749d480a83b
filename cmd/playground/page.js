(function () {
  "use strict";
  const $ = function (id) { return document.getElementById(id); };
  const seconds = function (n) { return (n / 1000) + " s"; };
  const number = String;
  // The sliders: name, English, Chinese, least, most, step, how it is written.
  const sliders = [
    ["clients", "clients", "客户端数", 2, 10, 1, number],
    ["skew", "one clock is ahead (or behind) by", "一个时钟快(或慢)", -12000, 12000, 500, seconds],
    ["lease", "lease", "租约", 2000, 20000, 1000, seconds],
    ["hold", "the work takes", "持有时间", 500, 12000, 500, seconds],
    ["poll", "poll of those who wait", "轮询间隔", 20, 1000, 20, function (n) { return n + " ms"; }],
    ["pause", "processes stop for up to", "进程停顿最长", 0, 20000, 1000, seconds],
    ["failover", "failovers, to a replica that is behind by", "故障转移,副本落后", 0, 3000, 100, function (n) { return n === 0 ? "0" : n + " ms"; }],
  ];
  const schemes = [
    ["legacy", "stage legacy: SETNX, expiry as value, GETSET", "阶段 legacy:SETNX,值为到期时间,GETSET"],
    ["mixed-25", "stage bridge: a quarter bridge, the others old clients", "阶段 bridge:四分之一 bridge,其余旧客户端"],
    ["mixed-50", "stage bridge: half old clients, half bridge", "阶段 bridge:一半旧客户端,一半 bridge"],
    ["mixed-75", "stage bridge: a quarter old clients, the others bridge", "阶段 bridge:四分之一旧客户端,其余 bridge"],
    ["bridge", "stage bridge: nobody old is left", "阶段 bridge:已没有旧客户端"],
    ["modern", "stage modern: token and TTL", "阶段 modern:令牌加 TTL"],
  ];
  const now = { scheme: "legacy", clients: 4, skew: 9000, lease: 10000, hold: 2000, poll: 240, pause: 0, failover: 0 };
  let language = "en", played = null;

  const causes = {
    skew: ["A live lease looked expired: old clients compare the time on the key with their own clock, and the clocks disagree.",
      "未到期的租约看起来已到期:旧客户端把键上的时间与自己的时钟比较,而时钟并不一致。"],
    overrun: ["The first holder was still at work after its lease was over, and nothing told it.", "第一个持有者的租约已到期,它却还在工作,而且没有人告诉它。"],
    clobber: ["A client that lost the race had overwritten the holder's expiry with its own GETSET.", "一个竞争失败的客户端用 GETSET 覆盖了持有者的到期时间。"],
    "stale delete": ["A holder whose lock had gone to another deleted the key blindly, and with it the other's lock.", "一个已失去锁的持有者盲目删除了键,也就删掉了别人的锁。"],
    crash: ["Two clients took over the lock of one that had crashed.", "两个客户端同时接管了崩溃者的锁。"],
    failover: ["The replica that took over had never heard of the lock. No lock on one server survives that; fencing tokens do.",
      "接管的副本从未收到这把锁。单台服务器上的锁都无法避免;只有 fencing token 可以。"],
  };
  const escape = function (text) { const d = document.createElement("div"); d.textContent = text; return d.innerHTML; };
  const both = function (en, zh) { return '<span class="en">' + en + '</span><span class="zh">' + zh + "</span>"; };

  function clock(h) {
    if (h.clock === 0) { return both("its clock is true", "时钟准确"); }
    const by = seconds(Math.abs(h.clock));
    return h.clock > 0 ? both("its clock is " + by + " ahead", "时钟快 " + by) : both("its clock is " + by + " behind", "时钟慢 " + by);
  }
  function lease(h) {
    const n = seconds(Math.abs(h.left));
    return h.left > 0 ? both("its lease has " + n + " left", "其租约还剩 " + n) : both("its lease has been over for " + n, "其租约已过期 " + n);
  }
  function say() {
    const box = $("said"), b = played.break;
    box.className = b ? "broken" : "";
    document.querySelectorAll(".ofrun").forEach(function (e) { e.hidden = !played.lanes; });
    if (played.error) {
      box.innerHTML = "<p>" + both("These settings make no fleet: ", "这些设置无法组成集群:") + escape(played.error) + "</p>";
      return;
    }
    if (!b) {
      box.innerHTML = '<p class="moment">' + both("Never two at once in " + played.turns + " turns: " + played.runs + " runs, " + played.seconds + " s of the fleet's time.",
          played.turns + " 次争锁中从未出现两个持有者:" + played.runs + " 次运行,集群时间 " + played.seconds + " 秒。") + "</p><p>" +
        both("That is what was played, and no proof: <code>lockmigrate explore</code> proves.", "这只是所运行的结果,不是证明:证明用 <code>lockmigrate explore</code>。") + "</p>";
      return;
    }
    const second = escape(b.second.name), first = escape(b.inside.name);
    box.innerHTML = '<p class="moment">' + both("At " + seconds(b.at) + " " + second + " comes in beside " + first + ".", "在 " + seconds(b.at) + ", " + second + " 进入,而 " + first + " 还在里面。") + "</p><p>" +
      first + ": " + lease(b.inside) + ", " + clock(b.inside) + ". " + second + ": " + clock(b.second) + ".</p><p>" +
      both("Why? ", "原因:") + both.apply(null, causes[b.cause] || [b.cause, b.cause]) + "</p>";
  }

  // The picture: time from left to right, a lane for each client, the key at the bottom. Every number in it is a whole pixel.
  const narrow = matchMedia("(max-width: 46rem)");
  function drawPicture() {
    const width = narrow.matches ? 340 : 860, left = narrow.matches ? 92 : 118, times = narrow.matches ? 3 : 7, lane = 58, axis = 24;
    const bottom = axis + played.lanes.length * lane, svg = [], word = function (en, zh) { return language === "zh" ? zh : en; };
    const x = function (t) { return left + Math.round(Math.min(Math.max(t / played.end, 0), 1) * (width - left - 12)); };
    const text = function (kind, at, y, what) { svg.push('<text class="' + kind + '" x="' + at + '" y="' + y + '">' + escape(what) + "</text>"); };
    const rect = function (kind, span, y, height, least, title) {
      svg.push('<rect class="' + kind + '" x="' + x(span[0]) + '" y="' + y + '" width="' + Math.max(x(span[1]) - x(span[0]), least) + '" height="' + height + '">' + (title ? "<title>" + escape(title) + "</title>" : "") + "</rect>");
    };
    const path = function (kind, d) { svg.push('<path class="' + kind + '" d="' + d + '"/>'); };
    const unit = Math.pow(10, Math.floor(Math.log10(played.end / times))), step = unit * [1, 2, 5, 10].find(function (n) { return n * unit * times >= played.end; });
    for (let t = 0; t <= played.end; t += step) {
      path("gr", "M" + x(t) + " " + (axis - 4) + "V" + (bottom + 38));
      text("ax", x(t), 15, seconds(t));
    }
    (played.both || []).forEach(function (s) { rect("ov", s, axis, bottom - axis, 3); });
    played.lanes.forEach(function (l, i) { // what it believes is a bar, what its lease truly is a line under it, its clock's error one above
      const top = axis + i * lane, all = function (spans, draw) { (spans || []).forEach(draw); };
      const off = l.clock[l.clock.length - 1][1], by = seconds(Math.abs(off));
      text("nm", 4, top + 24, l.name);
      text("sc", 4, top + 39, off === 0 ? word("clock true", "时钟准确") : off > 0 ? word("clock " + by + " ahead", "时钟快 " + by) : word("clock " + by + " behind", "时钟慢 " + by));
      path("ln", "M" + left + " " + (top + 36) + "H" + (width - 12));
      const most = Math.max.apply(null, l.clock.map(function (c) { return Math.abs(c[1]); }));
      if (most > 0) {
        const y = function (c) { return top + 14 - Math.trunc(9 * c / most); };
        path("ze", "M" + left + " " + y(0) + "H" + (width - 12));
        path("er", "M" + left + " " + y(l.clock[0][1]) + l.clock.slice(1).map(function (c) { return "H" + x(c[0]) + "V" + y(c[1]); }).join("") + "H" + (width - 12));
      }
      all(l.waits, function (s) { rect("wt", s, top + 33, 6, 1); });
      all(l.holds, function (s) { rect("hd c" + i % 6, s, top + 27, 18, 2); });
      all(l.leases, function (s) { path("ls", "M" + x(s[0]) + " " + (top + 50) + "H" + Math.max(x(s[1]), x(s[0]) + 1) + (s[1] <= played.end ? "m0 -4v8" : "")); });
      all(l.pauses, function (s) { rect("ps", s, top + 27, 18, 2); });
      if (l.crash) { text("cr", x(l.crash) - 5, top + 41, "✕"); }
    });
    text("nm", 4, bottom + 22, word("the key", "键"));
    (played.key || []).forEach(function (v) {
      const w = x(v.span[1]) - x(v.span[0]), room = Math.floor((w - 8) / 7);
      if (w < 1) { return; }
      rect("vl " + (v.by < 0 ? "old" : "c" + v.by % 6), v.span, bottom + 8, 20, 1, v.text);
      if (room >= 5 || room >= v.text.length) { text("vt", x(v.span[0]) + 4, bottom + 22, room >= v.text.length ? v.text : "…" + v.text.slice(1 - room)); } // the end of a number is what differs
    });
    $("picture").innerHTML = '<svg class="run" viewBox="0 0 ' + width + " " + (bottom + 42) + '" role="img" aria-labelledby="said">' + svg.join("") + "</svg>";
    $("steps").tBodies[0].innerHTML = (played.steps || []).map(function (s) {
      return '<tr class="' + (s.mark || "") + '"><td>' + (s.at / 1000).toFixed(3) + " s</td><td>" + escape(s.says) + "</td><td>" + (s.wire ? "<code>" + escape(s.wire) + "</code>" : "") + "</td></tr>";
    }).join("");
    URL.revokeObjectURL($("file").href);
    $("file").href = URL.createObjectURL(new Blob([played.scenario], { type: "text/plain" }));
  }
  narrow.addEventListener("change", function () {
    if (!played) { return; }
    if (played.lanes) { drawPicture(); }
    drawMap();
    fill();
  });

  function address() {
    const said = sliders.map(function (s) { return s[0] + "=" + now[s[0]]; });
    return "#" + ["scheme=" + now.scheme].concat(said, "lang=" + language).join("&");
  }
  function read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (schemes.some(function (s) { return s[0] === asked.get("scheme"); })) { now.scheme = asked.get("scheme"); }
    sliders.forEach(function (s) {
      const n = Math.round(Number(asked.get(s[0])));
      if (asked.has(s[0]) && n >= s[3] && n <= s[4]) { now[s[0]] = n; }
    });
    const wanted = asked.get("lang") || ((navigator.language || "").startsWith("zh") ? "zh" : "en");
    language = wanted === "zh" ? "zh" : "en";
  }

  function controls() {
    const stage = document.createElement("label");
    stage.innerHTML = both("stage", "阶段") + '<select id="scheme"></select>';
    $("sliders").append(stage);
    $("scheme").addEventListener("change", function (e) { now.scheme = e.target.value; changed(); });
    sliders.forEach(function (s) {
      const l = document.createElement("label");
      l.innerHTML = both(s[1], s[2]) + '<output id="' + s[0] + '-said"></output><input type="range" id="' + s[0] + '" min="' + s[3] + '" max="' + s[4] + '" step="' + s[5] + '">';
      $("sliders").append(l);
      $(s[0]).addEventListener("input", function (e) { now[s[0]] = Number(e.target.value); changed(); });
    });
  }
  function show() {
    const which = language === "en" ? 0 : 1;
    document.documentElement.lang = language;
    $("language").textContent = language === "en" ? "中文" : "English";
    $("scheme").innerHTML = schemes.map(function (s) { return '<option value="' + s[0] + '">' + s[1 + which] + "</option>"; }).join("");
    $("scheme").value = now.scheme;
    $("map").setAttribute("aria-label", language === "en" ? "Where it breaks" : "哪里会出错");
    sliders.forEach(function (s) {
      $(s[0]).value = now[s[0]];
      $(s[0] + "-said").textContent = s[6](now[s[0]]);
    });
  }

  // The map. It has three runs a cell, as many as fit between two frames. A cell is how many of them break, and 8 more where the closed form
  // says that it breaks.
  const steps = function (from, to) { const all = []; for (let n = from; n <= to; n += 1000) { all.push(n); } return all; };
  const skews = steps(-12000, 12000), rows = steps(1000, 12000);
  const wide = 26, high = 20, left = 58, top = 6;
  let known = {}, filling = 0;
  function cellOf(skew, row) { return skew + "," + row; }
  function others() { return [now.scheme, now.clients, now.lease, now.poll, now.pause, now.failover].join(); }
  function drawMap() {
    const cells = [], bottom = top + rows.length * high;
    rows.forEach(function (row, r) {
      skews.forEach(function (s, column) {
        cells.push('<rect class="cell unknown" data-skew="' + s + '" data-row="' + row + '" x="' + (left + column * wide) + '" y="' + (top + r * high) + '" width="' + wide + '" height="' + high + '"/>');
      });
      if (r % (narrow.matches ? 2 : 1) === 0) { cells.push('<text class="rl" x="' + (left - 6) + '" y="' + (top + r * high + 14) + '">' + seconds(row) + "</text>"); }
    });
    skews.forEach(function (s, column) {
      if (s % 4000 === 0) { cells.push('<text class="sl" x="' + (left + (column + .5) * wide) + '" y="' + (bottom + 22) + '">' + (s > 0 ? "+" : "") + seconds(s) + "</text>"); }
    });
    const width = left + skews.length * wide + 40;
    $("map").setAttribute("viewBox", "0 0 " + width + " " + (bottom + 30));
    $("map").style.maxWidth = Math.min(width * 1.1, 1100) + "px";
    $("map").innerHTML = cells.join("") + '<path class="bd"/>';
  }
  function boundary() { // between what is predicted to break and what is not
    const breaks = function (r, c) { return known[cellOf(skews[c], rows[r])] >= 8; };
    let d = "";
    rows.forEach(function (row, r) {
      skews.forEach(function (s, c) {
        if (c > 0 && breaks(r, c) !== breaks(r, c - 1)) { d += "M" + (left + c * wide) + " " + (top + r * high) + "v" + high; }
        if (r > 0 && breaks(r, c) !== breaks(r - 1, c)) { d += "M" + (left + c * wide) + " " + (top + r * high) + "h" + wide; }
      });
    });
    document.querySelector("#map .bd").setAttribute("d", d);
  }
  function paint(cell) {
    const n = known[cellOf(cell.dataset.skew, cell.dataset.row)];
    const here = near(skews, now.skew) === Number(cell.dataset.skew) && near(rows, now.hold) === Number(cell.dataset.row);
    cell.setAttribute("class", "cell " + (n === undefined || n < 0 ? "unknown" : "k" + n % 8) + (here ? " here" : ""));
    if (here) { $("map").append(cell); } // its frame lies on its neighbours
  }
  function near(list, n) { return list.reduce(function (a, b) { return Math.abs(b - n) < Math.abs(a - n) ? b : a; }, list[0]); }
  function fill() {
    const mine = ++filling, cells = Array.from(document.querySelectorAll("#map .cell"));
    cells.forEach(paint);
    const todo = cells.filter(function (c) { return known[cellOf(c.dataset.skew, c.dataset.row)] === undefined; });
    const d = function (c) { return Math.abs(c.dataset.skew - now.skew) + Math.abs(c.dataset.row - now.hold); };
    todo.sort(function (a, b) { return d(a) - d(b); }); // from where the reader is
    (function some() {
      if (mine !== filling) { return; }
      const until = performance.now() + 12;
      while (todo.length > 0 && performance.now() < until) {
        const c = todo.shift();
        const n = JSON.parse(lockmigrateBroken(JSON.stringify(Object.assign({}, now, { skew: Number(c.dataset.skew), hold: Number(c.dataset.row) }))));
        known[cellOf(c.dataset.skew, c.dataset.row)] = n.error ? -1 : n;
        paint(c);
      }
      if (todo.length > 0) { setTimeout(some, 16); return; }
      boundary();
      $("map").dataset.full = "yes";
    })();
  }
  function go(skew, row) {
    now.skew = near(skews, skew);
    now.hold = near(rows, row);
    changed();
  }

  let filled = "", waiting = 0;
  function changed() {
    show();
    history.replaceState(null, "", address());
    clearTimeout(waiting);
    waiting = setTimeout(play, 30); // a slider that is dragged asks many times
  }
  function play() {
    played = JSON.parse(lockmigratePlay(JSON.stringify(now)));
    say();
    if (played.lanes) { drawPicture(); }
    if (filled !== others()) {
      filled = others();
      known = {};
      delete $("map").dataset.full;
      drawMap();
    }
    fill();
    document.body.dataset.played = String(Number(document.body.dataset.played || 0) + 1);
  }
  function begin() {
    play();
    document.body.dataset.first = String(Math.round(performance.now()));
  }
  function copy(text) {
    const ask = function () { window.prompt("", text); };
    if (navigator.clipboard) { navigator.clipboard.writeText(text).catch(ask); } else { ask(); }
  }

  $("language").addEventListener("click", function () { language = language === "en" ? "zh" : "en"; changed(); });
  $("copy").addEventListener("click", function () { copy(location.href.split("#")[0] + address()); });
  $("again").addEventListener("click", function () { copy(document.querySelector("#again code").textContent); });
  $("map").addEventListener("click", function (e) { if (e.target.dataset.skew) { go(Number(e.target.dataset.skew), Number(e.target.dataset.row)); } });
  $("map").addEventListener("keydown", function (e) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    const to = function (list, n, by) { return list[Math.max(0, Math.min(list.length - 1, list.indexOf(near(list, n)) + by))]; };
    if (move) { go(to(skews, now.skew, move[0]), to(rows, now.hold, move[1])); e.preventDefault(); }
  });
  window.addEventListener("hashchange", function () { read(); changed(); });

  read();
  controls();
  show();
  drawMap();
  const program = new Go();
  const packed = Uint8Array.from(atob(compressed), function (c) { return c.charCodeAt(0); });
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(stream).arrayBuffer().then(function (bytes) { return WebAssembly.instantiate(bytes, program.importObject); }).then(function (loaded) {
    program.run(loaded.instance);
    begin();
  }).catch(function (why) { $("said").innerHTML = "<p>" + escape(String(why)) + "</p>"; });
})();
