package kinds

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

// late is how much later than its deadline a holder may be told on a machine that is busy.
const late = 5 * time.Second

// balanced checks that each lock that the observer heard of has one end.
func (s *scene) balanced() {
	s.Helper()
	assert.Eventually(s, func() bool {
		acquired := s.counts.of(lockmigrate.EventAcquired)
		return acquired > 0 && acquired == s.counts.of(lockmigrate.EventReleased)+s.counts.of(lockmigrate.EventLost)
	}, late, time.Millisecond, "each lock that was acquired is released or lost, once")
	assert.Equal(s, s.counts.of(lockmigrate.EventAcquired), s.counts.of(lockmigrate.EventReleased)+s.counts.of(lockmigrate.EventLost))
}

// configured sends the server a command that changes what it refuses, and returns what sends another one that undoes it.
func (s *scene) configured(change, undo string) func() {
	send := func(command string) {
		words := strings.Fields(command)
		s.server.Do(words[0], redis.Args{}.AddFlat(words[1:])...)
	}
	send(change)
	return func() { send(undo) }
}

// TestARefusedReleaseIsTriedAgain: a server that refuses a release for a while gets the key free soon after, not at the end of the
// lease, and its holder is told of the release.
func TestARefusedReleaseIsTriedAgain(t *testing.T) {
	for _, fault := range []struct {
		name   string
		run    func(*testing.T, func(kind) bool, terms, func(*scene))
		inject func(s *scene) (mend func())
	}{
		{"NOPERM", each, func(s *scene) func() { return s.configured("ACL SETUSER holder -@all", "ACL SETUSER holder +@all") }},
		{"OOM", each, func(s *scene) func() { return s.configured("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0") }},
		{"READONLY", each, func(s *scene) func() { return s.configured("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE") }},
		{"LOADING", each, func(s *scene) func() { s.reload(); return func() {} }},
		{"no reply", virtually, func(s *scene) func() { s.link.HalfOpen(); return s.link.Heal }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			reply, wanted := time.Second, func(kind) bool { return true }
			if fault.name == "LOADING" {
				reply /= 4 // else the release may wait that out
				// The server loads, and refuses too late to be heard. A bare DEL may be on its way for all that is known: the key stays for the lease.
				wanted = func(k kind) bool { return k.name != "legacy" }
			}
			fault.run(t, wanted, terms{ttl: time.Minute, reply: reply, args: slowLoading}, func(s *scene) {
				k := s.hold()
				held := k.Context()
				mend := fault.inject(s)
				err := k.Release(s.Context())
				if fault.name != "OOM" { // most releases need no memory
					require.Error(s, err)
				}
				require.NotErrorIs(s, err, lockmigrate.ErrLost)
				if err != nil {
					assert.NoError(s, held.Err(), "nobody knows that the lock is over")
				}
				mend()
				redistest.Within(s.T, "the holder's context ends", 4*late, func() bool { return held.Err() != nil })
				assert.ErrorIs(s, context.Cause(held), lockmigrate.ErrReleased)
				s.leavesNothing(s.T)
				s.balanced()
				if err != nil {
					assert.NoError(s, k.Release(s.Context()), "the caller asks again, and it is released")
				}
				assert.ErrorIs(s, k.Release(s.Context()), lockmigrate.ErrReleased)
			})
		})
	}
}

// TestNoRenewalAfterARelease: a release that failed is tried again at any moment. A renewal must not say until then that the lock is held.
func TestNoRenewalAfterARelease(t *testing.T) {
	each(t, nil, terms{ttl: time.Minute, reply: time.Second}, func(s *scene) {
		k := s.hold()
		held := k.Context()
		s.server.Do("ACL", "SETUSER", user, "-del") // a renewal needs none
		err := k.Release(s.Context())
		require.Error(s, err)
		require.NotErrorIs(s, err, lockmigrate.ErrLost)
		assert.ErrorIs(s, k.Renew(s.Context()), lockmigrate.ErrReleased)
		s.server.Do("ACL", "SETUSER", user, "+del")
		redistest.Within(s.T, "the holder's context ends", 4*late, func() bool { return held.Err() != nil })
		assert.ErrorIs(s, context.Cause(held), lockmigrate.ErrReleased)
		s.leavesNothing(s.T)
		s.balanced()
	})
}

