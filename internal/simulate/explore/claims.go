package explore

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Claims is the whole table: what an exhaustive study of the protocol showed, and more.
func Claims() []Claim {
	var all []Claim
	for _, group := range [][]Claim{legacyClaims(), bridgeClaims(), staleClaims(), queueClaims(), yieldClaims(), grantClaims(), bridgeGrantClaims(), stageClaims(), recordClaims(), releaseClaims(), dialectClaims(), sidecarClaims(), handoverClaims()} {
		all = append(all, group...)
	}
	return all
}

// legacyClaims: the old scheme beside itself.
func legacyClaims() []Claim {
	L := legacyClient
	return []Claim{
		{"LL-agree", "L L", "clocks agree, no overrun", Exclusive, 0,
			world(14, L("a", turns(2)), L("b", turns(2)))},
		{"LL-ahead", "L L", "one clock ahead by more than the lease", Violated, 8,
			world(14, L("a"), L("b", ahead(5)))},
		{"LL-overrun", "L L", "a holder overruns its lease", Violated, 8,
			world(14, L("a", overrun(3)), L("b"))},
		{"LLL-stale-del", "L L L", "a DEL arrives after the lease", Violated, 0,
			world(14, L("a", staleDel), L("b"), L("c"))},
		{"LLL-crash", "L L L", "a holder crashes, clocks agree, no delay", Exclusive, 0,
			world(12, L("a"), L("b"), L("c")).leftBehind(1)},
		{"LLL-clobber", "L L L", "value left by a crashed holder; a loser computed its expiry 2 ticks before the winner; clocks agree, no overrun", Violated, 0,
			world(14, L("a"), L("b", delayOf(protocol.GetSet, 2)), L("c")).leftBehind(1)},
		{"LL-step", "L L", "a clock is stepped forward while a lock is held", Violated, 8,
			world(14, L("a"), L("b", stepBy(5)))},
	}
}

