package stages

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate"
)

// Follower keeps a Locker in its namespace: it reports, and hands what it is told to the gate.
type Follower[T any] struct {
	Gate       *Gate[T]
	Membership *Membership
	Lease      time.Duration // from a report to the next one that must have come through
	// Under returns what an order means for the Locker's attempts, and for how long a lock can then outlive its last renewal; or why
	// the record and the Locker's options do not go together.
	Under func(o Order) (terms T, longest time.Duration, misfit error)
	// Obeyed is told of terms that count from now on. Heard is told the server's time, and when it had not been asked yet.
	Obeyed func(terms T)
	Heard  func(server, sent time.Time)
	// Says, if set, fills in what a report tells people.
	Says func(info *Info)
	// Seen is told of every change of the stage, and once why nothing may be acquired any more.
	Seen lockmigrate.Observer

	why     string        // why the record cannot be run, as the last answer says; empty when it can
	longest time.Duration // for how long a lock can outlive its last renewal, under every record that was ever obeyed
	closed  bool          // that nothing may be acquired has been told
}

// Run reports until ctx ends. It is for one goroutine.
func (m *Follower[T]) Run(ctx context.Context) {
	Keep(ctx, m.Lease, m.Gate.drained, func(ctx context.Context) (bool, error) {
		news, err := m.report(ctx)
		stage, epoch, why := m.Gate.Stage()
		switch {
		case err == nil && (news || m.closed):
			m.closed = false
			m.tell(stage, epoch, nil)
		case err != nil && why != nil && !m.closed && ctx.Err() == nil:
			m.closed = true
			m.tell(0, 0, why)
		}
		return news, err
	})
}

func (m *Follower[T]) tell(stage Stage, epoch int64, why error) {
	m.Seen(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.Membership.Store.Namespace, Stage: stage, Epoch: epoch, Err: why})
}

// report refreshes the lease, and takes what the answer says to the gate. News tells that the next report has
// something to say that this one had not.
func (m *Follower[T]) report(ctx context.Context) (news bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, min(m.Membership.Store.ReplyTimeout, m.Lease/2))
	defer cancel()
	if !m.Membership.Known() {
		order, err := m.Membership.Hello(bounded)
		if err != nil {
			return false, m.failed(ctx, err)
		}
		_, longest, wrong := m.Under(order)
		m.note(wrong)
		if wrong == nil {
			m.longest = longest
		}
	}
	report := Report{Lease: m.Lease, Longest: m.longest, Misfit: m.why}
	m.Gate.report(&report)
	if m.Says != nil {
		m.Says(&m.Membership.Info)
	}
	sent := time.Now()
	order, until, err := m.Membership.Report(bounded, report)
	if !order.Now.IsZero() {
		m.Heard(order.Now, sent)
	}
	if err != nil {
		return errors.Is(err, ErrLate), m.failed(ctx, err)
	}
	terms, longest, wrong := m.Under(order)
	said := m.why
	m.note(wrong)
	switch {
	case wrong != nil:
		m.Gate.extend(order, until)
		return m.why != said, m.failed(ctx, &misfit{wrong})
	case said != "", longest > m.longest:
		// The record says that this member does not run it, or that its locks end sooner. Nothing may be acquired
		// before the record is right.
		m.longest = max(m.longest, longest)
		return true, nil
	default:
		if news = m.Gate.obey(order, terms, until); news {
			m.Obeyed(terms)
		}
		return news, nil
	}
}

// note keeps why the record cannot be run, in one line and not too long: it is for people who look at the stage.
func (m *Follower[T]) note(misfit error) {
	m.why = ""
	if misfit != nil {
		m.why = strings.ReplaceAll(misfit.Error(), "\n", "; ")
		if len(m.why) > longestWhy {
			m.why = strings.ToValidUTF8(m.why[:longestWhy], "") + " ..."
		}
	}
}

const longestWhy = 500 // bytes

// failed takes the failure of a report to the gate.
func (m *Follower[T]) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		m.Gate.failed(err)
	}
	return err
}

// Leave says goodbye, if nothing is held. Otherwise the lease runs out by itself.
func (m *Follower[T]) Leave() {
	if !m.Gate.idle() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.Membership.Store.ReplyTimeout)
	defer cancel()
	_ = m.Membership.Leave(ctx) // the lease runs out by itself
}