// slowLoading are a server's options that keep its data, and have it load four thousand keys for two seconds.
var slowLoading = []string{
	"--user", user, "on", ">secret", "~*", "&*", "+@all", // a restart forgets what ACL SETUSER has set
	"--appendonly", "yes", "--appendfsync", "always", "--key-load-delay", "500",
}

// reload restarts the server and returns while it loads its data.
func (s *scene) reload() {
	s.server.Do("EVAL", "for i = 1, 4000 do redis.call('SET', 'ballast:' .. i, 'x') end", 0)
	s.server.Kill()
	var started sync.WaitGroup
	started.Go(s.server.Start)
	s.Cleanup(started.Wait)
	redistest.Within(s.T, "the server loads", late, func() bool {
		_, err := s.server.Try("GET", "any")
		return err != nil && strings.HasPrefix(err.Error(), "LOADING")
	})
}

// TestDoNeverHidesTheLoss by MaxHold, whatever the work returns; what it returns is Do's answer where there was no loss. Other losses are in the random
// sequences of suite lifecycle.
func TestDoNeverHidesTheLoss(t *testing.T) {
	own := errors.New("the work's own")
	t.Run("MaxHold", func(t *testing.T) {
		virtually(t, func(k kind) bool { return k.name != "legacy" && k.name != "legacy, compared" }, terms{maxHold: ttl / 7}, func(s *scene) {
			err := s.Do(s.Context(), key, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			assert.ErrorIs(s, err, lockmigrate.ErrLost)
			assert.ErrorIs(s, err, context.Canceled)
			s.balanced()
		})
	})
	t.Run("no loss", func(t *testing.T) {
		virtually(t, nil, terms{}, func(s *scene) {
			assert.NoError(s, s.Do(s.Context(), key, func(context.Context) error { return nil }))
			err := s.Do(s.Context(), key, func(context.Context) error { return own })
			assert.Equal(s, own, err, "work's error itself")
			assert.PanicsWithValue(s, "boom", func() { _ = s.Do(s.Context(), key, func(context.Context) error { panic("boom") }) })
			s.leavesNothing(s.T)
			s.balanced()
		})
	})
}

// TestEachMomentOfAnAttemptHasItsCause: a context may end at any moment of the first attempt: the error has its cause, also where the
// server's answer was there before it.
func TestEachMomentOfAnAttemptHasItsCause(t *testing.T) {
	each(t, func(k kind) bool { return k.name != "modern, an owner's" }, terms{ttl: time.Minute}, func(s *scene) { // which has it again at once
		k, reason := s.hold(), errors.New("the caller lost interest")
		for i := range 300 {
			ctx, cancel := context.WithCancelCause(s.Context())
			time.AfterFunc(time.Duration(i)*time.Microsecond, func() { cancel(reason) })
			_, err := s.Acquire(ctx, key)
			require.ErrorIs(s, err, reason, "cancelled after %d µs", i)
		}
		require.NoError(s, k.Release(s.Context()))
	})
}

// TestWaitBoundsTheWholeAcquire, also its first attempt, where the server does not answer.
func TestWaitBoundsTheWholeAcquire(t *testing.T) {
	const wait = 200 * time.Millisecond
	virtually(t, nil, terms{ttl: time.Minute, reply: 10 * time.Second, wait: wait}, func(s *scene) {
		defer s.server.Freeze()()
		start, poll := time.Now(), time.Duration(0)
		_, err := s.Acquire(context.Background(), key)
		assert.ErrorIs(s, err, lockmigrate.ErrNotAcquired)
		if strings.HasPrefix(s.kind.name, "legacy") {
			poll = 100 * time.Millisecond // an attempt that begins within Wait is finished, within one Poll
		} else {
			assert.ErrorContains(s, err, "Options.Wait is over")
		}
		assert.Less(s, time.Since(start), wait+poll+10*time.Millisecond)
	})
}

// TestNothingAnswers: where no reply comes to anything, an attempt says that its outcome is unknown, and until when the key may stay taken;
// that is no longer than the server counts. Who does not wait for that is back with its context. A quorum tells its observer.
func TestNothingAnswers(t *testing.T) {
	const lease, reply, tick = 2 * time.Second, 200 * time.Millisecond, 10 * time.Millisecond
	virtually(t, func(k kind) bool { return k.name != "quorum" }, terms{ttl: lease, reply: reply}, func(s *scene) {
		thaw, start := s.server.Freeze(), time.Now()
		ctx, cancel := context.WithTimeout(s.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.TryAcquire(ctx, "another")
		assert.ErrorIs(s, err, lockmigrate.ErrNotAcquired)
		assert.Less(s, time.Since(start), 100*time.Millisecond+tick)

		start = time.Now()
		_, err = s.TryAcquire(s.Context(), key)
		require.ErrorIs(s, err, lockmigrate.ErrUnknownOutcome)
		var e *lockmigrate.Error
		require.ErrorAs(s, err, &e)
		assert.WithinRange(s, e.Until, start.Add(lease-tick), time.Now().Add(lease+reply+tick))
		thaw()
		time.Sleep(time.Until(e.Until))
		if !s.kind.old { // whose value stays, and is over
			assert.EqualValues(s, 0, s.server.Do("EXISTS", key, "another", protocol.GuardKey(key), protocol.GuardKey("another")), "taken for no longer than said")
		}
	})
}

// TestLateRepliesAreNoLock: where all replies to an attempt took longer than the lease, together, it brings no lock, and gives back what it has taken.
func TestLateRepliesAreNoLock(t *testing.T) {
	virtually(t, func(k kind) bool { return k.old }, terms{ttl: 2 * time.Second, reply: time.Second}, func(s *scene) {
		s.server.Do("SET", key, "1600000000000") // an old client's, long over
		for n := range 6 {
			s.link.(*world.Route).Next(1+n, world.Fault{LateReply: 900 * time.Millisecond})
		}
		lock, err := s.TryAcquire(s.Context(), key)
		require.ErrorContains(s, err, "the lease", "%v", lock)
		redistest.Await(s.T, "nothing on the key", s.free)
	})
}

// TestCloseEndsWaits at once, and no waiter leaves its place in the queue behind.
func TestCloseEndsWaits(t *testing.T) {
	virtually(t, nil, terms{ttl: time.Minute}, func(s *scene) {
		k, waits := s.hold(), s.again()
		defer waits.Close()
		ended := make(chan error, 3)
		for range cap(ended) {
			go func() {
				_, err := waits.Acquire(context.Background(), key)
				ended <- err
			}()
		}
		time.Sleep(time.Second) // they wait
		assert.Equal(s, strings.HasPrefix(s.kind.name, "compat at stage ") && !s.kind.old || slices.Contains([]string{"modern", "modern, fenced", "modern, an owner's", "handover at stage both"}, s.kind.name),
			s.server.Do("EXISTS", protocol.QueueKey(key)) == int64(1), "one stands in the queue")
		_ = waits.Close()
		for range cap(ended) {
			select {
			case err := <-ended:
				assert.ErrorIs(s, err, lifetime.ErrClosed)
				assert.NotErrorIs(s, err, lockmigrate.ErrNotAcquired)
			case <-time.After(ttl / 2): // before the lease is over
				s.Fatal("it waits on after Close")
			}
		}
		assert.EqualValues(s, 0, s.server.Do("EXISTS", protocol.QueueKey(key)), "places in the queue")
		_, err := waits.Acquire(s.Context(), key)
		assert.ErrorIs(s, err, lifetime.ErrClosed)
		require.NoError(s, k.Release(s.Context()))
	})
}

// TestCloseWaitsForReleases: a release that is under way when the Locker is closed comes to its end, and is no loss.
func TestCloseWaitsForReleases(t *testing.T) {
	virtually(t, nil, terms{ttl: time.Minute, reply: 20 * time.Second}, func(s *scene) {
		k := s.hold()
		s.link.HalfOpen()
		released, closed := make(chan error, 1), make(chan struct{})
		go func() { released <- k.Release(s.Context()) }()
		require.Eventually(s, s.given, late, time.Millisecond, "it has run, and its reply is held up")
		go func() {
			_ = s.Close()
			close(closed)
		}()
		time.Sleep(50 * time.Millisecond) // Close does whatever it does before it waits
		s.link.Heal()
		assert.NoError(s, <-released)
		assert.ErrorIs(s, context.Cause(k.Context()), lockmigrate.ErrReleased)
		<-closed
		s.balanced()
	})
}

// TestWaitersOutliveARestart: the server dies under those who wait, stays away for many of their attempts, and comes back without a
// memory, but for a namespace's record. Each gets the lock.
func TestWaitersOutliveARestart(t *testing.T) {
	waits := func(k kind) bool { return !strings.HasPrefix(k.name, "legacy") } // which says at once that it reaches nobody
	virtually(t, waits, terms{ttl: time.Minute, reply: time.Second}, func(s *scene) {
		s.hold()
		waits := s.again()
		defer waits.Close()
		var done [3]<-chan error
		for i := range done {
			done[i] = redistest.BeginTurn(s.Context(), waits.Acquire, key)
		}
		time.Sleep(time.Second) // a first attempt that is under way may end in an error
		s.server.Kill()
		time.Sleep(5 * time.Second)
		s.server.Start()
		if stage, in := inNamespace[s.kind.name]; stage == lockmigrate.StageBoth {
			defer s.again().Close() // an operator makes the record again, as that does
		} else if in {
			_, err := redistest.InStage(s.server.Pool(), stage, "", time.Minute)
			require.NoError(s, err)
		}
		for i := range done {
			assert.NoError(s, <-done[i])
		}
	})
}

// TestCloseBesideCallers in full flight, whose contexts end as well: each is refused work, or it is work that Close waits for, and a key
// that stays taken is one of which somebody was told. With WaitGroups, this ended the program.
func TestCloseBesideCallers(t *testing.T) {
	const callers, keys = 8, 4
	for _, k := range kinds {
		if k.name == "modern, an owner's" { // its acquisition is two, and a release
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for range redistest.Rounds(4, 15) {
				// The embedded server's time stands still: what a TTL or a claim would end stays.
				s, seen := redistest.Mini(t), &redistest.Told{}
				l := k.open(t, []lockmigrate.Pool{s.Pool(), redistest.Mini(t).Pool(), redistest.Mini(t).Pool()}, terms{told: seen.Observe, ttl: 2 * time.Minute, reply: time.Minute, server: s})
				var all sync.WaitGroup
				var over atomic.Bool
				for range callers {
					all.Go(func() {
						for !over.Load() {
							key := strconv.Itoa(rand.IntN(keys))
							ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
							held, err := l.Acquire(ctx, key)
							switch {
							case errors.Is(err, lifetime.ErrClosed):
								time.Sleep(time.Millisecond) // it goes on asking while Close waits, and leaves the processor to those for whom it does
							case errors.Is(err, lockmigrate.ErrUnknownOutcome):
								seen.Note(key)
							}
							if err == nil {
								_ = held.Renew(ctx)
								if held.Release(ctx) != nil {
									seen.Note(key)
								}
							}
							cancel()
						}
					})
				}
				time.Sleep(rand.N(10 * time.Millisecond)) // the subject
				_ = l.Close()
				over.Store(true)
				all.Wait()
				_, err := l.TryAcquire(t.Context(), key)
				assert.ErrorContains(t, err, "the Locker is closed")
				if slices.Contains([]string{"modern, unfair", "redisson", "quorum"}, k.name) {
					continue // their last command may come after its give-back: over a connection of its own, or to a third server
				}
				for n := range keys {
					if key := strconv.Itoa(n); s.Mini.Exists(key) {
						assert.True(t, seen.Of(key), "key %s is taken, and nobody was told", key)
					}
				}
			}
		})
	}
}

// TestCloseEndsTheWaitForAConnection: all connections of a pool are in use, for longer than the Locker lives. Close returns
// after a reply timeout, and the caller with it.
func TestCloseEndsTheWaitForAConnection(t *testing.T) {
	const reply = ttl / 2
	for name, open := range map[string]func(pool lockmigrate.Pool) (lockmigrate.Locker, error){
		"a transaction's": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return legacy.New(pool, legacy.Options{Dialect: legacy.Dialect{Name: "servicestack"}, ReplyTimeout: reply})
		},
		"the clock's": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return legacy.New(pool, legacy.Options{FollowServer: true, ReplyTimeout: reply})
		},
		"the replicas'": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return modern.New(pool, modern.Options{Replicas: 1, ReplyTimeout: reply})
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				pool := s.Pool()
				pool.MaxActive, pool.Wait = 1, true
				l, err := open(pool)
				require.NoError(t, err)
				taken := pool.Get()
				t.Cleanup(func() { _ = taken.Close() })
				ended := make(chan error, 2)
				for _, acquire := range []func(context.Context, string) (lockmigrate.Lock, error){l.Acquire, l.TryAcquire} {
					go func() {
						_, err := acquire(context.Background(), key)
						ended <- err
					}()
				}
				time.Sleep(50 * time.Millisecond) // they wait
				closing := time.Now()
				_ = l.Close()
				for range 2 {
					assert.Error(t, <-ended)
				}
				assert.LessOrEqual(t, time.Since(closing), reply)
			})
		})
	}
}