// bridgeClaims: bridge holders beside legacy ones whose clocks, delays and crashes vary.
func bridgeClaims() []Claim {
	L, B := legacyClient, bridgeClient
	late := func(n Ticks) option { return delayOf(protocol.GetSet, n) }
	return []Claim{
		{"LB-ahead", "L B", "legacy clock ahead by more than the lease", Exclusive, 0,
			world(14, L("a", ahead(5), turns(2)), B("x", settle(2), turns(2)))},
		{"LB-truthful", "L B", "as LB-ahead, but the bridge writes its true expiry", Violated, 8,
			world(14, L("a", ahead(5)), B("x", settle(2), truthful))},
		{"LB-behind", "L B", "legacy clock behind by 2, grace 0, no settle", Violated, 8,
			world(14, L("a", ahead(-2)), B("x"))},
		{"LB-behind-crash", "L B", "legacy clock behind by 2, grace 0, no settle, holder may crash", Violated, 8,
			world(14, L("a", ahead(-2), crash), B("x"))},
		{"LB-behind-grace", "L B", "legacy clock behind by 2, grace 2, holder may crash", Exclusive, 0,
			world(14, L("a", ahead(-2), crash, turns(2)), B("x", grace(2), turns(2)))},
		// A loser's GETSET that is delayed by d makes the winner's lease shorter by up to d. Where the
		// claim is about the bridge, legacy holders therefore leave that much earlier: early(d).
		{"LLB-crash", "L L B", "a holder may crash; loser's GETSET <= 1 late, grace 1, settle 2, renewal every tick", Exclusive, 0,
			world(9, L("a", crash, early(1), late(1)), L("b", early(1), late(1)), B("x", grace(1), settle(2), renew(1), punctual)).leftBehind(2)},
		{"LLB-crash-put-back", "L L B", "as LLB-crash, the bridge puts its value back", Exclusive, 0,
			world(9, L("a", crash, early(1), late(1)), L("b", early(1), late(1)), B("x", grace(1), settle(2), renew(1), punctual, putBacks(3))).leftBehind(2)},
		{"LLB-put-back-paused", "L L B", "as LLB-crash-put-back without a crash, and the bridge is paused while it settles", Violated, 0,
			world(9, L("a", crash, early(1), late(1)), L("b", early(1), late(1)), B("x", grace(1), settle(2), renew(1), putBacks(3))).leftBehind(2)},
		{"LLB-withdraw-paused", "L L B", "as LLB-put-back-paused, but the bridge withdraws instead of putting back", Exclusive, 0,
			world(8, L("a", early(1), late(1)), L("b", early(1), late(1)), B("x", grace(1), settle(2), renew(1))).leftBehind(2)},
		{"LLB-late-loser", "L L B", "put back; a loser's delay (2) and settle (2) exceed the lease (3)", Violated, 0,
			world(12, L("a"), L("b", late(2), once), B("x", grace(2), settle(2), renew(1), punctual, putBacks(3))).leftBehind(3).only(legacyBridge)},
		{"LLB-late-loser-lease-5", "L L B", "as LLB-late-loser with lease 5", Exclusive, 0,
			world(13, L("a", lease(5)), L("b", lease(5), late(2), once), B("x", lease(5), grace(2), settle(2), renew(1), punctual, putBacks(3))).leftBehind(3).only(legacyBridge)},
		{"LLB-late-loser-withdraws", "L L B", "as LLB-late-loser with settle 3, but the bridge withdraws instead of putting back", Exclusive, 0,
			world(10, L("a", early(2)), L("b", early(2), late(2)), B("x", grace(2), settle(3), renew(1), punctual)).leftBehind(3)},
		{"LLB-free-clobber", "L L B", "the bridge takes a free key without settling, a loser's GETSET (<= 2) comes after; no renewal", Violated, 0,
			world(12, L("a", early(2)), L("b", early(2), late(2)), B("x", lease(6), grace(2), settle(3))).leftBehind(3)},
		{"LLB-unbounded", "L L B", "unbounded delay between GET and GETSET", Violated, 0,
			world(12, L("a"), L("b", late(Unbounded)), B("x", settle(2), renew(1))).leftBehind(1).only(legacyBridge)},
		{"LLB-no-settle", "L L B", "no settle, no renewal, a loser's GETSET delayed by 1", Violated, 0,
			world(12, L("a"), L("b", late(1)), B("x")).leftBehind(1).only(legacyBridge)},
		{"LB-takeover", "L B", "value left by a crashed holder; a loser's GETSET <= 1 late, grace 1, settle 2, no renewal", Exclusive, 0,
			world(10, L("a", late(1)), B("x", grace(1), settle(2), lease(6))).leftBehind(2)},
		{"LB-takeover-no-settle", "L B", "as LB-takeover without the settling", Violated, 0,
			world(10, L("a", late(1)), B("x", grace(1), lease(6))).leftBehind(2)},
		{"LLB-renew", "L L B", "no settle, renewal every tick, a loser's GETSET <= 2 late, lease 3", Exclusive, 0,
			world(12, L("a", early(2)), L("b", early(2), late(2)), B("x", grace(2), renew(1))).leftBehind(3)},
		{"LLB-renew-old-clobber", "L L B", "as LLB-renew, <= 3 late: the clobber's lease is over before the next renewal", Violated, 0,
			world(12, L("a", early(3)), L("b", early(3), late(3)), B("x", grace(3), renew(1))).leftBehind(4)},
		{"LLB-renew-late", "L L B", "renewal every 2 ticks, lease 2", Violated, 0,
			world(12, L("a", lease(2), early(1)), L("b", lease(2), early(1), late(1)), B("x", grace(1), renew(2))).leftBehind(2)},
		{"LLB-clobber", "L L B", "a clobber shortened the winner's value by 2, grace 0", Violated, 0,
			world(12, L("a"), L("b", late(2), once), B("x", renew(1))).leftBehind(1).only(legacyBridge)},
		{"LLB-clobber-grace", "L L B", "as LLB-clobber with grace 2", Exclusive, 0,
			world(12, L("a"), L("b", late(2), once), B("x", grace(2), renew(1))).leftBehind(3).only(legacyBridge)},
		{"LLB-clobber-legacy", "L L B", "as LLB-clobber-grace, and a legacy client takes the shortened lease", Violated, 0,
			world(14, L("a"), L("b", late(2), turns(2)), B("x", grace(2), renew(1))).leftBehind(3).only(legacyLegacy)},
		{"LLB-clobber-cascade", "L L B", "as LLB-clobber-legacy; then a legacy DEL lets the bridge in", Violated, 0,
			world(14, L("a"), L("b", late(2), turns(2)), B("x", grace(2), renew(1))).leftBehind(3).only(legacyBridge)},
	}
}

