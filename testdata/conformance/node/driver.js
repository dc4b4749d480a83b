// A driver for `lockmigrate conformance` in Node, without a package: the bridge's scripts as `lockmigrate scripts` prints them, a client of 40 lines,
// and a Locker that polls. It is no member of a namespace, has no place in the queue and draws no tokens: it claims levels 1 and 2.
'use strict';
const fs = require('fs'), net = require('net'), path = require('path'), crypto = require('crypto'), readline = require('readline');

const folder = path.join(__dirname, '../../../clients/python/src/lockmigrate/lua');
const scripts = {};
for (const name of ['bridge_acquire', 'bridge_settle', 'bridge_renew', 'bridge_release']) {
  const text = fs.readFileSync(path.join(folder, name + '.lua'), 'utf8');
  const names = (kind) => [...new Set([...text.matchAll(new RegExp(`^-- ${kind} (\\w+)`, 'gm'))].map((m) => m[1]))];
  scripts[name] = { text, sha: crypto.createHash('sha1').update(text).digest('hex'), keys: names('KEYS'), args: names('ARGV') };
}

// Connection sends commands in order and reads RESP2.
class Connection {
  constructor(url, timeout) {
    const { hostname, port } = new URL(url);
    Object.assign(this, { hostname, port, timeout, buffer: '', waiting: [] });
  }
  open() {
    if (this.socket) return this.socket;
    const socket = (this.socket = net.connect(this.port, this.hostname));
    socket.setEncoding('latin1').setNoDelay(true);
    const end = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.buffer = '';
      for (const w of this.waiting.splice(0)) w.reject(new Error('no reply'));
    };
    socket.on('error', end).on('close', end).on('data', (text) => {
      this.buffer += text;
      for (let r; this.waiting.length && (r = parse(this.buffer, 0)); ) {
        this.buffer = this.buffer.slice(r.at);
        const w = this.waiting.shift();
        r.value instanceof Error ? w.reject(r.value) : w.resolve(r.value);
      }
    });
    return socket;
  }
  send(...words) {
    return new Promise((resolve, reject) => {
      const socket = this.open();
      const timer = setTimeout(() => socket.destroy(), this.timeout);
      const done = (f) => (v) => { clearTimeout(timer); f(v); };
      this.waiting.push({ resolve: done(resolve), reject: done(reject) });
      socket.write(`*${words.length}\r\n` + words.map((w) => `$${Buffer.byteLength(String(w))}\r\n${w}\r\n`).join(''));
    });
  }
}

function parse(text, at) {
  const end = text.indexOf('\r\n', at);
  if (end < 0) return null;
  const line = text.slice(at + 1, end), next = end + 2;
  switch (text[at]) {
    case ':': return { value: Number(line), at: next };
    case '+': return { value: line, at: next };
    case '-': return { value: Object.assign(new Error(line), { refused: true }), at: next };
    case '$': {
      const n = Number(line);
      if (n < 0) return { value: null, at: next };
      return text.length < next + n + 2 ? null : { value: text.slice(next, next + n), at: next + n + 2 };
    }
    default: {
      const row = [];
      let r = { at: next };
      for (let i = 0; i < Number(line); i++) {
        if (!(r = parse(text, r.at))) return null;
        row.push(r.value);
      }
      return { value: row, at: r.at };
    }
  }
}

const value = { plain: (n) => n, 'jedis-uuid': (n) => `${crypto.randomUUID()}:${n}`, 'sec-pid-thread': (n) => `${n}-${process.pid}-${crypto.randomInt(1 << 30)}` };
const units = { 'jedis-ms': 'ms plain', 'jedis-uuid': 'ms uuid', 'redispy-float': 'float plain', 'sec-pid-thread': 's dash' };
const now = () => performance.now(), sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const refused = (word, text) => Object.assign(new Error(text || word), { word });

