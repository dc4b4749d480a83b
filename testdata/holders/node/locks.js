// locks.js: the kinds of lock, released npm packages, unmodified, each on a client of its time. See ../README.md.
'use strict';

const packages = (name) => require(`${name}/package.json`).version;

// Moves what `new Date()` and Date.now() say, for the code of the locks. Timers stay right.
const RealDate = Date;
let offsetMs = 0;
global.Date = class extends RealDate {
  constructor(...args) {
    super(...(args.length ? args : [RealDate.now() + offsetMs]));
  }

  static now() {
    return RealDate.now() + offsetMs;
  }
};

/** What one kind of lock can do. acquire resolves to null when busy, else to {value}. */
class Holder {
  constructor(options) {
    this.options = options;
    this.waitMs = 0;
    this.pollMs = 100;
    offsetMs = options.number('clock', 0, true);
  }

  clock(ms) {
    offsetMs = ms;
  }
}

/** Resolves on an event of a client, rejects on its error. */
function once(client, event) {
  return new Promise((resolve, reject) => {
    client.once('error', reject);
    client.once(event, () => {
      client.removeListener('error', reject);
      client.on('error', (e) => process.stderr.write(`holder: ${e}\n`));
      resolve();
    });
  });
}

/** The `lock.` that both releases of redis-lock put before a name is part of the key here. */
function named(key) {
  if (!key.startsWith('lock.')) {
    throw new Error(`redis-lock's keys begin with lock., this one does not: ${key}`);
  }
  return key.slice('lock.'.length);
}

/** redis-lock tries for ever. An attempt ends when its wait is over: its next first command is not sent. */
class Attempt {
  constructor(waitMs, over) {
    this.deadline = waitMs < 0 ? Infinity : performance.now() + waitMs;
    this.over = over;
    this.tried = false;
  }

  goesOn() {
    if (this.tried && performance.now() >= this.deadline) {
      this.over();
      return false;
    }
    this.tried = true;
    return true;
  }
}

/** Kind `redis-lock-0`: redis-lock 0.0.8 on redis 0.12.1: SETNX, GET, GETSET of an expiry in ms. */
class RedisLock0 extends Holder {
  constructor(options) {
    super(options);
    this.leaseMs = options.number('lease', 5000);
    this.waitMs = options.number('wait', 10000, true);
    this.pollMs = options.number('poll', 50) || 1;
    this.version = `redis-lock ${packages('redis-lock-0.0.8')}, redis ${packages('redis-0.12.1')}`;
    this.held = new Map();
  }

  async connect() {
    const { host, port, password, db } = this.options.server;
    this.client = require('redis-0.12.1').createClient(port, host, password ? { auth_pass: password } : {});
    await once(this.client, 'ready');
    if (db) await new Promise((done, fail) => this.client.select(db, (e) => (e ? fail(e) : done())));
  }

  acquire(key, waitMs) {
    return new Promise((resolve) => {
      const attempt = new Attempt(waitMs, () => resolve(null));
      const client = {
        setnx: (name, value, then) => attempt.goesOn() && this.client.setnx(name, value, then),
        get: (name, then) => this.client.get(name, then),
        getset: (name, value, then) => this.client.getset(name, value, then),
        del: (name, then) => this.client.del(name, then),
      };
      require('redis-lock-0.0.8')(client, this.pollMs)(named(key), this.leaseMs, (done) => {
        this.held.set(key, done);
        resolve({ value: null });
      });
    });
  }

  release(key) {
    return new Promise((resolve, reject) => {
      const done = this.held.get(key);
      if (!done) throw new Error(`not held: ${key}`);
      this.held.delete(key);
      // When its own lease is over, the lock answers with nothing and deletes nothing.
      done((e, n) => (e ? reject(e) : resolve(n === undefined ? false : n === 1)));
    });
  }
}

