package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// lookEvery is the pause between two looks at the list of keys.
const lookEvery = 50 * time.Millisecond

// wantedFor is for how long a key on which an attempt had to wait counts as one that others want too.
const wantedFor = 2 * time.Second

// reserve asks for the lock, or for a place in its queue, for an attempt that is held back. The channel ends when that may go on.
func (s *Sidecar) reserve(rules *protocol.Sidecar, o *order, key string, now time.Time, woken <-chan struct{}) <-chan struct{} {
	command := rules.Wait(protocol.InstantOf(now), key, s.token(o))
	command.NotAfter = o.notAfter
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.Hold)
		defer cancel()
		select {
		case s.asking <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := s.opts.Pool.GetContext(ctx)
		reply := protocol.Reply{}
		if err == nil {
			reply, _ = wire.Do(conn, s.opts.ReplyTimeout, command)
			_ = conn.Close()
		}
		<-s.asking
		if reply.Kind == protocol.Integer && reply.Int == 0 {
			s.keys.contended(key)
			select {
			case <-woken:
			case <-ctx.Done():
			}
		}
	}()
	return done
}

// every is the pause between two looks at a key: short enough to repair it, after a stale DEL, before the shortest lease of a direct
// client is over.
func (s *Sidecar) every(o *order) time.Duration {
	every := s.opts.Lease / 3
	if o.Stage == stages.Bridge && o.Shortest > 0 {
		every = min(every, o.Shortest/3)
	}
	return min(max(every, 100*time.Millisecond), 5*time.Second)
}

func (s *Sidecar) tellNews() { poke(s.news) }

// poke leaves a word in a channel that has room for one.
func poke(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Run keeps the membership and looks after the locks until ctx ends.
func (s *Sidecar) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { s.hear(ctx) })
	running.Go(func() { s.look(ctx) })
	running.Go(func() { s.list(ctx) })
	s.report(ctx)
	running.Wait()
	return nil
}

// Joined waits until the sidecar is a member: before that no attempt is granted.
func (s *Sidecar) Joined(ctx context.Context) error {
	for {
		if _, _, joined := s.Stage(); joined {
			return nil
		}
		if err := lifetime.Sleep(ctx, lookEvery); err != nil {
			return fmt.Errorf("sidecar: namespace %s cannot be joined: %w", s.opts.Namespace, err)
		}
	}
}

// report keeps the membership.
func (s *Sidecar) report(ctx context.Context) {
	defer s.leave()
	told := false
	stages.Keep(ctx, s.opts.MemberLease, s.news, func(ctx context.Context) (news bool, err error) {
		news, err = s.reportOnce(ctx)
		stage, epoch, fine := s.Stage()
		switch {
		case err == nil && (news || told):
			told = false
			s.opts.Log.Info("stage", "stage", stage, "epoch", epoch)
		case err != nil && !fine && !told && ctx.Err() == nil:
			told = true
			s.opts.Log.Error("not a member: all attempts are refused", "err", err)
		}
		return news, err
	})
}

func (s *Sidecar) reportOnce(ctx context.Context) (news bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(s.opts.ReplyTimeout, s.opts.MemberLease/2))
	defer cancel()
	was := s.order.Load()
	is, earlier := *was, time.Now().Before(was.acting) // a command that was made by an earlier order may act
	report := stages.Report{Lease: s.opts.MemberLease, Misfit: s.misfit}
	is.Says(&report, earlier)
	report.Lowest, report.Highest, report.Longest = s.keys.stages(s.opts.Lease)
	s.member.Info.Connections = s.old.opened.All()
	s.member.Info.Note = ""
	if n := s.Unseen(); n > 0 {
		s.member.Info.Note = fmt.Sprintf("may not look at keys of locks (%d): they count as held, and stages wait for them; see its log, and give its user the right", n)
	}
	told, until, err := s.member.Report(ctx, report)
	if err == nil {
		err, s.misfit = s.fits(ctx, told), ""
	}
	unfit := errors.Is(err, ErrUnfit)
	if unfit {
		s.misfit = err.Error()
	}
	if err == nil && s.opts.Old == nil {
		is.fleet, err = protocol.DialectNamed(told.Dialect)
	}
	if err != nil {
		if stages.Ends(err) || unfit {
			is.End()
			s.order.Store(&is)
		}
		return false, err
	}
	news = is.Obey(told, until, earlier)
	is.notAfter = protocol.InstantOf(told.Ends)
	s.keys.mu.Lock() // no attempt is noted by the order before from here on
	defer s.keys.mu.Unlock()
	if was.Epoch != is.Epoch {
		for _, w := range s.keys.all {
			is.acting = latest(w.acts, is.acting)
		}
		time.AfterFunc(time.Until(is.acting), s.tellNews) // who waits for this member hears at once that it follows
	}
	s.order.Store(&is)
	return news, nil
}

