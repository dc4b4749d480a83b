package lifetime

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Lease is what the renewer keeps of a lock: when to renew it, and when it is lost. Owner, Alone, Span and
// Max are set once, Every, Began and the deadline (Begin) before Add; the rest is the renewer's.
type Lease struct {
	Owner Held
	// Alone, if set, renews in place of Owner.Renewal what is more than a command that stands for itself: it is not sent with the others' but
	// done on a goroutine of its own. An Unclear answer has its reason beside it.
	Alone func() (Answer, error)
	Span  time.Duration // from before a renewing command was sent to the end, if none follows
	Every time.Duration // between two renewals; 0: none
	Max   time.Duration // from Began to the last renewal; 0: no end
	Began protocol.Instant

	until atomic.Int64 // the deadline on our own clock; guarded by the renewer's mu for writing

	// Guarded by the renewer's mu.
	due   protocol.Instant // of the next renewal
	end   protocol.Instant // of Max; 0 for none
	at    protocol.Instant // the earliest of them: the heap's order
	index int              // in the heap, plus one; 0 when it is not there
	rests bool             // no renewal is sent any more
	why   Loss             // why it is not in the heap any more, if it was lost
	round *round           // the renewal that is under way
	asked protocol.Instant // when the renewal was sent that had no answer at the deadline; 0: none was under way
}

// Begin sets when a lease began and until when it lasts.
func (s *Lease) Begin(began, until protocol.Instant) {
	s.Began = began
	s.until.Store(int64(until))
}

// Until returns the deadline: until then the lock is certainly ours if no renewal comes through any more.
func (s *Lease) Until() protocol.Instant { return protocol.Instant(s.until.Load()) }

func (s *Lease) extend(until protocol.Instant) { s.until.Store(max(s.until.Load(), int64(until))) }

// Held is the lock behind a lease. Renewal and Heard must not block; the others are called without any lock
// of the renewer.
type Held interface {
	Key() string
	// Renewal is the command that extends the lock.
	Renewal() protocol.Command
	// Heard reads the answer to it, which is not Silence.
	Heard(reply protocol.Reply) Answer
	// Renewed tells of a renewal that came through.
	Renewed(took time.Duration)
	// RenewalFailed tells of one that did not; it is tried again before the deadline.
	RenewalFailed(err error)
	// Lost tells that the lease is over. The renewer has forgotten it.
	Lost(why Loss)
}

// Answer is what a server's reply to a renewal means.
type Answer uint8

const (
	Unclear Answer = iota // the server refused
	Extended
	Gone // the key is not ours any more
)

// AnswerOf is what a machine's verdict on a renewal means.
func AnswerOf(v protocol.Verdict) Answer {
	switch v {
	case protocol.Renewed, protocol.Repaired:
		return Extended
	case protocol.Lost, protocol.Displaced:
		return Gone
	default:
		return Unclear
	}
}

// Loss is why a lease is over.
type Loss uint8

const (
	Deadline Loss = iota // no renewal came through
	Outlived             // Max is over
	Taken                // the key is not ours any more
	Closed               // the renewer was closed
	TooLate              // it had been closed before the lease was added
)

// Batcher sends commands together and hands out their replies: a driver.Shared.
type Batcher interface {
	// At names the server that serves a key, where there are several: each has a queue of its own.
	At(ctx context.Context, key string) string
	Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error))
}

// round is one renewal of one lease on every server; guarded by the renewer's mu.
type round struct {
	sent              protocol.Instant // when the first server's command had not been sent yet; 0: it waits for its turn
	yes, no, answered int
	err               error
	decided           bool
}

// Renewer keeps all leases of a Locker, on one goroutine and one connection to each server. Leases are
// in a heap by the next thing that happens to them. What is due, and what soon will be, goes out as one
// pipeline.
//
// The deadline of a lease is not a matter of replies: whatever the connection does, the goroutine looks
// at every lease when its deadline is there. So it never sends or dials itself; that is done by a task for
// each server, see post.
type Renewer struct {
	opts RenewerOptions

	mu      sync.Mutex
	heap    deeds
	running bool
	closed  bool
	every   time.Duration    // between two renewals at most; 0: as each lease says
	armed   protocol.Instant // when the goroutine wakes by itself
	soon    time.Duration    // the shortest time to the first deed for a lease that was added since the last look; 0: none was
	wake    chan struct{}
	done    chan struct{}
	posts   map[place]*post

	life       context.Context // of batches
	end        context.CancelFunc
	background sync.WaitGroup
}

