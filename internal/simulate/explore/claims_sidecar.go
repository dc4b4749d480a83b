package explore

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// sidecarClaims: S is old code behind a sidecar. Its clock is off as it likes, its DEL comes when it likes; it works within the lease that it
// wrote itself.
func sidecarClaims() []Claim {
	S, L, B, M := behindSidecar, legacyClient, bridgeClient, modernClient
	in := func(d *protocol.Dialect) option { return dialect(d) }
	allBut := func(m *Model) *Model {
		var pairs []Pair
		for _, a := range []model.Scheme{model.Sidecar, model.Bridge, model.Modern} {
			for _, b := range []model.Scheme{model.Sidecar, model.Bridge, model.Modern} {
				pairs = append(pairs, Pair{a, b})
			}
		}
		return m.only(pairs...)
	}
	return []Claim{
		{"SS-skew", "S S", "two services, one clock ahead and one behind by more than the lease; crash", Exclusive, 0,
			world(12, S("a", ahead(5), crash, turns(2)), S("b", ahead(-5), crash, turns(2)))},
		{"SS-skew-queue", "S S", "as SS-skew in stage modern, where both stand in the queue", Exclusive, 0,
			world(11, S("a", ahead(5), crash, queue, turns(2)), S("b", ahead(-5), crash, queue, turns(2))).messages()},
		{"SB-skew", "S B", "the service's clock ahead by more than the lease; crash, renewal, repair", Exclusive, 0,
			world(12, S("a", ahead(5), crash, renew(1), turns(2)), B("x", crash, renew(1), settle(2), turns(2)))},
		{"SM-skew", "S M", "the service's clock behind by more than the lease; crash, both in the queue", Exclusive, 0,
			world(11, S("a", ahead(-5), crash, queue, turns(2)), M("m", crash, queue, turns(2))).messages()},
		{"SMM-grant", "S M M", "stage modern: the lock is handed from one to the next, and to the service's next attempt; crash", Exclusive, 0,
			world(7, S("a", ahead(5), queue, crash), M("m", queue, crash), M("n", queue)).messages()},
		{"SM-held", "S M", "the service's attempts are held back: its sidecar asks first that the lock be kept for it; crash", Exclusive, 0,
			world(9, S("a", ahead(5), queue, crash, held, turns(2)), M("m", queue, crash, turns(2))).messages()},
		{"SSM-held-threads", "S S M", "as SM-held, with two threads behind one sidecar: what is kept may go to either", Exclusive, 0,
			world(6, S("a", queue, held, crash, behind("s")), S("b", queue, held, behind("s")), M("m", queue)).messages()},
		{"SB-held-silent", "S B", "as SM-held at stage bridge: one command runs late or never, and its reply never comes", Exclusive, 0,
			world(8, S("a", ahead(5), delay(1), held), B("x", delay(1), settle(2))).silences(1)},
		{"SSB-late", "S S B", "commands up to 1 late, crash", Exclusive, 0,
			world(7, S("a", ahead(5), delay(1), crash), S("b", ahead(-5), delay(1)), B("x", delay(1)))},
		{"SB-silent", "S B", "one reply never comes; its command runs, late or never", Exclusive, 0,
			world(9, S("a", ahead(5), delay(1)), B("x", delay(1))).silences(1)},
		{"SM-silent", "S M", "as SB-silent in stage modern", Exclusive, 0,
			world(9, S("a", ahead(5), delay(1), queue), M("m", delay(1), queue)).silences(1)},
		{"SSM-stale-del", "S S M", "a DEL arrives after the lease: it is for another service's lock, or a token's", Exclusive, 0,
			world(9, S("a", staleDel, ahead(5)), S("b"), M("m"))},
		{"SSM-stale-del-threads", "S S M", "as SSM-stale-del, by two threads of one service behind one sidecar: the DEL frees the other's lock, as on a bare server", Violated, 0,
			world(9, S("a", staleDel, behind("s")), S("b", behind("s")), M("m"))},
		{"SSM-one-text", "S S M", "two threads of one service write one text; one may crash, and its DEL never come", Exclusive, 0,
			world(8, S("a", behind("s"), crash), S("b", behind("s"), crash), M("m"))},
		{"SSM-no-del", "S S M", "the DEL of one thread never comes: its lock ends with its lease, and costs its service nothing else", Exclusive, 0,
			world(8, S("a", behind("s"), release(protocol.ReleaseNever), turns(2)), S("b", behind("s"), turns(2)), M("m"))},
		{"SSM-del-doubled", "S S M", "as SSM-stale-del, and each DEL is sent twice", Exclusive, 0,
			world(8, S("a", twice, staleDel, ahead(5)), S("b"), M("m"))},
		{"SSM-script", "S S M", "a script of the service takes the lock by SET NX PX and gives it back by comparing, beside a thread that sends SETNX, behind one sidecar", Exclusive, 0,
			world(9, M("x", plain, behind("s"), turns(2)), S("b", behind("s"), crash), M("m"))},
		{"LSB-loser", "L S B", "dialect C: a direct client's GETSET <= 1 late overwrites a token; the guard keeps the service and the bridge apart", Exclusive, 0,
			allBut(world(8, L("a", in(protocol.RedisPyFloat), early(1), delayOf(protocol.GetSet, 1)), S("b", in(protocol.RedisPyFloat), settle(2), turns(2)),
				B("x", in(protocol.RedisPyFloat), settle(2))))},
		{"SSB-wrong-clock", "S B", "a sidecar on another host, with a clock ahead by 2: the lease that it reads is too short", Violated, 0,
			world(10, S("a", host(2)), B("x"))},
		{"LSB-stale-del", "L S B", "a direct client's stale DEL removes the key: the guard keeps the service and the bridge apart; repair", Exclusive, 0,
			allBut(world(9, L("a", staleDel), S("b", settle(2), renew(1)), B("x", settle(2), renew(1))))},
		{"LSB-stale-del-no-guard", "L S B", "as LSB-stale-del without the guard and the renewal", Violated, 0,
			allBut(world(10, L("a", staleDel), S("b", settle(2), noGuard), B("x", settle(2))))},
		{"LS-skew", "L S", "a direct client beside it whose clock is right; the service's is off", Exclusive, 0,
			world(12, L("a", turns(2)), S("b", ahead(5), settle(2), turns(2)))},
		{"LS-ahead", "L S", "the direct client's clock ahead by more than the lease", Exclusive, 0,
			world(12, L("a", ahead(5), turns(2)), S("b", settle(2), turns(2)))},
		{"LLS-takeover", "L L S", "value left by a crashed direct client; a loser's GETSET <= 1 late, grace 1, settle 2", Exclusive, 0,
			world(7, L("a", early(1), delayOf(protocol.GetSet, 1)), L("b", early(1), delayOf(protocol.GetSet, 1)), S("c", grace(1), settle(2), early(1))).leftBehind(2)},
		{"LLS-takeover-longer-lease", "L L S", "as LLS-takeover with a service whose lease is longer than the direct clients': a loser's value ends before it, and nobody can be told", Violated, 0,
			world(9, L("a", early(1), delayOf(protocol.GetSet, 1)), L("b", early(1), delayOf(protocol.GetSet, 1)), S("c", grace(1), settle(2), lease(5))).leftBehind(2)},
		{"LS-takeover-no-settle", "L S", "as LLS-takeover with one direct client, and without the settling", Violated, 0,
			world(10, L("a", delayOf(protocol.GetSet, 1)), S("c", grace(1), lease(6))).leftBehind(2)},
		{"SB-failover", "S B", "failover to a replica that is behind", Violated, 6,
			world(10, S("a"), B("x")).failovers(1)},
		{"LS-old-stage", "L S", "stage legacy: clocks agree, the service's DEL comes in time", Exclusive, 0,
			world(12, L("a", turns(2)), S("b", oldStage, turns(2)))},
		{"LS-old-stage-skew", "L S", "stage legacy is as weak as it ever was: a clock ahead by more than the lease", Violated, 0,
			world(12, L("a"), S("b", oldStage, ahead(5)))},
		{"SS-old-stage-one-text", "S S", "stage legacy: two threads of one service write one text", Exclusive, 0,
			world(12, S("a", oldStage, behind("s"), turns(2)), S("b", oldStage, behind("s"), turns(2)))},
		{"LS-old-stage-no-del", "L S", "stage legacy: the service's DEL never comes; it is taken over as ever", Exclusive, 0,
			world(12, L("a", turns(2)), S("b", oldStage, release(protocol.ReleaseNever), turns(2)))},
		{"SB-old-stage", "S B", "one member still in stage legacy, the other at bridge already", Exclusive, 0,
			world(12, S("a", oldStage, crash, turns(2)), B("x", settle(2), turns(2)))},
		{"SB-uuid", "S B", "the dialect that takes its own value for expired (B), clock ahead", Exclusive, 0,
			world(10, S("a", in(protocol.JedisUUID), ahead(5), turns(2)), B("x", in(protocol.JedisUUID), settle(2), renew(1)))},
		{"SSM-float", "S S M", "a dialect that takes a vanished key for an expired one and any number for its own (C), stale DEL", Exclusive, 0,
			world(8, S("a", in(protocol.RedisPyFloat), ahead(5), staleDel), S("b", in(protocol.RedisPyFloat), ahead(-5)), M("m"))},
		{"SSM-ruby", "S S M", "dialects E and H, stale DEL", Exclusive, 0,
			world(8, S("a", in(protocol.RedisObjects), ahead(5), staleDel), S("b", in(protocol.RedisObjects), ahead(-5)), M("m"))},
	}
}
