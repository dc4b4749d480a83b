package explore

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// grantClaims: token clients whose lock is handed from one to the next. All that is not said otherwise of the
// messages: they come at any time, in any order, twice or never, and the server may take whomever it likes for
// listening. A lease of 4 ticks, and a claim as long, so that a message may be read late and still be relied on.
func grantClaims() []Claim {
	Q := func(name string, more ...option) Client {
		return modernClient(name, append([]option{queue, lease(4), claimed(4)}, more...)...)
	}
	T := func(name string, more ...option) Client { // for claims about time: it is awake when it should be
		return modernClient(name, append([]option{queue, lease(6), punctual}, more...)...)
	}
	return []Claim{
		{"MM-grant", "M M", "handed on, commands 1 late, renewal every tick; holders and waiters may crash, waiters may give up", Exclusive, 0,
			world(9, Q("m", delay(1), renew(1), crash, dies, cancel, turns(2)), Q("n", delay(1), renew(1), crash, dies, cancel)).messages()},
		{"MM-grant-again", "M M", "a waiter that gave up asks again while messages for its first wait are under way; anything may wake it", Exclusive, 0,
			world(9, Q("m", cancel, turns(2), restless), Q("n", cancel, turns(2))).messages()},
		{"MM-grant-unbounded", "M M", "commands unboundedly late", Exclusive, 0,
			world(8, Q("m", delay(Unbounded), turns(2)), Q("n", delay(Unbounded), cancel)).messages()},
		{"MM-grant-late-reply", "M M", "replies up to 3 late", Exclusive, 0,
			world(9, Q("m", replyLate(3), turns(2)), Q("n", replyLate(3))).messages()},
		{"MM-grant-silent", "M M", "one reply never comes; its command runs, late or never", Exclusive, 0,
			world(7, Q("m", delay(1), turns(2)), Q("n", delay(1), cancel)).messages().silences(1)},
		{"MM-grant-fence", "M M", "fencing numbers grow from holder to holder, whether asked for or handed over with the lock", Exclusive, 0,
			world(9, Q("m", fenced, cancel, turns(2)), Q("n", fenced, cancel)).messages().fencing()},
		{"MMM-grant", "M M M", "three; one may give up, one may crash while it waits", Exclusive, 0,
			world(7, Q("m"), Q("n", cancel), Q("o", dies)).messages()},
		{"MMM-grant-fence-mixed", "M M M", "as MMM-grant, two with fencing numbers and one that hands the lock on without", Exclusive, 0,
			world(6, Q("m", fenced), Q("n", turns(2)), Q("o", fenced)).messages().fencing()},
		{"MMM-grant-poller", "M M M", "a third client only polls, and deletes the key when it leaves", Exclusive, 0,
			world(7, Q("m"), Q("n", cancel), modernClient("o", lease(4), turns(2))).messages()},
		{"LMM-grant", "L M M", "a legacy client deletes the key, the first in line takes it past the queue and hands it on; anything may wake it", Exclusive, 0,
			world(7, legacyClient("a"), Q("m", restless, crash, turns(2)), Q("n", cancel)).messages()},
		{"LMM-grant-share", "L M M", "a legacy client polls, and the hand-overs stop for a tick after four to leave it the key", Exclusive, 0,
			world(7, legacyClient("a"), Q("m", share(1), turns(2)), Q("n", share(1))).messages()},
		{"BMM-grant", "B M M", "a bridge client polls beside two that hand the lock on; it may crash", Exclusive, 0,
			world(8, bridgeClient("x", lease(4), crash), Q("m"), Q("n")).messages()},
		{"BMM-grant-queues", "B M M", "as BMM-grant, and the bridge client stands in the queue with them", Exclusive, 0,
			world(7, bridgeClient("x", lease(4), queue), Q("m"), Q("n")).messages()},
		{"MM-grant-from-message", "M M", "a claim of 6, counted from when its message was read", Violated, 0,
			world(10, Q("m", lease(6), claimed(6), fromReply, turns(2)), Q("n", lease(6), claimed(6), fromReply)).messages()},
		{"MM-grant-overheard", "M M", "a waiter listens at a server that has become a replica: PUBLISH does not count it, and it hears", Exclusive, 0,
			world(7, Q("m", turns(2)), Q("n")).overheard()},

		// How long nobody is inside although somebody waits. A key lives through the last tick of its TTL.
		{"MMM-grant-time", "M M M", "a lost grant costs no more than its waiter's sleep (2)", Exclusive, 0,
			world(10, T("m", asksIn(2)), T("n", asksIn(2)), T("o", asksIn(2))).messages().idle(2)},
		{"MMM-grant-time-give-up", "M M M", "one may give up after it was handed the lock: two sleeps (1)", Exclusive, 0,
			world(10, T("m", asksIn(1)), T("n", asksIn(1), cancel), T("o", asksIn(1))).messages().idle(2)},
		{"MMM-grant-time-dies", "M M M", "one may crash while it waits: no more than the claim (2) and a sleep (1), and not the lease (6)", Exclusive, 0,
			world(10, T("m", asksIn(1), claimed(2)), T("n", asksIn(1), claimed(2), dies), T("o", asksIn(1), claimed(2))).messages().idle(4)},
		{"MMM-grant-time-exact", "M M M", "as MMM-grant-time-dies in a tick less", Violated, 0,
			world(10, T("m", asksIn(1), claimed(2)), T("n", asksIn(1), claimed(2), dies), T("o", asksIn(1), claimed(2))).messages().idle(3)},
	}
}