// RenewerOptions of a Renewer; Now, Servers and ReplyTimeout are required.
type RenewerOptions struct {
	Now          func() protocol.Instant // monotonic
	Servers      []Batcher               // one to each
	Quorum       int                     // how many of them decide; zero: one
	Drift        time.Duration           // taken off every deadline
	ReplyTimeout time.Duration           // the longest wait for the next reply of a batch
}

// NewRenewer returns a renewer that starts its goroutine with the first lease.
func NewRenewer(opts RenewerOptions) *Renewer {
	opts.Quorum = max(opts.Quorum, 1)
	r := &Renewer{opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{}), posts: make(map[place]*post)}
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

// Add takes a lease in.
func (r *Renewer) Add(s *Lease) {
	now := r.opts.Now()
	r.mu.Lock()
	if r.closed {
		s.why = TooLate
		r.mu.Unlock()
		s.Owner.Lost(TooLate)
		return
	}
	r.hasten(s)
	if s.Max > 0 {
		s.end = s.Began.Add(s.Max)
	}
	r.schedule(s, now)
	r.push(s)
	if first := max(s.at.Sub(now), 1); r.soon == 0 || first < r.soon {
		r.soon = first
	}
	if !r.running {
		r.running = true
		r.armed = s.at
		go r.run()
	}
	r.rouse(s.at)
	r.mu.Unlock()
}

// schedule sets when the lease is renewed next. A lease shorter than a whole one, a claim, is renewed
// after a third of what is left.
func (r *Renewer) schedule(s *Lease, now protocol.Instant) {
	until := s.Until()
	s.due = until
	if s.Every > 0 && !s.rests {
		s.due = now.Add(min(s.Every, until.Sub(now)/3))
	}
	r.order(s)
}

// order puts the earliest of a lease's times into at.
func (r *Renewer) order(s *Lease) {
	s.at = min(s.due, s.Until())
	if s.end != 0 && !s.rests {
		s.at = min(s.at, s.end)
	}
}

// Remove takes a lease out, and tells whether it was in.
func (r *Renewer) Remove(s *Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pop(s)
}

// Hasten renews every lease, also of those to come, at least so often from now on. Leases that are renewed alone keep their own
// interval.
func (r *Renewer) Hasten(every time.Duration) {
	now := r.opts.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.every = every
	for _, s := range slices.Clone(r.heap) {
		if r.hasten(s) {
			s.due = min(s.due, now.Add(every))
			r.order(s)
			r.fix(s)
			r.rouse(s.at)
		}
	}
}

// hasten tells whether a lease is renewed more often than it asked for.
func (r *Renewer) hasten(s *Lease) bool {
	if s.Alone != nil || r.every == 0 || s.Every <= r.every {
		return false
	}
	s.Every = r.every
	return true
}

// Rest ends the renewals of a lease, and what one that is under way would say; its deadline is watched on.
func (r *Renewer) Rest(s *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.index == 0 {
		return
	}
	s.rests = true // the goroutine sees it when something is due, which spares each release the heap
	if s.round != nil {
		s.round.decided = true
	}
}

// Extend moves a deadline that was extended by other means than a renewal of ours. It returns false for a lease that was over
// before, also if its Owner is still to be told: nothing brings a lease back.
func (r *Renewer) Extend(s *Lease, until protocol.Instant) (why Loss, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	if s.index == 0 {
		return s.why, false
	}
	if r.overdue(s, now) {
		return s.why, false
	}
	s.extend(until)
	r.schedule(s, now)
	r.fix(s)
	r.rouse(s.at)
	return 0, true
}

// overdue takes a lease out that is over, and tells whether it was.
func (r *Renewer) overdue(s *Lease, now protocol.Instant) bool {
	switch {
	case s.Until() <= now:
		if s.why = Deadline; s.round != nil && !s.round.decided {
			s.asked = s.round.sent
		}
	case s.end != 0 && s.end <= now && !s.rests:
		s.why = Outlived
	default:
		return false
	}
	return r.pop(s)
}

// Extension reads the answer of a script, or a command, that says 1 for extended.
func Extension(reply protocol.Reply) Answer {
	switch {
	case reply.Kind == protocol.Integer && reply.Int == 1:
		return Extended
	case reply.Kind == protocol.Integer || reply.Kind == protocol.Nil:
		return Gone
	default:
		return Unclear
	}
}