func (s *Sidecar) leave() {
	if low, _, _ := s.keys.stages(0); low >= 0 {
		return // the lease runs out by itself, and what is held counts until then
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ReplyTimeout)
	defer cancel()
	_ = s.member.Leave(ctx)
}

// look looks after the keys.
func (s *Sidecar) look(ctx context.Context) {
	for lifetime.Sleep(ctx, lookEvery) == nil {
		if due := s.keys.due(time.Now()); len(due) > 0 {
			s.keep(ctx, due)
		}
	}
}

// together is how many keys are looked at in one round trip. The server is busy with them for less than a millisecond.
const together = 64

// keep looks at keys.
func (s *Sidecar) keep(ctx context.Context, due []string) {
	began := time.Now()
	seen := s.sights(due)
	s.ask(ctx, due, true, func(key string, o *order, asked time.Time, reply protocol.Reply, err error) bool {
		switch {
		case s.opts.Old != nil && seen[key].told && (reply.Kind == protocol.Integer || errorIs(err, "WRONGTYPE")):
			s.kept(key, o, began, reply, seen[key])
		case s.opts.Old == nil && reply.Kind == protocol.Integer:
			s.kept(key, o, asked, reply, sight{})
		case reply.Kind == protocol.Fault && (strings.Contains(reply.Text, "NOPERM") || strings.Contains(reply.Text, "WRONGTYPE")):
			s.unseen(key, o, asked, err)
		default: // no key can be looked at now
			if ctx.Err() == nil && time.Now().Before(o.Until) {
				s.opts.Log.Warn("a lock could not be looked after", "key", key, "err", err)
			}
			return false
		}
		return true
	})
}

// ask sends the keeper's script for keys, together in each round trip, until told returns false. With renew it renews what has no end.
func (s *Sidecar) ask(ctx context.Context, due []string, renew bool, told func(key string, o *order, asked time.Time, reply protocol.Reply, err error) bool) {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	more := true
	for batch := range slices.Chunk(due, together) {
		o, asked, oldest := s.order.Load(), time.Now(), s.clients.oldest()
		rules, commands := protocol.Sidecar{Name: s.owner(), Lease: s.opts.Lease}, make([]protocol.Command, len(batch))
		for i, key := range batch {
			commands[i] = rules.Keep(protocol.InstantOf(asked), key, renew && s.renews(key, oldest, asked))
			commands[i].NotAfter = o.notAfter
		}
		wire.All(conn, s.opts.ReplyTimeout, commands, func(i int, reply protocol.Reply, err error) bool {
			more = told(batch[i], o, asked, reply, err)
			return more
		})
		if !more {
			return
		}
	}
}

// unseen notes that the server does not let this sidecar look at a key, which takes nothing away from the other keys. Nobody knows
// whether something is held there, so it counts as held.
func (s *Sidecar) unseen(key string, o *order, asked time.Time, why error) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	w := s.keys.all[key]
	if w == nil {
		return
	}
	w.next = asked.Add(s.every(o))
	old, token := !w.acts[stages.Legacy].IsZero(), !w.acts[stages.Bridge].IsZero() || !w.acts[stages.Modern].IsZero()
	known := old || token // else the key is from the process before, and may be held by either
	w.holds[stages.Legacy], w.holds[stages.Bridge] = w.holds[stages.Legacy] || old || !known, w.holds[stages.Bridge] || token || !known
	if !w.refused {
		w.refused = true
		s.opts.Log.Error("a lock could not be looked after: it is neither renewed nor repaired, and counts as held, so stages wait for it; give the sidecar's user the right",
			"key", key, "err", why)
	}
}

// Unseen returns how many keys that may be held the server does not let this sidecar look at.
func (s *Sidecar) Unseen() (n int) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	for _, w := range s.keys.all {
		if w.refused {
			n++
		}
	}
	return n
}

