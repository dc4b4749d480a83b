// # Least rights
//
// An ACL user needs these rights, for its locks' keys and the keys beside them. What is in brackets may be missing:
// SECURITY.md says what is lost then. Every other right that is missing makes an operation fail, and the error names it.
// `lockmigrate doctor` tries them. This text is made from internal/operate/doctor/rights.txt, and a test compares it.
//
//   - modern. Keys: KEY {KEY}:guard {KEY}:queue {KEY}:yield. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: set get del eval evalsha pexpire pttl time zadd zrange zrank zscore [zrem] [publish] [pubsub|numsub] [info] [exists] [subscribe] [client|id] [client|tracking] [ping].
//
//   - modern FenceTTL. Keys: KEY {KEY}:guard {KEY}:queue {KEY}:yield {KEY}:fence. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: set get del eval evalsha pexpire pttl time zadd zrange zrank zscore [zrem] [publish] [pubsub|numsub] [info] [exists] [subscribe] [client|id] [client|tracking] [ping] mget.
//
//   - modern Unfair. Keys: KEY. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: set get del eval evalsha pexpire pttl [type] [exists] [subscribe] [client|id] [client|tracking] [ping].
//
//   - modern Yield. Keys: KEY {KEY}:guard {KEY}:queue {KEY}:share. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: set get del eval evalsha pexpire pttl time zadd zrange zrank zscore [zrem] [publish] [pubsub|numsub] [info] [exists] [subscribe] [client|id] [client|tracking] [ping].
//
//   - modern Replicas. Keys: KEY {KEY}:guard {KEY}:queue {KEY}:yield. Channels: [lockmigrate:wake:*] [__redis__:invalidate].
//     Commands: set get del eval evalsha pexpire pttl time zadd zrange zrank zscore [zrem] [publish] [pubsub|numsub] [info] [exists] [subscribe] [client|id] [client|tracking] [ping] wait.
package modern
