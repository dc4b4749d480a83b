// Package legacy is the old Redis lock: SETNX / GET / GETSET with the expiry time as the value. It speaks it exactly as the Java
// and Python services do that nobody will change. It lets a Go service join such a fleet today.
//
//	locker, err := legacy.New(pool, legacy.Options{Lease: time.Minute, Wait: 10 * time.Second})
//	...
//	err = locker.Do(ctx, "lock.orders", func(ctx context.Context) error {
//		return ship(ctx) // ctx ends when the lease does
//	})
//
// For a new fleet, or for one that may move, see the packages modern and compat.
//
// # Guarantees
//
// G1. The commands on the wire and the value's form are the same as the dialect's old clients send. Two kinds of traffic are ours
// alone: renewal and compare-and-delete, which are scripts, and a GET after a reply that never came.
//
// G2. A value is read as the old client's own parser reads it.
//
// G3. A value that the dialect cannot read is held. It is never taken over and never a panic; the wait ends in ErrForeignFormat.
//
// G4. The holder's context ends no later than the lease does, with a cause that matches ErrLost. It goes by the holder's own
// clock at the acquisition, and by a monotonic timer from then on. A release that fails, or whose caller leaves, changes nothing
// about that. Do reports the loss whatever its work returned.
//
// G5. Acquire, TryAcquire, Renew and Release come back when their context ends, whatever the server does. A lock that arrives
// after its caller has left is given back.
//
// G6. An acquisition is reported only when it is certain. Where a reply is missing, and the key cannot prove whose value it
// holds, the error is ErrUnknownOutcome. It says until when the key may stay taken.
//
// G7. After a renewal without a reply the key holds the old value or the new one. Renew and Release accept both.
//
// # Not guaranteed
//
// What the scheme itself cannot give, it does not give in Go either. Hazards by their names:
//
//   - early-takeover: a client whose clock is ahead by more than a lease has left takes it while its holder works. No holder can prevent or notice it.
//   - late-takeover: a crashed holder's lease lasts longer for clients whose clocks are behind.
//   - clobber: a client that loses the GETSET race overwrites the winner's expiry with its own, which
//     may be earlier.
//   - stale-delete: an old client that releases after its lease deletes its successor's key.
//   - overrun: the lease ends while the work goes on; Do's context tells, but only code that looks at
//     it stops.
//   - double-win: in some dialects the loser of a GETSET wins if the old value is itself expired. These can let two in
//     when a written expiry is already past.
//   - unit-mismatch, foreign-value: two dialects on one key do not exclude each other.
//   - ghost: a crashed holder's key blocks until its value is past, on every reader's own clock.
//
// `lockmigrate simulate` shows each of them; package compat closes those that a server can close.
//
// # Time and failure
//
// The holder's clock decides what is written, every reader's clock decides what it means. With Options.FollowServer it is the
// server's TIME, for hosts whose clock is not trusted; then this member is off by the round trip at most; the others are as far
// off as before.
//
// A lock whose process crashes stays until its lease ends: the key has no TTL.
//
// # Concurrency
//
// A Locker is safe for concurrent use. One goroutine watches the deadlines of all its locks, until Close. Its commands share one
// pipelined connection; dialect servicestack takes one of the pool for each attempt. Waiting holds no connection.
//
// # Tests
//
// Each guarantee has tests of this package, or of the package that is named.
//
//   - G1: TestWireParityJedisLock, TestWireParityRedisPy.
//   - G2: TestReadingsMatchTheRealParsers.
//   - G3: TestForeignValueIsHeld.
//   - G4: TestLifecycle in internal/evidence/suites/lifecycle; TestARefusedReleaseIsTriedAgain and TestDoNeverHidesTheLoss in
//     internal/evidence/suites/kinds.
//   - G5: TestARefusedGiveBackIsTriedAgain in internal/evidence/suites/kinds.
//   - G6: TestLostReplies.
//   - G7: TestLifecycle.
package legacy