// staleClaims: what a DEL does that arrives after its lease.
func staleClaims() []Claim {
	L, B, M := legacyClient, bridgeClient, modernClient
	return []Claim{
		{"LBB-stale-del-no-guard", "L B B", "stale DEL, no guard", Violated, 0,
			world(12, L("a", staleDel), B("x", settle(2), noGuard), B("y", settle(2), noGuard)).only(bridgeBridge)},
		{"LBB-stale-del", "L B B", "stale DEL, guard", Exclusive, 0,
			world(12, L("a", staleDel), B("x", settle(2)), B("y", settle(2))).only(bridgeBridge)},
		{"LLB-stale-del", "L L B", "stale DEL", Violated, 0,
			world(12, L("a", staleDel), L("b"), B("x", settle(2))).only(legacyBridge)},
		{"LLB-stale-del-noticed", "L L B", "stale DEL, a legacy client enters beside a bridge that renews every tick: over within a tick", Exclusive, 0,
			world(12, L("a", staleDel), L("b"), B("x", settle(2), renew(1))).only(legacyBridge).tolerating(1, model.Legacy)},
		{"LLB-stale-del-unnoticed", "L L B", "stale DEL, the bridge enters beside a legacy holder: no renewal can notice", Violated, 0,
			world(12, L("a", staleDel), L("b"), B("x", settle(2), renew(1))).only(legacyBridge).tolerating(1, model.Bridge)},
		{"LBB-stale-del-repair", "L B B", "stale DEL, renewal repairs the key", Exclusive, 0,
			world(12, L("a", staleDel), B("x", settle(2), renew(1)), B("y", settle(2), renew(1))).only(bridgeBridge)},
		{"LBM-stale-del", "L B M", "stale DEL", Violated, 0,
			world(12, L("a", staleDel), B("x", settle(2)), M("m")).only(bridgeModern)},
	}
}

// queueClaims: bridge clients that take turns, and token clients in theirs. A queue may lose its order, never
// the lock: entries outlive their clients, and a client whose turn it is may be passed over at any time.
func queueClaims() []Claim {
	L, B, M := legacyClient, bridgeClient, modernClient
	return []Claim{
		{"BB-queue", "B B", "waiting in the queue; renewal every tick, commands 1 late, crash", Exclusive, 0,
			world(10, B("x", queue, polls, crash, delay(1), renew(1)), B("y", queue, polls, crash, delay(1), renew(1)))},
		{"BBB-queue", "B B B", "waiting in the queue, crash", Exclusive, 0,
			world(7, B("x", queue, polls, crash), B("y", queue, polls, crash), B("z", queue, polls))},
		{"BB-queue-mixed", "B B", "one waits in the queue, the other knows none; crash, commands 1 late", Exclusive, 0,
			world(9, B("x", queue, polls, crash, delay(1)), B("y", crash, delay(1)))},
		{"BB-queue-fence", "B B", "fencing numbers grow from holder to holder through the queue", Exclusive, 0,
			world(10, B("x", queue, polls, fenced, crash, turns(2)), B("y", queue, polls, fenced, crash)).fencing()},
		{"BB-queue-silent", "B B", "waiting in the queue; one reply never comes, its command runs late or never", Exclusive, 0,
			world(8, B("x", queue, polls, delay(1)), B("y", queue, polls, delay(1))).silences(1)},
		{"BM-queue", "B M", "a bridge client in its queue beside a token client; crash", Exclusive, 0,
			world(10, B("x", queue, polls, crash, turns(2)), M("m", crash, turns(2)))},
		{"LB-queue-ahead", "L B", "legacy clock ahead by more than the lease, the bridge waits in the queue", Exclusive, 0,
			world(12, L("a", ahead(5), turns(2)), B("x", queue, polls, settle(2), turns(2)))},
		{"LBB-queue-stale-del", "L B B", "stale DEL, guard, both bridge clients wait in the queue", Exclusive, 0,
			world(8, L("a", staleDel), B("x", queue, polls, settle(2)), B("y", queue, polls, settle(2))).only(bridgeBridge)},
		{"LBB-queue-stale-del-no-guard", "L B B", "as LBB-queue-stale-del without the guard: the queue excludes nobody", Violated, 0,
			world(12, L("a", staleDel), B("x", queue, polls, settle(2), noGuard), B("y", queue, polls, settle(2), noGuard)).only(bridgeBridge)},
		{"LBB-queue-takeover", "L B B", "value left by a crashed holder, taken over in turn; GETSET <= 1 late, grace 1, settle 2, renewal every tick", Exclusive, 0,
			world(7, L("a", early(1), delayOf(protocol.GetSet, 1)), B("x", queue, polls, grace(1), settle(2), renew(1), punctual), B("y", queue, polls, grace(1), settle(2), renew(1), punctual)).leftBehind(2)},
		{"MM-queue", "M M", "token clients in their queue; renewal every tick, commands 1 late, crash", Exclusive, 0,
			world(9, M("m", queue, crash, delay(1), renew(1)), M("n", queue, crash, delay(1), renew(1)))},
		{"MM-queue-silent", "M M", "as MM-queue without crash and renewal; one reply never comes, its command runs late or never", Exclusive, 0,
			world(9, M("m", queue, delay(1)), M("n", queue, delay(1))).silences(1)},
		{"LM-queue-ahead", "L M", "legacy clock ahead by more than the lease; a token client in its queue takes the key when the legacy client has deleted it", Exclusive, 0,
			world(14, L("a", ahead(5), turns(2)), M("m", queue, crash, delay(1), turns(2)))},
		{"LMM-queue", "L M M", "as LM-queue-ahead with two in the queue; one may crash while its entry stands there", Exclusive, 0,
			world(10, L("a", ahead(5)), M("m", queue, crash, turns(2)), M("n", queue))},
		{"LMM-queue-silent", "L M M", "as LMM-queue without a crash, and all clocks agree; one reply never comes; its command runs, late or never", Exclusive, 0,
			world(8, L("a"), M("m", queue, delay(1)), M("n", queue)).silences(1)},
	}
}

