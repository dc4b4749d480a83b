package lifetime

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// server is a line that answers at once, and counts.
type server struct {
	mu      sync.Mutex
	batches int
	sent    int
	reply   protocol.Reply
}

func (p *server) At(context.Context, string) string { return "" }

func (p *server) Batch(_ context.Context, commands []protocol.Command, each func(int, protocol.Reply, error)) {
	p.mu.Lock()
	p.batches++
	p.sent += len(commands)
	p.mu.Unlock()
	for i := range commands {
		each(i, p.reply, nil)
	}
}

func (p *server) counts() (batches, sent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.batches, p.sent
}

var yes = protocol.Reply{Kind: protocol.Integer, Int: 1}

// leased is a Held that tells what it hears.
type leased struct {
	key     string
	lease   Lease
	renewed chan struct{}
	failed  chan error
	lost    chan Loss
}

// newLeased begins a lease.
func newLeased(key string, now protocol.Instant, span, every, most time.Duration) *leased {
	k := &leased{key: key, renewed: make(chan struct{}, 1), failed: make(chan error, 1), lost: make(chan Loss, 2)}
	k.lease.Owner, k.lease.Span, k.lease.Every, k.lease.Max = k, span, every, most
	k.lease.Begin(now, now.Add(span))
	return k
}

func (k *leased) Key() string { return k.key }

func (k *leased) Renewal() protocol.Command { return protocol.Command{Op: protocol.Extend, Key: k.key} }

func (k *leased) Heard(reply protocol.Reply) Answer {
	switch {
	case reply.Kind != protocol.Integer:
		return Unclear
	case reply.Int == 1:
		return Extended
	default:
		return Gone
	}
}

func (k *leased) Renewed(time.Duration) {
	select {
	case k.renewed <- struct{}{}:
	default:
	}
}

func (k *leased) RenewalFailed(err error) {
	select {
	case k.failed <- err:
	default:
	}
}

func (k *leased) Lost(why Loss) { k.lost <- why }

// watched is a renewer and its server. Tests that wait for a deadline run in synctest's virtual time: they take none, and a busy machine
// does not make them late.
type watched struct {
	*testing.T
	clock Clock
	post  *server
	r     *Renewer
}

func newWatched(t *testing.T) *watched {
	b := &watched{T: t, clock: NewClock(), post: &server{reply: yes}}
	b.r = NewRenewer(RenewerOptions{Now: b.clock.Now, Servers: []Batcher{b.post}, ReplyTimeout: time.Second})
	t.Cleanup(func() { b.r.Close() })
	return b
}

func (b *watched) hold(span, every, most time.Duration) *leased {
	k := newLeased("k", b.clock.Now(), span, every, most)
	b.r.Add(&k.lease)
	return k
}

func within[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	var v T
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("never came: %s", what)
	}
	return v
}

// TestDueRenewalsGoTogether: what is due, and what soon will be, is one pipeline.
func TestDueRenewalsGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWatched(t)
		const locks = 500
		var held []*leased
		for range locks {
			held = append(held, b.hold(time.Hour, time.Second, 0))
		}
		for _, k := range held {
			within(t, "a renewal", k.renewed)
		}
		for _, k := range held {
			assert.True(t, b.r.Remove(&k.lease), "a lease is gone")
		}
		if batches, sent := b.post.counts(); sent < locks || batches > sent/10 {
			t.Errorf("%d renewals in %d batches", sent, batches)
		}
	})
}

// TestRestingLeaseIsNotLostByAnAnswer: a renewal that overtakes a release finds nothing, which is no news.
func TestRestingLeaseIsNotLostByAnAnswer(t *testing.T) {
	b := newWatched(t)
	k := b.hold(time.Hour, time.Hour, 0)
	k.lease.round = &round{}
	b.r.Rest(&k.lease)
	b.r.answer(&k.lease, k.lease.round, Gone, nil)
	select {
	case why := <-k.lost:
		t.Errorf("lost: %v", why)
	default:
	}
	assert.True(t, b.r.Remove(&k.lease), "the lease is gone")
}

// TestLeasesThatComeAndGoWakeNobody: the goroutine looks once for many leases that are over before it is their turn.
func TestLeasesThatComeAndGoWakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64 // of the clock
		b := newWatched(t)
		b.r.opts.Now = func() protocol.Instant { reads.Add(1); return b.clock.Now() }
		const locks = 100
		for range locks {
			k := b.hold(time.Minute, 20*time.Second, 0)
			require.True(t, b.r.Remove(&k.lease), "a lease is gone")
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		if looks := reads.Load() - locks; looks > 2 { // Add reads it once, and so does each look
			t.Errorf("%d looks for %d leases", looks, locks)
		}
		b.hold(time.Minute, time.Second, 0)
		synctest.Wait()
		time.Sleep(1100 * time.Millisecond)
		if _, sent := b.post.counts(); sent != 1 {
			t.Errorf("%d renewals of a lease that is due before the others were", sent)
		}
	})
}

// TestAnAnswerAfterTheDeadlineIsTooLate: nothing brings a lease back, also where the goroutine has not looked yet.
func TestAnAnswerAfterTheDeadlineIsTooLate(t *testing.T) {
	now := protocol.Instant(0)
	newLease := func(r *Renewer) *leased {
		k := newLeased("k", now, time.Hour, time.Minute, 2*time.Hour)
		r.running = true // nobody looks but this test
		r.Add(&k.lease)
		return k
	}
	for _, c := range []struct {
		name string
		late time.Duration
		why  Loss
	}{{"the deadline", time.Hour, Deadline}, {"MaxHold", 2 * time.Hour, Outlived}} {
		t.Run(c.name, func(t *testing.T) {
			now = 0
			r := NewRenewer(RenewerOptions{Now: func() protocol.Instant { return now }, Servers: []Batcher{&server{}}})
			k := newLease(r)
			if c.why == Outlived {
				if _, ok := r.Extend(&k.lease, now.Add(3*time.Hour)); !ok {
					t.Fatal("a lease that lasts is not extended")
				}
			}
			v := &round{sent: now}
			now = now.Add(c.late)
			r.answer(&k.lease, v, Extended, nil)
			if why := within(t, "the loss", k.lost); why != c.why {
				t.Errorf("lost: %v", why)
			}
			if why, ok := r.Extend(&k.lease, now.Add(time.Hour)); ok || why != c.why {
				t.Errorf("a renewal of the holder's own: %v %v", why, ok)
			}

			now = 0
			k = newLease(r)
			now = now.Add(time.Hour)
			if why, ok := r.Extend(&k.lease, now.Add(time.Hour)); ok || why != Deadline {
				t.Errorf("the holder's own comes first: %v %v", why, ok)
			}
		})
	}
}

func TestCloseEndsEveryLease(t *testing.T) {
	b := newWatched(t)
	k := b.hold(time.Hour, time.Hour, 0)
	b.r.Close()
	assert.Equal(t, Closed, within(t, "the end", k.lost), "lost")
	assert.Equal(t, TooLate, within(t, "the end of a late one", b.hold(time.Hour, time.Hour, 0).lost), "added after Close")
	b.r = NewRenewer(RenewerOptions{Now: b.clock.Now, ReplyTimeout: time.Second}) // for the cleanup
}
