// Package locks makes halves of package handover from the locks of other libraries. Each file stands alone: copy the one you need.
//
// A half must hear of its losses, and most libraries do not tell. What each of these does instead:
//
//	Redsync       has no word of a loss; the TTL, extended three times in each, bounds it
//	Redislock     the same
//	Rueidislock   ends a context, up to half a validity late when its server is silent; a look at the TTL comes first
//	Postgres      a session that ends is seen at once; one that is cut off ends by the server's idle_session_timeout, and here before that
//	Etcd          Session.Done, up to half a second late; KeepAliveOnce comes first
//
// Redisson's layout needs no file: modern/redisson is a Locker of this module.
package locks