// bridgeGrantClaims: the same of bridge clients, by themselves, beside old ones, and in one queue with token clients. A
// lock is handed on with its guard, only while it is the holder's on both keys, and only within the lease of the member
// that gets it.
func bridgeGrantClaims() []Claim {
	L := legacyClient
	B := func(name string, more ...option) Client {
		return bridgeClient(name, append([]option{queue, lease(4), claimed(4)}, more...)...)
	}
	M := func(name string, more ...option) Client {
		return modernClient(name, append([]option{queue, lease(4), claimed(4)}, more...)...)
	}
	T := func(name string, more ...option) Client { // for claims about time
		return bridgeClient(name, append([]option{queue, lease(6), punctual, func(c *Client) { c.Poll = ticks(1) }}, more...)...)
	}
	S := func(name string, more ...option) Client { // settles
		return B(name, append([]option{grace(1), settle(2), renew(1), punctual}, more...)...)
	}
	late := delayOf(protocol.GetSet, 1)
	uuid := dialect(protocol.JedisUUID)
	return []Claim{
		{"BB-grant", "B B", "handed on, commands 1 late, renewal every tick; holders and waiters may crash, waiters may give up", Exclusive, 0,
			world(8, B("x", delay(1), renew(1), crash, dies, cancel, turns(2)), B("y", delay(1), renew(1), crash, dies, cancel)).messages()},
		{"BB-grant-again", "B B", "a waiter that gave up asks again while messages for its first wait are under way; anything may wake it", Exclusive, 0,
			world(8, B("x", cancel, turns(2), restless), B("y", cancel, turns(2))).messages()},
		{"BB-grant-unbounded", "B B", "commands unboundedly late", Exclusive, 0,
			world(7, B("x", delay(Unbounded), turns(2)), B("y", delay(Unbounded), cancel)).messages()},
		{"BB-grant-late-reply", "B B", "replies up to 3 late", Exclusive, 0,
			world(8, B("x", replyLate(3), turns(2)), B("y", replyLate(3))).messages()},
		{"BB-grant-silent", "B B", "one reply never comes; its command runs, late or never", Exclusive, 0,
			world(6, B("x", delay(1), turns(2)), B("y", delay(1), cancel)).messages().silences(1)},
		{"BB-grant-fence", "B B", "fencing numbers grow from holder to holder, whether asked for or handed over with the lock", Exclusive, 0,
			world(9, B("x", fenced, cancel, turns(2)), B("y", fenced, cancel)).messages().fencing()},
		{"BB-grant-polls", "B B", "one listens to no message", Exclusive, 0,
			world(8, B("x", polls, crash, turns(2)), B("y", cancel)).messages()},
		{"BBB-grant", "B B B", "three; one may give up, one may crash while it waits", Exclusive, 0,
			world(6, B("x"), B("y", cancel), B("z", dies)).messages()},
		{"BM-grant", "B M", "a bridge and a token client in one queue, commands 1 late, crash", Exclusive, 0,
			world(8, B("x", delay(1), crash, dies, cancel, turns(2)), M("m", delay(1), crash, dies, cancel, turns(2))).messages()},
		{"BBM-grant", "B B M", "three in one queue", Exclusive, 0,
			world(5, B("x", turns(2)), B("y", cancel), M("m")).messages()},
		{"BMM-grant-fence-mixed", "B M M", "as BBM-grant with fencing numbers, one that hands the lock on without", Exclusive, 0,
			world(6, B("x", fenced), M("m", turns(2)), M("n", fenced)).messages().fencing()},
		{"LBB-grant", "L B B", "legacy clock ahead by more than the lease", Exclusive, 0,
			world(7, L("a", ahead(5)), B("x", turns(2)), B("y")).messages()},
		{"LBB-grant-stale-del", "L B B", "stale DEL: a holder whose key was deleted hands nothing on", Exclusive, 0,
			world(7, L("a", staleDel), B("x", turns(2)), B("y")).messages().only(bridgeBridge)},
		{"LBB-grant-displaced", "L B B", "stale DEL; the old client enters beside a holder that renews every tick and hands nothing on: no bridge client enters beside it", Exclusive, 0,
			world(6, L("a", staleDel, turns(2)), B("x", renew(1)), B("y", renew(1))).messages().only(legacyBridge).tolerating(1, model.Bridge)},
		{"LBB-grant-takeover", "L B B", "value left by a crashed holder, taken over; GETSET <= 1 late, grace 1, settle 2, renewal every tick; waiters may give up", Exclusive, 0,
			world(7, L("a", early(1), late), S("x", cancel), S("y")).messages().leftBehind(2)},
		{"LBB-grant-uuid", "L B B", "a dialect that takes a missing key and its own value for expired; a holder may overstay; GETSET <= 1 late, settle 2", Exclusive, 0,
			world(8, L("a", uuid, early(1), late), B("x", uuid, settle(2), grace(1), turns(2)), S("y", uuid)).messages()},
		{"BB-grant-until", "B B", "one's lease ends: nothing of it stands on the server longer than its last lock", Exclusive, 0,
			world(9, B("x", turns(2)), B("y", member(2), dies)).messages().gone()},
		{"BM-grant-until", "B M", "as BB-grant-until, handed on by a token client", Exclusive, 0,
			world(9, M("m", turns(2)), B("y", member(2), dies)).messages().gone()},
		{"BB-grant-from-message", "B B", "a claim of 6, counted from when its message was read", Violated, 0,
			world(10, B("x", lease(6), claimed(6), fromReply, turns(2)), B("y", lease(6), claimed(6), fromReply)).messages()},
		{"BBB-grant-time", "B B B", "a lost grant costs no more than its waiter's sleep (1)", Exclusive, 0,
			world(8, T("x"), T("y"), T("z")).messages().idle(1)},
		{"BBB-grant-time-dies", "B B B", "one may crash while it waits: no more than the claim (2) and a sleep (1), and not the lease (6)", Exclusive, 0,
			world(9, T("x", claimed(2)), T("y", claimed(2), dies), T("z", claimed(2))).messages().idle(4)},
	}
}
