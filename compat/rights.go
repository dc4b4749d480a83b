// # Least rights
//
// An ACL user needs these rights, for its locks' keys and the keys beside them. What is in brackets may be missing:
// SECURITY.md says what is lost then. Every other right that is missing makes an operation fail, and the error names it.
// `lockmigrate doctor` tries them. This text is made from internal/operate/doctor/rights.txt, and a test compares it.
//
//   - compat. Keys: KEY {KEY}:guard {KEY}:queue {KEY}:yield. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: exists get mget set del pexpire pttl time [zadd] [zrange] [zrank] [zscore] [zrem] [publish] [pubsub|numsub] [type] [info] eval evalsha [subscribe] [client|id] [client|tracking] [ping].
//
//   - compat FenceTTL. Keys: KEY {KEY}:guard {KEY}:queue {KEY}:fence {KEY}:yield. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: exists get mget set del pexpire pttl time [zadd] [zrange] [zrank] [zscore] [zrem] [publish] [pubsub|numsub] [type] [info] eval evalsha [subscribe] [client|id] [client|tracking] [ping].
//
//   - compat Namespace legacy. Keys: lockmigrate:{*}:* KEY {KEY}:guard. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: hget hset hmget [hdel] hgetall time [acl|whoami] [info] setnx getset get set del [pttl] [persist] [type] [pexpire] eval evalsha [exists] [subscribe] [client|id] [client|tracking] [ping].
//
//   - compat Namespace bridge. Keys: KEY {KEY}:guard {KEY}:queue lockmigrate:{*}:* {KEY}:yield. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: exists get mget set del pexpire pttl time [zadd] [zrange] [zrank] [zscore] [zrem] [publish] [pubsub|numsub] [type] [info] eval evalsha [subscribe] [client|id] [client|tracking] [ping] hget hset hmget [hdel] hgetall [acl|whoami].
//
//   - compat Namespace modern. Keys: KEY {KEY}:guard {KEY}:queue lockmigrate:{*}:* {KEY}:yield. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: exists get mget set del pexpire pttl time [zadd] [zrange] [zrank] [zscore] [zrem] [publish] [pubsub|numsub] [type] [info] eval evalsha [subscribe] [client|id] [client|tracking] [ping] hget hset hmget [hdel] hgetall [acl|whoami].
package compat