// Close ends the goroutine, every lease and what is under way. It returns how many leases there were.
func (r *Renewer) Close() int {
	r.mu.Lock()
	r.closed = true
	running := r.running
	left := r.heap
	r.heap = nil
	for _, s := range left {
		s.index, s.why = 0, Closed
	}
	r.mu.Unlock()
	if running {
		close(r.wake)
		<-r.done
	}
	r.end()
	r.background.Wait()
	tellClosed(left)
	return len(left)
}

// tellClosed tells each owner, whatever an observer does meanwhile.
func tellClosed(left []*Lease) {
	for i, s := range left {
		told := false
		func() {
			defer func() {
				if !told {
					tellClosed(left[i+1:])
				}
			}()
			s.Owner.Lost(Closed)
			told = true
		}()
	}
}

// rouse makes the goroutine look earlier if it would sleep past at. The caller holds mu. Leases are
// mostly added with the same distance, so this is rare: between two wakings, each is later than the last.
func (r *Renewer) rouse(at protocol.Instant) {
	if at < r.armed && !r.closed {
		r.armed = at
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

func (r *Renewer) run() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case _, open := <-r.wake:
			if !open {
				return
			}
		}
		timer.Reset(r.look())
	}
}

// look does what is due and returns how long there is nothing to do.
func (r *Renewer) look() time.Duration {
	now := r.opts.Now()
	var over, due []*Lease
	r.mu.Lock()
	for len(r.heap) > 0 {
		s := r.heap[0]
		// Renewals that are nearly due go out with one that is: one round trip for all of them.
		horizon, early := now.Add(s.Every/10), now
		if len(due) > 0 {
			early = horizon
		}
		switch {
		case r.overdue(s, now):
			over = append(over, s)
			continue
		case s.rests && s.at < s.Until():
			r.schedule(s, now)
			r.fix(s)
			continue
		case s.due <= early && s.at == s.due:
			due = append(due, s)
			// An answer comes in any case, if only that there is none, and says when to go on. Sending once
			// more before that would add to the load that may be what makes the answer late.
			s.due = max(s.Until(), horizon.Add(1))
			s.round = &round{}
			r.order(s)
			r.fix(s)
			continue
		}
		break
	}
	sleep := time.Hour
	if len(r.heap) > 0 {
		sleep = max(r.heap[0].at.Sub(now), 0)
	}
	if r.soon > 0 { // the next lease will probably be like the last ones, released by now or not: it need not wake us
		sleep = min(sleep, r.soon)
		r.soon = 0
	}
	r.armed = now.Add(sleep)
	r.mu.Unlock()

	for _, s := range over {
		s.Owner.Lost(s.why)
	}
	if len(due) > 0 {
		r.send(due)
	}
	return sleep
}

// answer counts one server's reply. A majority decides; with one server that is its word.
func (r *Renewer) answer(s *Lease, v *round, answer Answer, err error) {
	r.mu.Lock()
	v.answered++
	switch answer {
	case Extended:
		v.yes++
	case Gone:
		v.no++
	default:
		if v.err = err; err == nil {
			v.err = errors.New("no answer")
		}
	}
	if v.decided || s.index == 0 {
		r.mu.Unlock()
		return
	}
	now := r.opts.Now()
	switch {
	case v.yes >= r.opts.Quorum && r.overdue(s, now): // the answer came too late
		v.decided = true
		r.mu.Unlock()
		s.Owner.Lost(s.why)
	case v.yes >= r.opts.Quorum:
		v.decided = true
		s.extend(v.sent.Add(s.Span - r.opts.Drift))
		if s.round == v {
			s.due = max(now, v.sent.Add(s.Every))
		}
		r.order(s)
		r.fix(s)
		r.rouse(s.at)
		r.mu.Unlock()
		s.Owner.Renewed(now.Sub(v.sent))
	case v.no > len(r.opts.Servers)-r.opts.Quorum:
		v.decided = true
		s.why = Taken
		r.pop(s)
		r.mu.Unlock()
		s.Owner.Lost(Taken)
	case v.answered == len(r.opts.Servers):
		v.decided = true
		if s.round == v { // try again soon: most of the time that is left is for that
			s.due = min(s.due, now.Add(max(min(s.Until().Sub(now)/8, 500*time.Millisecond), time.Millisecond)))
			r.order(s)
			r.fix(s)
			r.rouse(s.at)
		}
		err := v.err
		r.mu.Unlock()
		s.Owner.RenewalFailed(err)
	default:
		r.mu.Unlock()
	}
}
