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
    ["mixed-50", "stage bridge: half old clients, half bridge", "阶段 bridge:一半旧客户端,一半 bridge"],
    ["bridge", "stage bridge: nobody old is left", "阶段 bridge:已没有旧客户端"],
    ["modern", "stage modern: token and TTL", "阶段 modern:令牌加 TTL"],
  ];
  const usual = { scheme: "legacy", clients: 4, skew: 9000, lease: 10000, hold: 2000, poll: 240, pause: 0, failover: 0 };
  let now = Object.assign({}, usual), language = "en", played = null;

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
    const box = $("said");
    if (played.error) {
      box.className = "";
      box.innerHTML = "<p>" + both("These settings make no fleet: ", "这些设置无法组成集群:") + escape(played.error) + "</p>";
      return;
    }
    const b = played.break;
    box.className = b ? "broken" : "";
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

  function drawPicture() {
    let svg = played.wide + played.phone;
    if (language === "zh") {
      svg = svg.replace(/>clock true</g, ">时钟准确<").replace(/>clock (?:then )?(\S+) ahead</g, ">时钟快 $1<").replace(/>clock (?:then )?(\S+) behind</g, ">时钟慢 $1<").replace(/>the key</g, ">键<");
    }
    $("picture").innerHTML = svg;
  }

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
    const form = $("sliders");
    const choose = document.createElement("label");
    choose.innerHTML = both("stage", "阶段") + '<select id="scheme"></select>';
    form.append(choose);
    $("scheme").addEventListener("change", function (e) { now.scheme = e.target.value; changed(); });
    sliders.forEach(function (s) {
      const l = document.createElement("label");
      l.innerHTML = both(s[1], s[2]) + '<output id="' + s[0] + '-said"></output><input type="range" id="' + s[0] + '" min="' + s[3] + '" max="' + s[4] + '" step="' + s[5] + '">';
      form.append(l);
      $(s[0]).addEventListener("input", function (e) { now[s[0]] = Number(e.target.value); changed(); });
    });
  }
  function show() {
    document.documentElement.lang = language;
    $("language").textContent = language === "en" ? "中文" : "English";
    $("scheme").innerHTML = schemes.map(function (s) { return '<option value="' + s[0] + '">' + s[language === "en" ? 1 : 2] + "</option>"; }).join("");
    $("scheme").value = now.scheme;
    sliders.forEach(function (s) {
      $(s[0]).value = now[s[0]];
      $(s[0] + "-said").textContent = s[6](now[s[0]]);
    });
  }

  // The map: three runs a cell, as many as fit between two frames.
  const skews = [], holds = [];
  for (let s = -12000; s <= 12000; s += 1000) { skews.push(s); }
  for (let h = 1000; h <= 12000; h += 1000) { holds.push(h); }
  const wide = 26, high = 20, left = 46, top = 6;
  let known = {}, filling = 0;
  function others() { return [now.scheme, now.clients, now.lease, now.poll, now.pause, now.failover].join(); }
  function drawMap() {
    const cells = [];
    holds.forEach(function (h, row) {
      skews.forEach(function (s, column) {
        cells.push('<rect class="cell unknown" data-skew="' + s + '" data-hold="' + h + '" x="' + (left + column * wide) + '" y="' + (top + row * high) + '" width="' + wide + '" height="' + high + '"/>');
      });
      cells.push('<text class="rl" x="' + (left - 6) + '" y="' + (top + row * high + 14) + '">' + h / 1000 + " s</text>");
    });
    skews.forEach(function (s, column) {
      if (s % 4000 === 0) { cells.push('<text class="sl" x="' + (left + (column + .5) * wide) + '" y="' + (top + holds.length * high + 16) + '">' + (s > 0 ? "+" : "") + s / 1000 + " s</text>"); }
    });
    $("map").setAttribute("viewBox", "0 0 " + (left + skews.length * wide + 4) + " " + (top + holds.length * high + 24));
    $("map").innerHTML = cells.join("");
    $("map").setAttribute("aria-label", language === "en" ? "Where it breaks" : "哪里会出错");
  }
  function paint(cell) {
    const n = known[cell.dataset.skew + "," + cell.dataset.hold];
    cell.setAttribute("class", "cell " + (n === undefined ? "unknown" : n < 0 ? "unknown" : ["k0", "k1", "k3", "k4"][n]) +
      (Math.abs(now.skew - cell.dataset.skew) <= 500 && Math.abs(now.hold - cell.dataset.hold) <= 500 && nearest(cell) ? " here" : ""));
  }
  function near(list, n) { return list.reduce(function (a, b) { return Math.abs(b - n) < Math.abs(a - n) ? b : a; }); }
  function nearest(cell) { return near(skews, now.skew) === Number(cell.dataset.skew) && near(holds, now.hold) === Number(cell.dataset.hold); }
  function fill() {
    const mine = ++filling, cells = Array.from(document.querySelectorAll("#map .cell"));
    cells.forEach(paint);
    const todo = cells.filter(function (c) { return known[c.dataset.skew + "," + c.dataset.hold] === undefined; });
    todo.sort(function (a, b) { // from where the reader is
      const d = function (c) { return Math.abs(c.dataset.skew - now.skew) + Math.abs(c.dataset.hold - now.hold); };
      return d(a) - d(b);
    });
    (function some() {
      if (mine !== filling) { return; }
      const until = performance.now() + 12;
      while (todo.length > 0 && performance.now() < until) {
        const c = todo.shift();
        known[c.dataset.skew + "," + c.dataset.hold] = lockmigrateBroken(JSON.stringify(Object.assign({}, now, { skew: Number(c.dataset.skew), hold: Number(c.dataset.hold) })));
        paint(c);
      }
      if (todo.length > 0) { setTimeout(some, 16); } else { $("map").dataset.full = "yes"; }
    })();
  }
  function go(skew, hold) {
    now.skew = Math.max(-12000, Math.min(12000, skew));
    now.hold = Math.max(1000, Math.min(12000, hold));
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
    if (!played.error) {
      drawPicture();
      URL.revokeObjectURL($("file").href);
      $("file").href = URL.createObjectURL(new Blob([played.scenario], { type: "text/plain" }));
    }
    if (filled !== others()) {
      filled = others();
      known = {};
      delete $("map").dataset.full;
    }
    fill();
    document.body.dataset.played = String(Number(document.body.dataset.played || 0) + 1);
  }

  $("language").addEventListener("click", function () { language = language === "en" ? "zh" : "en"; changed(); });
  $("copy").addEventListener("click", function () {
    const link = location.href.split("#")[0] + address();
    if (navigator.clipboard) { navigator.clipboard.writeText(link).catch(function () { window.prompt("", link); }); } else { window.prompt("", link); }
  });
  $("map").addEventListener("click", function (e) { if (e.target.dataset.skew) { go(Number(e.target.dataset.skew), Number(e.target.dataset.hold)); } });
  $("map").addEventListener("keydown", function (e) {
    const move = { ArrowLeft: [-1000, 0], ArrowRight: [1000, 0], ArrowUp: [0, -1000], ArrowDown: [0, 1000] }[e.key];
    if (move) { go(near(skews, now.skew) + move[0], near(holds, now.hold) + move[1]); e.preventDefault(); }
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
    play();
    document.body.dataset.first = String(Math.round(performance.now()));
  }).catch(function (why) { $("said").innerHTML = "<p>" + escape(String(why)) + "</p>"; });
})();
