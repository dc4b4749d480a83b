package explore

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// recordClaims: what is known of the old clients is corrected while members work. Old clients that need the correction begin when it is
// in effect: every member has reported that it runs it, or has run out. Any member may be stopped at any moment, and reports at any other.
func recordClaims() []Claim {
	L, B := legacyClient, bridgeClient
	late := func(n Ticks) option { return delayOf(protocol.GetSet, n) }
	lag := func(r Record, options ...option) *Model {
		return world(12, L("a", ahead(-2), after), B("x", append(options, turns(2), corrected(grace(2)))...)).under(r)
	}
	slower := func(r Record) *Model {
		return world(10, L("a", after, late(1)), B("x", lease(6), crash, corrected(grace(1), settle(2)))).leftBehind(2).under(r)
	}
	shorter := func(options ...option) *Model {
		return world(10, L("a", lease(3), staleDel), L("b", lease(2), after),
			B("x", append(options, lease(6), renew(4), inTime, corrected(renew(1)))...)).under(Record{Lease: 2}).only(legacyBridge).tolerating(1, model.Legacy)
	}
	uuid := dialect(protocol.JedisUUID)
	forgot := func(r Record) *Model { // the record is back at legacy, and the keys of the locks are gone
		return world(10, L("a", goLegacy, after, crash), B("m", grace(-1), lease(2), renew(1), crash, corrected())).under(r).failovers(1)
	}
	other := func(r Record) *Model {
		return world(11, L("a", uuid, after), B("x", lease(2), delay(1), corrected()), B("y", uuid, settle(1), lease(2), after)).under(r)
	}
	return []Claim{
		{"LB-set-lag", "L B", "clock lag corrected from 0 to 2; an old client behind by 2 begins when it is in effect", Exclusive, 0,
			lag(Record{Lease: 3})},
		{"LB-set-lag-late", "L B", "as LB-set-lag, and a command of the member comes late, after its lease too", Exclusive, 0,
			lag(Record{Lease: 2}, delay(Unbounded))},
		{"LB-set-lag-at-once", "L B", "as LB-set-lag, but the old client does not wait for the member's lease", Violated, 0,
			lag(Record{Lease: 3, AtOnce: true})},
		{"LB-set-lag-hasty", "L B", "as LB-set-lag, but the member says that it follows while an attempt from before is under way", Violated, 0,
			lag(Record{Lease: 3}, hasty)},
		{"LBB-set-lag", "L B B", "as LB-set-lag with two members, one may follow before the other; crash", Exclusive, 0,
			world(6, L("a", ahead(-2), after), B("x", once, corrected(grace(2))), B("y", crash, once, corrected(grace(2)))).under(Record{Lease: 2})},
		{"LB-unset-lag", "L B", "clock lag corrected from 2 to 0 when the old client behind by 2 is stopped; it may have crashed", Exclusive, 0,
			world(12, L("a", ahead(-2), crash, before), B("x", grace(2), turns(2), corrected(grace(0)))).under(Record{Lease: 3})},
		{"LB-unset-lag-at-once", "L B", "as LB-unset-lag while it works", Violated, 0,
			world(12, L("a", ahead(-2), before), B("x", grace(2), turns(2), corrected(grace(0)))).under(Record{Lease: 3, AtOnce: true})},
		{"LB-set-delay", "L B", "command delay corrected from 0 to 1: grace and settling; then an old client with a GETSET 1 late; value left by a crashed holder, crash", Exclusive, 0,
			slower(Record{Lease: 2})},
		{"LB-set-delay-at-once", "L B", "as LB-set-delay, but the old client does not wait for the member's lease", Violated, 0,
			slower(Record{Lease: 2, AtOnce: true})},
		{"LLB-set-shortest", "L L B", "shortest lease corrected: renewal every tick instead of every 4; stale DEL: over within a tick", Exclusive, 0,
			shorter()},
		{"LLB-set-shortest-as-taken", "L L B", "as LLB-set-shortest, but a lock that is held is renewed as it was taken", Violated, 0,
			shorter(asTaken)},
		{"BB-set-mixed", "B B", "every time of the record corrected, one member follows before the other; crash, commands 1 late", Exclusive, 0,
			world(6, B("x", crash, delay(1), renew(2), corrected(grace(2), settle(1), renew(1), yields(1))),
				B("y", crash, grace(2), settle(1), renew(1), yields(1), corrected(renew(2), grace(0), settle(0), yields(0)))).under(Record{Lease: 2})},
		{"LBB-set-dialect", "L B B", "dialect corrected from jedis-ms to jedis-uuid when every member has run out; then a member and an old client of it; commands 1 late", Exclusive, 0,
			other(Record{Lease: 2, Alone: true})},
		{"LM-forgot", "L M", "the server loses two stages and a lock: a member at stage legacy begins when what runs modern has run out; crash", Exclusive, 0,
			forgot(Record{Lease: 3, Alone: true})},
		{"LM-forgot-at-once", "L M", "as LM-forgot, but it begins with what the server says", Violated, 0,
			forgot(Record{Lease: 3, Alone: true, AtOnce: true})},
		{"LBB-set-dialect-at-once", "L B B", "as LBB-set-dialect while a member of the other dialect works", Violated, 0,
			other(Record{Lease: 2, Alone: true, AtOnce: true})},
	}
}
