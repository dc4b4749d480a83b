// holder.js: the Node holders, released npm locks that the Go test suites run against.
// Usage: holder.js KIND redis://[:password@]host:port/db [name=value ...]
// ../README.md describes the kinds and the line protocol. Runs on Node 18 and later.
'use strict';

const fs = require('fs');
const readline = require('readline');
const kinds = require('./locks');

const SLICE_MS = 1000; // a blocking acquire inside `turns` is cut into slices of this length, so that `stop` is heard
const GRACE_MS = 10000; // after the end of the input, a command that still waits gets this long
const LEAVE_TRIES = 50; // a referee's field that stays behind would look like an overlap for ever

class Usage extends Error {}

// One line, written at once: a holder that is killed at any moment has said all that it did.
function event(name, fields) {
  const line = Buffer.from(`${JSON.stringify({ event: name, ...fields })}\n`);
  for (let at = 0; at < line.length; ) {
    try {
      at += fs.writeSync(1, line, at);
    } catch (e) {
      if (e.code !== 'EAGAIN') throw e;
    }
  }
}

function error(op, e, fields) {
  event('error', { op, class: e.constructor.name, message: String(e.message), ...fields });
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const since = (start) => Math.floor(performance.now() - start);

// ---------------------------------------------------------------- command line

/** KIND URL [name=value ...]. Times are in ms. */
class Options {
  constructor(args) {
    if (args.length < 2) throw new Usage('want KIND redis://[:password@]host:port/db [name=value ...]');
    [this.kind] = args;
    this.server = serverOf(args[1]);
    this.book = this.server;
    this.id = `${this.kind}-${process.pid}`;
    this.numbers = {};
    for (const arg of args.slice(2)) {
      const at = arg.indexOf('=');
      const [name, value] = [arg.slice(0, at), arg.slice(at + 1)];
      if (name === 'id') {
        this.id = value;
      } else if (['lease', 'wait', 'poll', 'clock'].includes(name)) {
        this.numbers[name] = whole(value);
      } else if (name === 'book') {
        this.book = serverOf(`redis://${value}/0`);
      } else {
        throw new Usage(`unknown option ${arg}; want id, lease, wait, poll, clock, book`);
      }
    }
  }

  number(name, byDefault, mayBeNegative) {
    const value = this.numbers[name] === undefined ? byDefault : this.numbers[name];
    if (value < 0 && !mayBeNegative) throw new Usage(`${name} must not be negative`);
    return value;
  }

  /** Refuses options that this kind would silently ignore. */
  without(...names) {
    for (const name of names) {
      if (this.numbers[name] !== undefined) throw new Usage(`kind ${this.kind} has no ${name}`);
    }
  }
}

function serverOf(text) {
  const url = new URL(text);
  if (url.protocol !== 'redis:' || !url.hostname) throw new Usage(`not a redis:// URL: ${text}`);
  return {
    host: url.hostname,
    port: Number(url.port || 6379),
    db: Number(url.pathname.replace('/', '') || 0),
    password: url.password ? decodeURIComponent(url.password) : undefined,
  };
}

function whole(word) {
  if (!/^-?\d+$/.test(word)) throw new Usage(`not a number: ${word}`);
  return Number(word);
}

// ---------------------------------------------------------------- turns

/** Counts who is inside a lock, over a connection that the lock does not use. */
class Referee {
  constructor(options) {
    this.options = options;
  }

  redis() {
    if (!this.client) {
      this.client = new (require('ioredis'))(this.options.book);
      this.client.on('error', (e) => process.stderr.write(`holder: referee: ${e}\n`));
    }
    return this.client;
  }

  async connect() {
    await this.redis().ping();
  }

  enter(referee) {
    return this.redis().hset(referee, this.options.id, 1);
  }

  inside(referee) {
    return this.redis().hlen(referee);
  }

  async leave(referee) {
    await this.redis().hdel(referee, this.options.id);
    await this.redis().incr(`${referee}:turns`);
  }
}

/** The `turns` command: N times acquire, enter, hold, leave, release. */
class Turns {
  constructor(holder, referee, stopped) {
    Object.assign(this, { holder, referee, stopped, busy: 0, errors: 0 });
  }

  async run(key, counter, turns, holdMs) {
    let done = 0;
    let overlaps = 0;
    while (done < turns && !this.stopped()) {
      const start = performance.now();
      if (!(await this.acquire(key))) break;
      const waited = since(start);
      done++;
      const inside = await this.inside(counter, done, holdMs);
      if (inside > 1) overlaps++;
      await this.release(key);
      event('turn', { key, n: done, inside, waited_ms: waited });
    }
    event('done', { turns: done, overlaps, errors: this.errors, busy: this.busy });
  }

  /** Tries until acquired; false when stopped before that. */
  async acquire(key) {
    const wait = this.holder.waitMs < 0 ? SLICE_MS : this.holder.waitMs;
    while (!this.stopped()) {
      const start = performance.now();
      try {
        if (await this.holder.acquire(key, wait)) return true;
        this.busy++;
      } catch (e) {
        this.failed('acquire', key, e);
      }
      // An attempt that waited by itself is repeated at once, a shorter one only after a whole poll.
      await sleep(Math.max(0, this.holder.pollMs - since(start)));
    }
    return false;
  }

  async inside(counter, n, holdMs) {
    let inside = 0;
    try {
      await this.referee.enter(counter);
      event('entered', { n });
      inside = await this.referee.inside(counter);
    } catch (e) {
      this.failed('referee', counter, e);
    }
    await sleep(holdMs);
    for (let i = 0; i < LEAVE_TRIES; i++) {
      try {
        await this.referee.leave(counter);
        break;
      } catch (e) {
        this.failed('referee', counter, e);
        await sleep(Math.max(10, this.holder.pollMs));
      }
    }
    return inside;
  }

  async release(key) {
    try {
      await this.holder.release(key);
    } catch (e) {
      this.failed('release', key, e);
      await sleep(this.holder.pollMs);
    }
  }

  failed(op, key, e) {
    this.errors++;
    error(op, e, { key });
  }
}

// ---------------------------------------------------------------- line protocol

/** Commands on stdin, events on stdout. Commands run one after the other; `stop` and the end are heard at once. */
class Console {
  constructor(holder, referee) {
    Object.assign(this, { holder, referee, number: 0, stoppedAt: 0, last: Promise.resolve() });
  }

  start() {
    const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity });
    lines.on('line', (line) => {
      const number = ++this.number;
      if (line === 'quit') {
        lines.close();
      } else if (line === 'stop') {
        this.stoppedAt = number;
      } else if (line) {
        this.last = this.last.then(() => this.command(line, number));
      }
    });
    lines.on('close', () => {
      this.stoppedAt = Infinity;
      setTimeout(bye, GRACE_MS + Math.max(0, this.holder.waitMs));
      this.last.then(bye);
    });
  }

  async command(line, number) {
    const [op, ...words] = line.split(' ');
    try {
      await this.run(op, words, number);
    } catch (e) {
      if (e instanceof Usage) {
        event('error', { op: 'protocol', class: 'usage', message: e.message });
      } else {
        error(op, e, words.length ? { key: words[0] } : {});
      }
    }
  }

  async run(op, words, number) {
    const counts = { acquire: 1, try: 1, release: 1, renew: 1, count: 1, clock: 1, parse: 2, turns: 4 };
    if (counts[op] === undefined) throw new Usage(`unknown command ${op}`);
    if (words.length !== counts[op]) throw new Usage(`${op} wants ${counts[op]} words`);
    const [key] = words;
    switch (op) {
      case 'acquire':
        return this.attempt(key, this.holder.waitMs);
      case 'try':
        return this.attempt(key, 0);
      case 'release':
        return event('released', { key, removed: await this.holder.release(key) });
      case 'clock':
        this.holder.clock(whole(key));
        return event('clock', { offset_ms: whole(key) });
      case 'turns':
        return new Turns(this.holder, this.referee, () => number < this.stoppedAt).run(
          key,
          words[1],
          whole(words[2]),
          whole(words[3])
        );
      default:
        return event('unsupported', { op });
    }
  }

  async attempt(key, waitMs) {
    const start = performance.now();
    const got = await this.holder.acquire(key, waitMs);
    if (got) {
      event('acquired', { key, waited_ms: since(start), value: got.value });
    } else {
      event('busy', { key, waited_ms: since(start) });
    }
  }
}

// Ends without closing anything: what is held stays held, as it would in a crash.
function bye() {
  event('bye', {});
  process.exit(0);
}

async function main(args) {
  let options;
  let holder;
  try {
    options = new Options(args);
    const Kind = kinds[options.kind];
    if (!Kind) throw new Usage(`unknown kind ${options.kind}; want ${Object.keys(kinds).sort().join(', ')}`);
    holder = new Kind(options);
  } catch (e) {
    process.stderr.write(`holder: ${e.message}\n`);
    process.exit(2);
  }
  const referee = new Referee(options);
  try {
    await holder.connect();
    await referee.connect();
  } catch (e) {
    process.stderr.write(`holder: cannot start: ${e.message}\n`);
    process.exit(1);
  }
  event('ready', { kind: options.kind, version: holder.version, pid: process.pid, id: options.id });
  new Console(holder, referee).start();
}

main(process.argv.slice(2));