class Locker {
  constructor(o) {
    Object.assign(this, { o, conn: new Connection(o.redis, o.reply_ms), locks: new Set() });
    this.rules = `${o.stage === 'modern' ? -1 : o.lag_ms + o.delay_ms} ${units[o.dialect]} ${o.yield_ms}`;
  }
  // call sends a script; one without a reply is sent once more: its value tells what the first one did.
  async call(name, lock, more = {}) {
    const s = scripts[name], tag = lock.key;
    const given = { key: tag, guard: `{${tag}}:guard`, yield: `{${tag}}:yield`, queue: tag, fence: tag, value: lock.token, ttl: this.o.ttl_ms, rules: this.rules, gap: this.o.yield_ms, not_after: 0, fence_ttl: 0, ...more };
    const keys = s.keys.filter((k) => k !== 'fence' || name === 'bridge_renew').map((k) => given[k]), args = s.args.map((a) => given[a]).filter((a) => a !== undefined);
    for (let again = false; ; again = true) {
      try {
        return await this.conn.send('EVALSHA', s.sha, keys.length, ...keys, ...args).catch((e) => {
          if (!e.refused || !e.message.startsWith('NOSCRIPT')) throw e;
          return this.conn.send('EVAL', s.text, keys.length, ...keys, ...args);
        });
      } catch (e) {
        if (e.refused || again) throw e;
        lock.doubt = true;
      }
    }
  }
  async acquire(key, wait, lost) {
    const end = now() + wait;
    const number = 5n * 10n ** 18n + crypto.randomBytes(8).readBigUInt64BE() % (42n * 10n ** 17n);
    const lock = { key, token: String((value[this.o.dialect] || value.plain)(number)), lost };
    try {
      for (;;) {
        lock.deadline = now() + this.o.ttl_ms;
        const [code, , ms] = [].concat(await this.call('bridge_acquire', lock)); // 1 may stand alone
        if (code === 1 || code === 2 || code === 3) {
          if (code === 1 || (code === 3 && !lock.doubt) || (await this.settle(lock))) break;
        } else if (now() >= end) throw refused(code < 0 ? 'foreign' : 'refused');
        else await sleep(Math.max(1, Math.min(ms > 0 ? ms : 50, 50, end - now())));
        if (now() >= end && code > 0) throw refused('refused');
      }
    } catch (e) {
      if (!e.word) await this.call('bridge_release', lock, { hand: 0 }).catch(() => { throw refused('unknown', e.message); });
      throw e;
    }
    this.locks.add(lock);
    lock.deadlines = setInterval(() => lock.deadline < now() && this.lose(lock, 'deadline'), 10);
    lock.renewals = setInterval(() => this.renew(lock), Math.min(this.o.ttl_ms, this.o.shortest_ms) / 3);
    return lock;
  }
  async settle(lock) {
    for (;;) {
      await sleep(this.o.delay_ms);
      const sent = now(), [code] = [].concat(await this.call('bridge_settle', lock));
      lock.deadline = sent + this.o.ttl_ms;
      if (code !== 2) return code === 1;
    }
  }
  async renew(lock) {
    const sent = now();
    const [code] = [].concat(await this.call('bridge_renew', lock).catch(() => null));
    if (code > 0) lock.deadline = Math.max(lock.deadline, sent + this.o.ttl_ms);
    else if (code !== null) this.lose(lock, code < 0 ? 'displaced' : 'taken');
  }
  end(lock) {
    clearInterval(lock.renewals);
    clearInterval(lock.deadlines);
    return this.locks.delete(lock);
  }
  lose(lock, reason) {
    if (this.end(lock)) lock.lost(reason);
  }
  async release(lock) {
    const held = this.end(lock) && lock.deadline > now();
    lock.doubt = false;
    const reply = await this.call('bridge_release', lock, { hand: 1 }).catch((e) => { throw refused('unknown', e.message); });
    if (Array.isArray(reply)) await this.call('bridge_release', lock, { hand: 0 }); // displaced: the guard goes with the second one
    if (!held || Array.isArray(reply) || (reply === 0 && !lock.doubt)) throw refused('lost');
  }
}

const lockers = {}, locks = {};
const say = (o) => process.stdout.write(JSON.stringify(o) + '\n');
const does = {
  hello: () => ({ name: 'node-example', version: '0', language: `node ${process.version}`, levels: [1, 2], can: [] }),
  open: (r) => { lockers[r.locker] = new Locker(r); },
  async acquire(r) {
    const lock = (locks[r.lock] = await lockers[r.locker].acquire(r.key, r.wait_ms, (reason) => say({ event: 'lost', lock: r.lock, reason })));
    lock.locker = lockers[r.locker];
    return { token: lock.token, fence: 0, stage: lock.locker.o.stage };
  },
  check: (r) => ({ alive: locks[r.lock].locker.locks.has(locks[r.lock]) && locks[r.lock].deadline > now() }),
  release: (r) => locks[r.lock].locker.release(locks[r.lock]),
  close(r) {
    for (const lock of lockers[r.locker].locks) lockers[r.locker].end(lock);
    if (lockers[r.locker].conn.socket) lockers[r.locker].conn.socket.destroy();
  },
};
readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const r = JSON.parse(line);
  try {
    say({ id: r.id, ok: true, ...(await does[r.do](r)) });
  } catch (e) {
    say({ id: r.id, error: e.word || 'failed', text: String(e.message) });
  }
}).on('close', () => process.exit(0));
