// suite.js: runs ioredis' own functional tests (npm has them in ioredis 2.3.1) against PORT in place of 6379. A FLUSHALL of theirs empties
// one database, so the namespace in another one stays. One test is left out because it dials 192.0.0.0.
//   npm pack ioredis@2.3.1; in its folder: npm install --omit=dev; npm install --no-save mocha@2.5.3 chai@3.5.0 sinon@1.17.7 redis@2.8.0 server-destroy@1.0.1
//   PORT=6380 NODE_ENV=test node_modules/.bin/mocha -r .../suite.js --opts /dev/null -i -g 'connection when timeout' test/helpers test/functional
'use strict'
const { Socket } = require('net')
const { connect, write } = Socket.prototype

Socket.prototype.connect = function (...args) {
  const to = Array.isArray(args[0]) ? args[0][0] : args[0]
  if (to && Number(to.port) === 6379) Object.assign(to, { host: '127.0.0.1', port: Number(process.env.PORT) })
  return connect.apply(this, args)
}

Socket.prototype.write = function (data, ...rest) {
  return write.call(this, typeof data === 'string' ? data.replace('$8\r\nflushall\r\n', '$7\r\nflushdb\r\n') : data, ...rest)
}
