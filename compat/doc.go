// Package compat moves a fleet from the old SETNX/GETSET locks to locks of token and TTL while it
// works: the bridge lock, which both kinds respect, and a Locker that follows its fleet through all stages.
//
//	locker, err := compat.New(pool, compat.Options{Namespace: "orders"})
//	...
//	err = locker.Do(ctx, "lock.order.17", func(ctx context.Context) error {
//		return ship(ctx) // ctx ends when the lock is lost
//	})
//
// The service changes nothing in this code when the operator runs `lockmigrate stage advance`.
//
// # Three ways to hold a key
//
//	stage    value on the key                        TTL   excludes         guard
//	legacy   the dialect's expiry                    none  legacy, bridge   no
//	bridge   a far-future expiry that is a token     yes   all three        yes
//	modern   the same                                yes   bridge, modern   yes
//
// A bridge value is a random number. Every legacy reader takes it for an expiry that never comes, whatever its clock says. So it
// never takes the key over. To token clients it is a token like any other. The guard is a second key in the same cluster slot that
// legacy clients never touch: through it bridge and modern holders exclude each other even when a stale DEL has removed the key.
//
// # Guarantees
//
// Legacy clients are assumed to exclude each other as far as the old scheme can; see Options for what
// ClockLag, CommandDelay and ShortestLease assume about them.
//
// G1. Of all clients on a key one holds it: legacy beside bridge, bridge beside bridge, bridge beside modern and beside other SET
// NX PX clients. Holders that are killed are survived by the others.
//
// G2. A legacy client whose clock is ahead, by any amount, never takes a key from a bridge holder; one whose clock is behind by
// up to ClockLag never loses a live lease to one. No legacy client throws on a bridge value.
//
// G3. The holder's context ends no later than the server's TTL can, with a cause that matches ErrLost. The deadline is monotonic,
// counts from before the command that set it, and needs no reply. A release that fails, or whose caller leaves, changes nothing
// about that. Do reports the loss whatever its work returned.
//
// G4. A live legacy expiry is never overwritten and never deleted, with one exception: where the guard says that the lock is its
// own, a displaced holder deletes redis-py's value without a lease, and a waiter whom the lock was handed to overwrites it. A
// clobber after a takeover makes the bridge withdraw.
//
// G5. After a stale DEL the key is repaired within one renewal interval, and no client of this package enters meanwhile. One of
// package modern may, because it does not look at the guard. If a legacy client came in, the holder is told within one renewal interval. Its guard stays
// until it has released, or until the guard's TTL is over.
//
// G6. Stages legacy and modern are never both in use in a namespace. That holds through crashes, partitions, pauses and repeated
// commands of the operator, and when the server comes back from a snapshot that is several stages old. A member that could not
// report within its lease acquires nothing, by its own clock and by the server's.
//
// G7. A lock is renewed and released in the way it was taken, whatever the stage is by then.
//
// G8. A bridge waiter starts within 5 ms of an unmodified client's DEL, on a server with client tracking; it watches the key from
// its question on.
//
// G9. With Options.FenceTTL, Fence is larger than every earlier bridge or modern holder's. That holds on a server that keeps the
// counter. On one that has lost it, it holds if its clock has not fallen behind: see docs/guarantees.md.
//
// G10. A cancelled Acquire returns at once and leaves nothing behind; a missing reply is settled by asking again with a value
// that is nobody else's. When nothing answers, the error is ErrUnknownOutcome, with the latest end.
//
// G11. Waiters of the stages Bridge and Modern are served first come, first served, per process. A waiter that is gone keeps
// nobody out. Legacy clients get their turns beside them, if they look more often than once in Yield: the first one after 16
// times Yield, a bridge client's hold and a gap at the latest.
//
// G12. What cannot work fails at once: Ready and the first Acquire say what is wrong: no such namespace, another dialect, or
// which option does not fit its record. The record has the same reason, and the operator sees it. When the record or the Options
// are corrected the Locker works.
//
// # Not guaranteed
//
//   - Legacy beside legacy is as weak as it ever was; package legacy lists the hazards.
//   - stale-delete: no protocol on the server can stop an unmodified client's DEL. For up to one renewal
//     interval a legacy client that came in after it is inside beside a bridge holder. Fence orders the
//     writes of bridge and modern holders, not those of the legacy client.
//   - clobber: a loser's GETSET that is delayed by more than CommandDelay overwrites the key under a faultless holder. In
//     dialects that take a vanished key for an expired one, a prompt GETSET does so too. The holder is told that it lost the
//     lock, at a renewal or at the release: it cannot know better. So in those dialects bridge clients leave a key alone for 5 ms
//     after a bridge holder's release: then it is rare. TryAcquire does so too. The loser's expiry stays, and the key is idle
//     until it is over. In dialect redispy-float that may be never: redis-py's default is no lease. The displaced holder deletes
//     that one value at its release, as a redis-py holder would. A waiter whom the lock was handed to, and a sidecar that has
//     it for its service's next attempt, take it back. Over a takeover that settles, and where who was given the lock never
//     comes for it, the value stays.
//   - lost-update: a failover to a replica that never saw a lock, or the record's last change, loses it.
//   - pause: a process that is stopped past its deadline between two instructions of its own resumes with its
//     context over; only Fence stops a write that was already decided. The deadline is one TTL away. Just after a hand-over it is the
//     claim (see Waiting), and can be 1.5 s or less, until the first renewal.
//   - the order in which a legacy client and those who wait for the bridge get a key: the old client looks when
//     it looks. Options.Yield sees to it that it finds the key free now and then.
//
// # Waiting
//
// All waiters for a key in the stages Bridge and Modern stand in one queue on the server. Those of package modern do too. Each
// process has one place, and behind it a queue of its own, first in, first out. A release hands the lock to the first: it sets
// key and guard for the first one's claim, and tells it. The claim is a third of TTL, or half of the shortest lease, at most 3 s.
// So the lock is never free between two holders, and a hand-over costs the new holder no command. The claim is counted from
// before its last question. A waiter that died is passed over. One that is stopped costs its claim.
//
// Only a holder that has both keys hands the lock over, and only where no gap for old clients begins. Each place says until when
// its member's lease lasts, and no lock is handed to it later. The place counts as a use of the waiter's stage, so a stage change
// waits for it. The waiter leaves it when it hears of the change. What a waiter does not want any more it gives back. A client
// that finds the key free gives it to the first in the queue. The claims "BB-grant" and following of internal/simulate/explore
// search for two holders.
//
// An expired legacy value is taken over by the one who finds it. An unmodified client's DEL is noticed by client tracking. A
// TryAcquire takes what it finds free. Where old clients or a waiter's death leave nothing to be heard, waiters look once in 5 s.
//
// # Gaps
//
// Old clients look at a held key ten times a second. Bridge clients are woken by a release, and would leave them nothing. So
// bridge holders leave gaps: after a release the key is free for Options.Yield, and no bridge client takes it. A gap ends when
// an old client takes the key. Its DEL wakes the first bridge client that waits.
//
// When is a gap? A waiting old client sends SETNX. A release compares the server's count of SETNX with the count at the last
// look. Where it stands still there is no gap. If the count grew, old clients are waiting. Bridge clients then leave the key free
// for about as long as polling clients would have. So both sides keep about the turns that they had when all were old
// (docs/runbook.md has figures; internal/redis/scripts/bridge_yield.lua has the rule).
//
// SETNX on other keys is counted too. A gap that nobody uses doubles the time to the next one, up to 16 times Yield. Old clients
// that poll by another command get one gap in 30 s: a refused SET NX leaves nothing on its key, and the server's count of SET has
// our own in it. When one has used the gap, or where INFO is refused, gaps come without evidence. A gap only refuses: whatever
// the evidence says, it makes no two holders.
//
// # Stages
//
// The record of a namespace is two keys in Redis (internal/stages). Each member reports a few times in each of its leases: what it
// runs and what it holds. It is told the stage. What it is told is on record before it can act on it. Each command by which it
// takes or renews a lock carries the end of its lease on the server's clock. The script refuses when it comes later. Nothing of a
// silent member is left when its lease and then its longest lock are over. Its late commands change nothing about that. So the
// next stage is safe.
//
// A member is a process, and its id is drawn when it starts; Options.Member is only the name in front. So a process that follows
// a crashed one under the same name, as in a StatefulSet, works at once. What the crashed one may hold goes on counting until it
// has run out. Each report carries a bound on the server's clock. So a late one, even later than Close, does not count.
//
// A member whose Options do not fit the record reports the reason, and acquires nothing. It stands
// in the way of a step forward, with its reason, and of no step back.
//
// The check is by time and not by the record's epoch: a script cannot read the record of another slot. In a Redis Cluster the
// record and the lock's key are on different nodes. The choice has a price: the clocks of the nodes must agree within a second. A
// failover to a replica whose clock is behind lengthens leases by the difference.
//
// # Wire format
//
// For a key "orders": "orders" itself, "{orders}:guard", "{orders}:fence" (a count), "{orders}:yield" (what old clients need,
// where the key is contended); "{orders}:queue" (the waiters, as in package modern); a key with a hash tag keeps it, see
// protocol.Beside. A waiter is told on a channel of its Locker's own, "lockmigrate:wake:...". All but the legacy stage's value
// have TTLs. `lockmigrate scripts` prints the scripts.
//
// Redis 3.2 or later; client tracking needs 6. A reply that the server does not give within ReplyTimeout
// counts as lost.
//
// # Concurrency
//
// A Locker is safe for concurrent use. One goroutine renews all locks of a Locker, those that are due as one pipeline. Locks of
// stage Legacy are renewed one by one. A Locker with a Namespace runs another one. Waiting holds no pooled connection.
//
// # Tests
//
// Each guarantee has tests of this package, or of the package that is named.
//
//   - G1: TestOneHolderInEveryStage; with the real Java and Python clients TestFleets in internal/evidence/suites/fleets.
//   - G2: TestClients in internal/evidence/suites/clients; TestJavaClockBehind; TestFleets, TestBridgeValuesAreLiveToEveryReader.
//   - G3: TestLifecycle in internal/evidence/suites/lifecycle; TestARefusedReleaseIsTriedAgain and TestDoNeverHidesTheLoss in
//     internal/evidence/suites/kinds.
//   - G4: TestClobberWhileSettling, TestWithdrawingIsWhatKeepsTwoHoldersApart, TestLoserOfDialectBComesBackAsWinner;
//     the exception: TestLosersLeaveNothingForEver in internal/evidence/suites/clients, TestExamples in internal/redis/scripts.
//   - G5: TestStaleDeleteIsRepaired, TestDisplacedHolderIsTold.
//   - G6: TestNoHistoryReachesLegacyBesideModern in internal/stages; TestEachRoundTripMayFail in cmd/lockmigrate;
//     TestStageChangesUnderLoad; TestARestoredRecord, and the claim LM-forgot of internal/simulate/explore;
//     TestMemberFailsClosed, TestLateCommandsOfAMemberAreRefused.
//   - G7: TestLocksOutliveAStageChange.
//   - G8: TestBridgeWaiterWakesAtAJavaDelete; TestLegacyHolderIsWatchedAtOnce.
//   - G9: TestProcessesTakeTurns; TestExamples in internal/redis/scripts, bridge_acquire.
//   - G10: TestCancelledAcquireLeavesNothing; TestNothingAnswers in internal/evidence/suites/kinds.
//   - G11: TestWaitersOfProcessesAreServedInOrder, TestProcessesTakeTurns, TestQueueOutlivesItsWaiters;
//     TestNoGapsWithoutOldClients; TestOldClientWhenGapsAreRare.
//   - G12: TestWhatCannotWorkFailsAtOnce; TestAMisfitSaysWhy; TestAServiceOutlivesACorrectedRecord.
//   - Not guaranteed: TestBreath in internal/evidence/suites/clients; TestLosersLeaveNothingForEver in
//     internal/evidence/suites/clients.
//   - Waiting: TestProcessesTakeTurns; TestWaitersInTheQueueFollowTheStage.
//   - Gaps: TestNoGapsWithoutOldClients; TestOldClientWhenGapsAreRare; TestExamples in internal/redis/scripts, bridge_release and
//     bridge_acquire; TestGapsWithoutTheRightToCount in internal/redis/wire.
//   - Stages: TestAMemberWithAFixedNameComesBack; TestALateReportAfterGoodbye.
//   - Concurrency: TestStressTenThousandHeldLocks in package modern; TestDueRenewalsGoTogether in internal/client/lifetime.
package compat