/** Kind `redis-lock-1`: redis-lock 1.0.0 on redis 4.7.1: SET of an expiry in ms with PX and NX; no GETSET. */
class RedisLock1 extends Holder {
  constructor(options) {
    super(options);
    this.leaseMs = options.number('lease', 5000);
    this.waitMs = options.number('wait', 10000, true);
    this.pollMs = options.number('poll', 50) || 1;
    this.version = `redis-lock ${packages('redis-lock-1.0.0')}, redis ${packages('redis-4.7.1')}`;
    this.held = new Map();
  }

  async connect() {
    const { host, port, password, db } = this.options.server;
    this.client = require('redis-4.7.1').createClient({ socket: { host, port }, password, database: db });
    this.client.on('error', (e) => process.stderr.write(`holder: ${e}\n`));
    await this.client.connect();
  }

  acquire(key, waitMs) {
    return new Promise((resolve, reject) => {
      const attempt = new Attempt(waitMs, () => resolve(null));
      const client = {
        v4: true, // what the lock asks for, to know a client of redis 4
        set: (...args) => (attempt.goesOn() ? this.client.set(...args) : new Promise(() => {})),
        del: (name) => this.client.del(name),
      };
      require('redis-lock-1.0.0')(client, this.pollMs)(named(key), this.leaseMs).then((done) => {
        this.held.set(key, done);
        resolve({ value: null });
      }, reject);
    });
  }

  async release(key) {
    const done = this.held.get(key);
    if (!done) throw new Error(`not held: ${key}`);
    this.held.delete(key);
    return (await done()) === 1;
  }
}

/** The plugins of node-resque 9.7.1 on ioredis, in whole seconds. They try once: the wait and its pauses are the holder's. */
class Resque extends Holder {
  constructor(options) {
    super(options);
    this.waitMs = options.number('wait', 10000, true);
    this.seconds = Math.max(1, Math.round(options.number('lease', 3600000) / 1000));
    this.pollMs = options.number('poll', 100) || 1;
    this.version = `node-resque ${packages('node-resque')}, ioredis ${packages('ioredis')}`;
  }

  async connect() {
    const { host, port, password, db } = this.options.server;
    const redis = new (require('ioredis'))({ host, port, password, db });
    await once(redis, 'ready');
    this.queue = new (require('node-resque').Queue)({ connection: { redis } });
    this.queue.on('error', (e) => process.stderr.write(`holder: ${e}\n`));
    await this.queue.connect();
  }

  async acquire(key, waitMs) {
    const end = waitMs < 0 ? Infinity : performance.now() + waitMs;
    while (!(await this.attempt(key))) {
      if (performance.now() >= end) return null;
      await new Promise((done) => setTimeout(done, this.pollMs));
    }
    return { value: null };
  }

  plugin(name, key) {
    const Plugin = require('node-resque').Plugins[name];
    const job = { pluginOptions: { JobLock: { reEnqueue: false } } };
    return new Plugin(this.queue, 'work', 'queue', job, [], { lockTimeout: this.seconds, key });
  }
}

/** Kind `resque-queue-lock`: SETNX, GET and a SET that asks nothing. The worker that takes the job off the queue deletes. */
class QueueLock extends Resque {
  attempt(key) {
    return this.plugin('QueueLock', key).beforeEnqueue();
  }

  async release(key) {
    await this.plugin('QueueLock', key).beforePerform();
    return null;
  }
}

/** Kind `resque-job-lock`: SET of an expiry in s with EX and NX; DEL when the job is done. */
class JobLock extends Resque {
  attempt(key) {
    return this.plugin('JobLock', key).beforePerform();
  }

  async release(key) {
    await this.plugin('JobLock', key).afterPerform();
    return null;
  }
}

module.exports = {
  'redis-lock-0': RedisLock0,
  'redis-lock-1': RedisLock1,
  'resque-queue-lock': QueueLock,
  'resque-job-lock': JobLock,
};
