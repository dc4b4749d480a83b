package lifetime

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// post is the queue of renewals to one server. One task sends them, in portions, the earliest deadline first.
//
// A slow server answers what it can. A portion is therefore as large as what the server answers in a sixteenth of a lease: more
// would wait on the connection until its lease is over, and renew nothing. A portion may take its time as long as replies come.
// What was sent has cost the server its time already; to give it up would waste that.
type post struct {
	to      Batcher
	waiting []entry
	sorted  bool
	sending bool // the task runs
	portion int  // how many go out at a time
}

// place is where a post leads: one of Options.Servers, and the address there.
type place struct {
	server int
	addr   string
}

// entry is one lease in a queue.
type entry struct {
	lease *Lease
	round *round
}

// over tells whether nothing is to be sent: the lease is over or released, or its next round waits. What a majority of other servers
// has decided is sent here too: each server's key is to last. The caller holds the renewer's mu.
func (e entry) over() bool { return e.lease.index == 0 || e.lease.rests || e.lease.round != e.round }

// A portion begins with firstPortion and is at most largest, which a driver.Shared has on its way at once.
const firstPortion, largest = 64, 500

// send has leases renewed on every server.
func (r *Renewer) send(due []*Lease) {
	var together []entry
	now := r.opts.Now()
	r.mu.Lock()
	for _, s := range due {
		if s.Alone != nil {
			round := s.round
			round.sent = now
			r.background.Go(func() { // one server's word decides
				answer, err := s.Alone()
				r.answer(s, round, answer, err)
			})
			continue
		}
		together = append(together, entry{s, s.round})
	}
	r.mu.Unlock()
	if len(together) == 0 {
		return
	}
	for n, to := range r.opts.Servers {
		r.background.Go(func() { r.enqueue(n, to, together) })
	}
}

// enqueue puts leases into the queues of one of the servers.
func (r *Renewer) enqueue(n int, to Batcher, due []entry) {
	ctx, cancel := context.WithTimeout(r.life, r.opts.ReplyTimeout)
	defer cancel()
	places := make([]place, len(due))
	for i, e := range due {
		places[i] = place{n, to.At(ctx, e.lease.Owner.Key())}
	}
	var idle []*post
	r.mu.Lock()
	for i, e := range due {
		p := r.posts[places[i]]
		if p == nil {
			p = &post{to: to, portion: firstPortion}
			r.posts[places[i]] = p
		}
		p.waiting, p.sorted = append(p.waiting, e), false
		if !p.sending {
			p.sending = true
			idle = append(idle, p)
		}
	}
	r.mu.Unlock()
	for _, p := range idle {
		r.background.Go(func() {
			for r.sendPortion(p) {
			}
		})
	}
}

// take takes the next portion out of a queue. None ends the task.
func (r *Renewer) take(p *post) (portion []entry, commands []protocol.Command) {
	now := r.opts.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.sorted {
		p.waiting = slices.DeleteFunc(p.waiting, entry.over)
		slices.SortFunc(p.waiting, func(a, b entry) int { return cmp.Compare(a.lease.Until(), b.lease.Until()) })
		p.sorted = true
	}
	for len(p.waiting) > 0 && len(portion) < p.portion {
		e := p.waiting[0]
		p.waiting = p.waiting[1:]
		if e.over() {
			continue
		}
		e.round.sent = cmp.Or(e.round.sent, now)
		portion, commands = append(portion, e), append(commands, e.lease.Owner.Renewal())
	}
	if len(portion) == 0 {
		p.waiting, p.sending = nil, false
	}
	return portion, commands
}

// sendPortion sends the next portion and hands out the replies. It tells whether there was one.
func (r *Renewer) sendPortion(p *post) bool {
	portion, commands := r.take(p)
	if len(portion) == 0 {
		return false
	}
	ctx, cancel := context.WithCancelCause(r.life)
	defer cancel(nil)
	patience := time.AfterFunc(r.opts.ReplyTimeout, func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	var answers int
	var first, last protocol.Instant
	var failed error
	began := r.opts.Now()
	p.to.Batch(ctx, commands, func(i int, reply protocol.Reply, err error) {
		e, answer := portion[i], Unclear
		if reply.Kind != protocol.Silence {
			answer = e.lease.Owner.Heard(reply)
		}
		r.mu.Lock()
		if reply.Kind == protocol.Silence || reply.Kind == protocol.Fault && topology.Busy(reply.Text) {
			failed = err
		} else {
			patience.Reset(r.opts.ReplyTimeout)
			if last = r.opts.Now(); answers == 0 {
				first = last
			}
			answers++
		}
		r.mu.Unlock()
		r.answer(e.lease, e.round, answer, err)
	})
	r.mu.Lock()
	if answers > 0 {
		p.portion = next(p.portion, answers, last.Sub(first), portion[0].lease.Span)
	}
	var behind []entry
	if answers == 0 && r.opts.Now().Sub(began) >= r.opts.ReplyTimeout/2 { // what waits behind is not kept waiting for the same
		behind, p.waiting = p.waiting, nil
	}
	r.mu.Unlock()
	for _, e := range behind {
		r.answer(e.lease, e.round, Unclear, failed)
	}
	return true
}

// next is the size of the portion after one whose answers came within took: what the server answers in a sixteenth of a lease.
// It grows to the double at most.
func next(portion, answers int, took, span time.Duration) int {
	most := min(2*portion, largest)
	if took > 0 && answers > 1 {
		most = int(min(int64(most), int64(answers-1)*int64(span/16)/int64(took)))
	}
	return max(most, 1)
}
