package lifetime

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// pipe is a server behind one connection that answers so many commands a second, in their order. What it was sent it works on, also
// where nobody waits for the reply any more.
type pipe struct {
	sync.Mutex
	each  time.Duration // of its time for a command
	ready time.Time     // when it has worked off what it was sent
	hangs bool
	sent  int
}

func (p *pipe) At(_ context.Context, key string) string { return key }

func (p *pipe) Batch(ctx context.Context, commands []protocol.Command, each func(int, protocol.Reply, error)) {
	p.Lock()
	at, pace, hangs := p.ready, p.each, p.hangs
	if now := time.Now(); at.Before(now) {
		at = now
	}
	p.ready = at.Add(time.Duration(len(commands)) * pace)
	p.sent += len(commands)
	p.Unlock()
	for i := range commands {
		at = at.Add(pace)
		answered := time.After(time.Until(at))
		if hangs {
			answered = nil
		}
		select {
		case <-answered:
			each(i, yes, nil)
		case <-ctx.Done():
			each(i, protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx))
		}
	}
}

// split sends each key to a server of its own.
type split map[string]*pipe

func (s split) At(_ context.Context, key string) string { return key }

func (s split) Batch(ctx context.Context, commands []protocol.Command, each func(int, protocol.Reply, error)) {
	s[commands[0].Key].Batch(ctx, commands, each)
}

// keep holds locks, and returns what counts those that were lost.
func keep(t *testing.T, r *Renewer, clock Clock, key string, locks int, span time.Duration) func() int {
	t.Helper()
	all := make([]*leased, locks)
	for i := range all {
		all[i] = newLeased(key, clock.Now(), span, span/3, 0)
		r.Add(&all[i].lease)
	}
	return func() (lost int) {
		for _, k := range all {
			lost += len(k.lost) // of one at most
		}
		return lost
	}
}

// TestASlowServerKeepsWhatItCan: a server that is slow, or becomes slow, keeps as many locks as it can renew.
func TestASlowServerKeepsWhatItCan(t *testing.T) {
	for _, c := range []struct {
		locks, rate, most int // most: that may be lost
	}{
		{10_000, 2000, 0}, // three times the rate that is needed
		{10_000, 1334, 0}, // twice
		{1000, 200, 0},
		{100, 20, 0},
		{10_000, 333, 7000}, // half of it
	} {
		t.Run(fmt.Sprint(c.locks, " locks, ", c.rate, " a second"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const span = 15 * time.Second
				clock := NewClock()
				p := &pipe{each: time.Second / time.Duration(c.rate)}
				r := NewRenewer(RenewerOptions{Now: clock.Now, Servers: []Batcher{p}, ReplyTimeout: span / 4})
				defer r.Close()
				lost := keep(t, r, clock, "k", c.locks, span)
				time.Sleep(3 * span)
				if n := lost(); n > c.most {
					t.Errorf("%d lost, and %d renewals sent; at most %d may be lost", n, p.sent, c.most)
				}
			})
		})
	}
}

// TestAHungServerHoldsUpNoOther: each server of a cluster has its own queue.
func TestAHungServerHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const span = 15 * time.Second
		clock := NewClock()
		servers := split{"hangs": {hangs: true}, "works": {each: time.Millisecond}}
		r := NewRenewer(RenewerOptions{Now: clock.Now, Servers: []Batcher{servers}, ReplyTimeout: span / 4})
		defer r.Close()
		hung := keep(t, r, clock, "hangs", 2000, span)
		works := keep(t, r, clock, "works", 2000, span)
		time.Sleep(3 * span)
		assert.False(t, hung() != 2000 || works() != 0, "%d of the hung server's locks are lost, and %d of the other's", hung(), works())
	})
}

// TestAHungServerIsToldToAllWhoWait: the first portion's silence is everybody's: each tries again soon.
func TestAHungServerIsToldToAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const span = 15 * time.Second
		clock := NewClock()
		p := &pipe{hangs: true}
		r := NewRenewer(RenewerOptions{Now: clock.Now, Servers: []Batcher{p}, ReplyTimeout: span / 4})
		defer r.Close()
		lost := keep(t, r, clock, "k", 10_000, span)
		time.Sleep(span/3 + span/4 + time.Second)
		p.Lock()
		p.hangs, p.each = false, 10*time.Microsecond
		p.Unlock()
		time.Sleep(span)
		assert.True(t, lost() == 0, "%d lost: the server came back after %v, five seconds before the deadline", lost(), span/4)
	})
}

// TestASlowerServerIsRenewedToo: a majority that answers sooner spares no server its renewals. Otherwise its keys would end, and the
// lock would not outlive the next server that fails.
func TestASlowerServerIsRenewedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const locks, span = 1000, 15 * time.Second
		clock := NewClock()
		near, far := &pipe{each: 10 * time.Microsecond}, &pipe{each: time.Millisecond}
		r := NewRenewer(RenewerOptions{Now: clock.Now, Servers: []Batcher{near, near, far}, Quorum: 2, ReplyTimeout: span / 4})
		defer r.Close()
		lost := keep(t, r, clock, "k", locks, span)
		time.Sleep(3 * span)
		far.Lock()
		defer far.Unlock()
		assert.False(t, far.sent < 7*locks || lost() != 0, "the slower server got %d renewals of %d locks in three leases; %d are lost", far.sent, locks, lost())
	})
}