// yieldClaims: bridge holders that leave the key free for old clients now and then. A gap only refuses, and it ends.
func yieldClaims() []Claim {
	L, B := legacyClient, bridgeClient
	refused := func(m *Model) *Model { m.NoStats = true; return m }
	return []Claim{
		{"LB-yield", "L B", "gaps of 2 ticks by evidence; legacy clock ahead by more than the lease, crash of the bridge", Exclusive, 0,
			world(10, L("a", ahead(5), turns(2)), B("x", yields(2), settle(2), crash, turns(2)))},
		{"LBB-yield", "L B B", "INFO refused, gaps of 2 ticks without evidence, both bridge clients wait in the queue", Exclusive, 0,
			refused(world(7, L("a"), B("x", queue, yields(2)), B("y", queue, yields(2))))},
		{"LBB-yield-stale-del", "L B B", "gaps of 1 tick, stale DEL, guard", Exclusive, 0,
			world(8, L("a", staleDel), B("x", yields(1), settle(2)), B("y", yields(1), settle(2))).only(bridgeBridge)},
		{"BB-yield-idle", "B B", "INFO refused, gaps of 2 ticks without evidence: nobody waits for a free key for more than 4 ticks", Exclusive, 0,
			refused(world(12, B("x", yields(2), punctual, turns(2)), B("y", yields(2), punctual, turns(2)))).idle(4)},
		{"LB-yield-idle", "L B", "as BB-yield-idle by evidence, beside a legacy client", Exclusive, 0,
			world(12, L("a", punctual, turns(2)), B("x", yields(2), punctual, turns(2))).idle(4)},
	}
}

