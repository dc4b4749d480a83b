// Package handover moves a fleet from one lock to another while it works: to another server, another library, another key or another
// technology. Between "everybody holds Old" and "everybody holds New" comes a stage in which everybody holds both.
//
//	old, err := compat.New(poolA, compat.Options{Namespace: "orders"}) // any lockmigrate.Locker
//	...
//	new, err := modern.New(poolB, modern.Options{})
//	...
//	locker, err := handover.New(poolB, handover.Options{Namespace: "orders-to-b", Old: old, New: new})
//
// From then on the program is the same at every stage. The operator creates the record once, on the server that stays, and moves it:
//
//	lockmigrate stage init --handover --namespace orders-to-b --match 'lock.order.*' --old redis://a:6379/0 --redis redis://b:6379/0 --execute
//	lockmigrate stage advance --namespace orders-to-b --to both --wait --redis redis://b:6379/0 --execute
//
// A lock of another library becomes a Locker by Wrap.
//
// # Guarantees
//
//  1. A holder at stage old, or at stage new, and a holder at stage both exclude each other, because they have one lock in common. Stages old and new are
//     never in use together: the record's moves wait for every member (TestStagesForthAndBack).
//  2. All members take Old first and give New back first, so no two of them wait for each other (TestOneOrder).
//  3. A lock reaches its caller only while the member's lease lasts. What was acquired later is given back: TryAcquire returns
//     ErrStage, Acquire begins anew when the member has reported (TestNothingAfterTheLease).
//  4. A holder's context ends when either half is lost, and at the latest at the end of the member's lease (TestEitherHalfIsTold,
//     TestTheLeaseEndsTheHolder). Where Old is lost while New is waited for, Acquire begins anew and TryAcquire returns ErrNotAcquired
//     (TestAHalfLostBeforeTheOther).
//  5. Members whose halves are not those of the record acquire nothing, and `lockmigrate stage` shows them as UNFIT (TestOtherHalvesAreUnfit).
//  6. Where both halves draw fencing tokens, the token at stage both is larger than both halves' earlier ones, whatever the servers' clocks say; and so are
//     those that New draws afterwards for that key (TestFencesGrowAcrossTheServers).
//  7. A stage that moves costs a waiter its place in the queue and no more: it gives back what it has and begins anew (TestWaitersFollowTheStage).
//
// # Not guaranteed
//
// A process that locks by Old alone, without this package, is excluded at stages old and both, and by nobody at stage new. Keys that
// nobody locked at stage both have no common order of fencing tokens where Old's clock was ahead of New's.
//
// # Time and failure
//
// Lockers of others carry no bound in their commands. So the member is the bound, by its own monotonic clock: Options.Lease after its last report that
// came through it tells its holders that their locks are lost. A record that cannot be reached for that long costs the locks that are held; nothing
// less does.
package handover