// renews tells whether a lock that has no end is renewed: the service is connected and, with KeepFor, a connection is left of when the lock was
// taken, or was KeepFor ago. A client that has crashed and is back says nothing of the lock that it had. Where the sidecar or the server
// ended the connections, or the sidecar has started since, it proves nothing that they are gone: KeepFor counts from then, or 10 minutes.
func (s *Sidecar) renews(key string, oldest int64, now time.Time) bool {
	cut, at := s.clients.cutSince(now.Add(-cmp.Or(s.opts.KeepFor, orphanAfter)))
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	w := s.keys.all[key]
	if w == nil {
		return false
	}
	if w.since > cut && oldest > w.since && w.gone.IsZero() {
		if w.gone = now; w.since == before {
			w.gone = at
		}
		s.keys.note(s, key, w)
	}
	switch {
	case w.gone.IsZero() && w.since <= cut:
		return true
	case oldest == math.MaxInt64:
		return false
	}
	return w.gone.IsZero() || s.opts.KeepFor == 0 || now.Sub(w.gone) < s.opts.KeepFor
}

// orphanAfter is when a lock without a time is told whose connections have ended, if no KeepFor was given.
const orphanAfter = 10 * time.Minute

// kept takes what the server said of a key.
func (s *Sidecar) kept(key string, o *order, asked time.Time, reply protocol.Reply, seen sight) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	w := s.keys.all[key]
	if w == nil {
		return
	}
	left := time.Duration(reply.Int2) * time.Millisecond
	w.next, w.refused = asked.Add(s.every(o)), false
	token, old := false, false
	knows := seen.asked || o.Stage == stages.New // where New alone decides, Old may be switched off
	if (reply.Int == protocol.KeepDone || reply.Int == protocol.KeepRepair) && reply.Text != w.token {
		listed := w.token == "" && w.since > 0 && w.tried == 0
		if w.token = reply.Text; !listed { // granted since the last look
			w.gone, w.orphan = time.Time{}, false
			if w.since = w.tried; w.since == 0 {
				w.since = s.clients.latest()
			}
			w.entry = "" // the process before may have changed it
			s.keys.note(s, key, w)
		}
	}
	if w.attempt.Before(asked) {
		w.tried = 0
	}
	switch reply.Int {
	case protocol.KeepRepair:
		s.counts.repaired.Add(1)
		s.opts.Log.Warn("repaired after a DEL that was not the holder's", "key", key, "left", left)
		token = true
	case protocol.KeepTheirs:
		if token = true; !w.displace {
			w.displace = true
			s.counts.displaced.Add(1)
			s.opts.Log.Error("displaced: another value stands on the key of a lock that is in use", "key", key, "value", reply.Text, "left", left)
		}
	case protocol.KeepDone:
		token = true
	case protocol.KeepNothing, protocol.KeepOld:
		if w.waits && reply.Int2 > 0 {
			s.counts.ended.Add(1)
			s.counts.granted.Add(1)
			w.waits = false
			s.opts.Log.Warn("the lease ended without a DEL", "key", key)
		}
		w.displace = false
		old = reply.Int == protocol.KeepOld && (!w.acts[stages.Legacy].IsZero() || w.since == before)
		old = old || seen.there || seen.held || s.opts.Old != nil && !knows
		if w.attempt.Before(asked) && asked.After(latest(w.acts, time.Time{})) && !old {
			s.keys.forget(s, key, w)
		}
		if !old && w.attempt.Add(s.every(o)).Before(asked) { // a later one may have been on its way
			w.next = latest(w.acts, w.next)
		}
	}
	if token && w.endless && !w.orphan && !w.gone.IsZero() && asked.Sub(w.gone) >= cmp.Or(s.opts.KeepFor, orphanAfter) {
		w.orphan = true
		s.counts.orphaned.Add(1)
		s.opts.Log.Error("all connections from when the lock was taken have ended: its holder may have crashed",
			"key", key, "ended", asked.Sub(w.gone).Round(time.Second), "left", left, "renewed", s.opts.KeepFor == 0)
	}
	w.holds[stages.Legacy] = old
	w.holds[stages.Bridge] = token
	if s.opts.Old != nil && knows { // where it is decides, whoever has put it there
		w.holds = [3]bool{seen.live && !seen.held, seen.live && seen.held, !seen.live && seen.held}
		if w.left = seen.there; o.Stage != stages.Old && w.holds[stages.Legacy] {
			w.next = asked.Add(lookEvery)
		}
	}
}
