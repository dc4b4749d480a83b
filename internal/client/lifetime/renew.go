package lifetime

import (
	"context"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// notRenewable says why nothing renews the lock any more, nil while something may. After a Release that failed the next one may
// run at any moment: a renewal's yes would be true for as long as nothing is asked.
func (l *Life) notRenewable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if over := l.why(); over != nil || !l.rests {
		return over
	}
	e := l.Fail("renew", lockmigrate.ErrReleased, nil)
	e.Note = "a release was asked for; it is tried again until the lease is over"
	return e
}

// Renew extends the lease to its full length from now.
func (l *Life) Renew(ctx context.Context) error {
	if ctx == nil {
		return l.Fail("renew", nil, ErrNoContext)
	}
	if err := l.lock(ctx, renewing); err != nil {
		return l.Fail("renew", nil, err)
	}
	if over := l.notRenewable(); over != nil {
		l.unlock()
		return over
	}
	if !l.locker.Background.Begin() {
		l.unlock()
		return l.Fail("renew", nil, ErrClosed)
	}
	goesOn := false
	defer l.handBack(&goesOn)
	l.asked = l.locker.Now()
	outcome, err := l.kind.Renew(ctx, l.Left())
	if err != nil && outcome.Step.Verdict == protocol.Unsure { // the turn, too, goes on in the background
		goesOn = true
		e := l.Fail("renew", lockmigrate.ErrUnknownOutcome, err)
		e.Note = "held until the old deadline"
		return l.orLost(e)
	}
	if err != nil {
		return l.orLost(l.notRenewed(driver.Outcome{Step: outcome.Step, Err: err}))
	}
	return l.renewed(outcome)
}

func (l *Life) renewed(outcome driver.Outcome) error {
	switch v := outcome.Step.Verdict; v {
	case protocol.Renewed, protocol.Repaired:
		if over := l.Over(); over != nil {
			return over // the deadline was faster; a release gives back what was extended
		}
		if why, ok := l.locker.Watch.Extend(&l.Lease, l.asked.Add(l.Lease.Span-l.locker.Drift)); !ok {
			l.Lost(why) // the reply came after the deadline, and we come before the watch
			return l.Over()
		}
		l.RenewedAs(v, l.locker.Now().Sub(l.asked))
		return nil
	case protocol.Lost, protocol.Displaced:
		l.locker.Watch.Remove(&l.Lease)
		l.LoseTo(v, "renew")
		return l.Over()
	default:
		l.note(outcome.Err)
		err := l.notRenewed(outcome)
		l.observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "renew", Took: l.locker.Now().Sub(l.asked), Err: err})
		return l.orLost(err)
	}
}

// notRenewed is the error of a renewal after which the lock is held as before.
func (l *Life) notRenewed(outcome driver.Outcome) *lockmigrate.Error {
	e := l.Fail("renew", nil, outcome.Err)
	if outcome.Step.Verdict != protocol.Failed {
		e.Kind = lockmigrate.ErrUnknownOutcome
	}
	e.Note = "held until the old deadline"
	l.kind.Explain(e)
	return e
}

// RenewAlone is Lease.Alone, for a kind whose renewal is more than one command.
func (l *Life) RenewAlone() (Answer, error) {
	bounded, cancel := context.WithTimeout(context.Background(), 4*l.locker.ReplyTimeout)
	defer cancel()
	if err := l.lock(bounded, renewing); err != nil {
		return Unclear, err
	}
	defer l.unlock()
	if over := l.notRenewable(); over != nil {
		return Unclear, over
	}
	if !l.locker.Background.Begin() {
		return Unclear, ErrClosed
	}
	defer l.locker.Background.End()
	ended := make(chan driver.Outcome, 1)
	outcome, err := l.kind.Renew(bounded, func(o driver.Outcome) { ended <- o })
	if err != nil && outcome.Step.Verdict == protocol.Unsure {
		outcome = <-ended // nobody is kept waiting: this is the renewer's own goroutine
	} else if err != nil {
		outcome.Err = err
	}
	if answer := AnswerOf(outcome.Step.Verdict); answer != Unclear {
		return answer, nil
	}
	return Unclear, outcome.Err
}

// Renewed implements Held.
func (l *Life) Renewed(took time.Duration) { l.RenewedAs(protocol.Renewed, took) }

// RenewedAs tells of a renewal that came through, in one of the ways that there are: Renewed or Repaired.
func (l *Life) RenewedAs(v protocol.Verdict, took time.Duration) {
	l.note(nil)
	e := lockmigrate.Event{Kind: lockmigrate.EventRenewed, Op: "renew", Took: took}
	if v == protocol.Repaired {
		e.Note = "repaired: a stale DEL had removed the key"
	}
	l.observe(e)
}

// RenewalFailed implements Held.
func (l *Life) RenewalFailed(cause error) {
	l.note(cause)
	e := l.notRenewed(driver.Ended(protocol.Failed, cause))
	l.observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "renew", Err: e})
}
