// Package modern is a Redis lock of token and TTL: the lock that a fleet moves to.
//
//	locker, err := modern.New(pool, modern.Options{})
//	...
//	err = locker.Do(ctx, "orders", func(ctx context.Context) error {
//		return ship(ctx) // ctx ends when the lock is lost
//	})
//
// A lock is a key that holds a random token and has a TTL: SET key token NX PX ttl. It is renewed while it is held, and given back
// by token. Waiters get it first come, first served. It and any other client that takes the key with SET NX PX exclude each
// other, in whatever language.
//
// # Guarantees
//
// G1. While the server keeps its keys, at most one client holds a lock that is renewed or within its TTL.
//
// G2. The holder's context ends by a deadline of the process's own monotonic clock, with a cause that matches ErrLost. The
// deadline counts from before the last successful renewal was sent, whether or not any reply arrives; earlier when the server
// says that the key is not ours. A release that fails, or whose caller leaves, changes nothing about that. Do reports the loss
// whatever its work returned.
//
// G3. A release deletes, and a renewal extends, only what holds our token.
//
// G4. Every call comes back when its context ends, whatever the server does. What it no longer wants is given back behind it, by
// token.
//
// G5. A lost reply is settled by asking. What cannot be settled is ErrUnknownOutcome, with the time until which the key may stay
// taken.
//
// G6. Waiters get the lock first come, first served within a process, and in turn among processes. The key is never free between
// a holder and the next one in line. A waiter that has died is passed over at once if its connection has gone too, or after three
// seconds; several in a row that are stopped but connected are noticed when the next one looks, within 30 s. Where an old client
// held the key and deletes it, the first in line takes it with one SET. It watches the key from its question on.
//
// G7. Whatever messages and connections are lost, a waiter looks at the key after the holder's TTL, and every 30 s.
//
// G8. With Options.FenceTTL every acquisition of a key has a larger token than all before. The counter's TTL changes nothing
// about that; on a server that has lost the counter, if its clock has not fallen behind.
//
// G9. A failed TryAcquire is one command. One goroutine does all renewals of a Locker, over a connection that only the Locker
// uses. They have room of their own in it. Of all goroutines that wait for a key, one talks to the server.
//
// G10. No client's wall clock is sent to the server or compared with anything.
//
// # Not guaranteed
//
//   - lost-update: a failover to a replica that never saw the lock lets a second holder in. Replicas
//     (WAIT) makes that rarer; package modern/quorum survives the loss of a minority of servers. Fencing tokens, checked by the store, keep out the
//     overtaken holder's writes. The masters' clocks must differ by less than the failover took. A flush of the server is the same.
//   - pause: a process that stops (garbage collection, a suspended machine) past its lease runs on until it looks at its context. On Linux the monotonic clock stands still while the whole
//     machine is suspended: after that only the server's word, at the next renewal, tells.
//   - Among processes the turns go by process, not by goroutine: a process with a hundred waiters gets as
//     many turns as one with a single waiter.
//   - Clients that only poll find a key free only between two contentions, or in the share that Options.Yield leaves.
//   - unknown-outcome: a command that was lost on its way can arrive after everything was settled. It leaves the token on the key
//     for one TTL.
//
// # Time and failure
//
// TTLs are relative and counted by the server. The server's clock is read for fencing tokens, for the
// tickets of its queue and for Yield; setting it back delays nobody by more than that. Deadlines count
// on the process's monotonic clock. A waiter trusts a grant without asking only while half of its claim is certainly left by that clock.
//
// # Connections
//
// A Locker connects when it is used: a shared pipelined connection for the commands of all goroutines and for the renewals; a pair
// for waiting on each master. The pair is closed when nobody has waited for a while. Where ReplyTimeout is more than a quarter of
// TTL, the renewals have a connection of their own. They are made by the pool's Dial, outside of the pool: users of the pool
// cannot starve them, nor they the pool. See lockmigrate.Dialer.
//
// A server may say that it is the wrong one: READONLY after a failover, NOREPLICAS, LOADING, MASTERDOWN, CLUSTERDOWN, MOVED. Its connection is
// then given up, and the command goes out once more over a new one. That leads to the new master where a name or a proxy stands
// for it by then. A waiter goes on until its context or Options.Wait is over.
//
// # Concurrency
//
// Locker and its locks are safe for concurrent use. A Locker starts one goroutine for
// renewals with its first lock, and one or two for each of its connections; Close ends them.
//
// # Wire format
//
//   - key: the token, with a TTL. By default a number n with 5*10^18 <= n < 9.2*10^18: to clients of the old scheme an expiry in the far future.
//   - {key}:queue: those in line, a sorted set of "<token> <claim ms> <channel>" by ticket. The channel is "-" for one
//     that listens on none.
//   - {key}:fence: the fencing counter. {key}:share: when hand-overs pause.
//   - lockmigrate:wake:<locker>: the channel of one Locker: "<token> <ticket> <fence>" is a grant, and
//     "<token> head" tells a waiter that it is the first in line.
//
// The names beside a key are in its cluster slot; for a key with a hash tag or braces they look a little
// different. Package modern/redisson has RLock's own format. The scripts are in internal/redis/scripts, each with its contract.
//
// On a cluster a Locker works where its connections lead to the node that has the keys: one Locker for
// each master. Pub/sub counts the listeners of one node.
//
// # Choices
//
// A queue on the server with direct hand-over was measured against waking the first waiter and letting it compete
// (Options.Unfair). Sections of 1 ms, redis 7.0.15, two cores:
//
//	BENCH_ASIDE=1 internal/evidence/bench/run 'Turns/clients=(4x4|32x1)'
//
// In 4 processes of 4 workers the worker with the most turns had 1.02 times the fewest. In 16 processes of one worker it was the
// same; waking alone left workers without a single turn in both. It took 6 and 17 round trips an acquisition instead of 2. A
// ticket that waiters wait for by polling or by backoff was not built: each hand-over would cost a look by every waiter.
//
// # Tests
//
// Each guarantee has tests of this package, or of the package that is named.
//
//   - G1: TestGrantIsNotOverheard; TestLifecycle in internal/evidence/suites/lifecycle; on real servers TestProcessesTakeTurns in
//     package compat; beside others TestFleets in internal/evidence/suites/fleets.
//   - G2: TestLifecycle; TestARefusedReleaseIsTriedAgain and TestDoNeverHidesTheLoss in internal/evidence/suites/kinds.
//   - G3: TestLifecycle; TestExamples in internal/redis/scripts.
//   - G4: TestLifecycle.
//   - G5: TestFault04LostReplies; TestNothingAnswers in internal/evidence/suites/kinds.
//   - G6: TestProcessesTakeTurns in package compat; TestFleets; TestOldClientsDeletionIsOneSetAway; TestOldClientIsWatchedAtOnce.
//   - G7: TestFault08LostWakeUp; TestFaults in internal/evidence/suites/faults, FLUSHALL.
//   - G8: TestFencingTokensRise, TestFault01ServersClockDiffers; TestFencingTokensWithoutTheirCounter.
//   - G9: TestFault03FailedTryIsOneCommand; TestStressTenThousandHeldLocks, TestRenewalsAreNotCrowdedOut;
//     TestFault07OneWaiterTalksToTheServer.
//   - G10: TestFault01OnlyRelativeTimesOnTheWire.
package modern