// stageClaims: the stages beside each other, and the token locks by themselves.
func stageClaims() []Claim {
	L, B, M := legacyClient, bridgeClient, modernClient
	uuid := dialect(protocol.JedisUUID)
	return []Claim{
		{"BM", "B M", "crash, no legacy client", Exclusive, 0,
			world(12, B("x", crash, turns(2), renew(1)), M("m", crash, turns(2), renew(1)))},
		{"BBM", "B B M", "crash, no legacy client, delay 1", Exclusive, 0,
			world(10, B("x", crash, delay(1)), B("y", crash, delay(1)), M("m", crash, delay(1)))},
		{"BB-renew", "B B", "renewal every tick, commands up to 2 late, crash", Exclusive, 0,
			world(10, B("x", crash, delay(2), renew(1)), B("y", crash, delay(2), renew(1)))},
		{"MM-renew", "M M", "renewal every tick, commands up to 2 late, crash", Exclusive, 0,
			world(10, M("m", crash, delay(2), renew(1)), M("n", crash, delay(2), renew(1)))},
		{"MM-unbounded", "M M", "commands unboundedly late", Exclusive, 0,
			world(9, M("m", delay(Unbounded), renew(2)), M("n", delay(Unbounded), renew(2)))},
		{"MM-late-reply", "M M", "replies up to 4 ticks late", Exclusive, 0,
			world(12, M("m", replyLate(4)), M("n", replyLate(4)))},
		{"MM-from-reply", "M M", "as MM-late-reply, validity counted from the reply", Violated, 4,
			world(12, M("m", replyLate(4), fromReply), M("n", replyLate(4), fromReply))},
		{"BB-late-reply", "B B", "replies up to 4 ticks late", Exclusive, 0,
			world(12, B("x", replyLate(4)), B("y", replyLate(4)))},
		{"BB-no-deadline", "B B", "a holder that does not watch its own deadline, no renewal", Violated, 4,
			world(12, B("x", noDeadline), B("y"))},
		{"BB-silent", "B B", "one reply never comes; its command runs, late or never", Exclusive, 0,
			world(9, B("x", delay(1), renew(2)), B("y", delay(1), renew(2))).silences(1)},
		{"MM-silent", "M M", "one reply never comes; its command runs, late or never", Exclusive, 0,
			world(9, M("m", delay(1), renew(2)), M("n", delay(1), renew(2))).silences(1)},
		{"BM-fence", "B M", "fencing numbers grow from holder to holder, crash, commands 1 late", Exclusive, 0,
			world(10, B("x", crash, fenced, delay(1), turns(2)), M("m", crash, fenced, delay(1))).fencing()},
		{"BM-fence-late-reply", "B M", "as BM-fence with replies up to 4 late", Exclusive, 0,
			world(10, B("x", fenced, replyLate(4)), M("m", fenced, replyLate(4))).fencing()},
		{"RR", "M M", "Redisson's lock; crash, commands 1 late", Exclusive, 0,
			world(9, M("m", redisson, crash, delay(1)), M("n", redisson, delay(1)))},
		{"RR-renew", "M M", "as RR with renewal every tick, no crash, commands up to 2 late", Exclusive, 0,
			world(9, M("m", redisson, delay(2), renew(1)), M("n", redisson, delay(2), renew(1)))},
		{"RR-silent", "M M", "as RR without a crash; one reply never comes; its command runs, late or never", Exclusive, 0,
			world(9, M("m", redisson, delay(1)), M("n", redisson, delay(1))).silences(1)},
		{"BR", "B M", "a bridge beside Redisson's lock: a hash is foreign to it, so held", Exclusive, 0,
			world(9, B("x", turns(2)), M("m", redisson, turns(2)))},
		{"LL-failover", "L L", "failover to a replica that is behind", Violated, 6,
			world(10, L("a"), L("b")).failovers(1)},
		{"BB-failover", "B B", "failover to a replica that is behind", Violated, 6,
			world(10, B("x"), B("y")).failovers(1)},
		{"LM", "L M", "legacy-safe token, no crash of L, legacy clock ahead", Exclusive, 0,
			world(14, L("a", ahead(5), turns(2)), M("m", turns(2)))},
		{"LM-plain-throws", "L M", "a token that is no number: the legacy client throws", Exclusive, 0,
			world(14, L("a", turns(2)), M("m", plain, turns(2)))},
		{"LM-plain-stolen", "L M", "as LM-plain-throws, a dialect that takes what it cannot read for expired", Violated, 6,
			world(14, L("a", uuid), M("m", plain))},
		{"LM-number-stolen", "L M", "that dialect beside a plain number", Violated, 6,
			world(14, L("a", uuid), M("m"))},
		{"LB-uuid", "L B", "that dialect beside a bridge that wraps its number", Exclusive, 0,
			world(12, L("a", uuid, turns(2), ahead(5)), B("x", uuid, settle(2), renew(1), turns(2)))},
		{"LLM-stale-del", "L L M", "stale DEL", Violated, 0,
			world(12, L("a", staleDel), L("b"), M("m"))},
	}
}
