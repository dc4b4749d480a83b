package stages

import (
	"context"
	"errors"
	"time"
)

// Following is what a member follows, and what its reports have to say of it. It is for those who hold its owner's lock.
type Following struct {
	Order
	Ready bool      // an order has come
	Until time.Time // the end of the member's lease on the local monotonic clock
	since int64     // the epoch of the earliest order under which something was begun that may still act
}

// Lives tells that the lease lasts: something may be begun.
func (f *Following) Lives() bool { return f.Ready && time.Now().Before(f.Until) }

// Obey takes the order that answers a report. Earlier tells that something which was begun under an order before the present one may still
// act. News tells that the member runs something else from now on, which its next report should say soon.
func (f *Following) Obey(o Order, until time.Time, earlier bool) (news bool) {
	news = !f.Ready || f.Epoch != o.Epoch || f.Stage != o.Stage
	if f.Epoch != o.Epoch && !earlier {
		f.since = f.Epoch
	}
	f.Order, f.Until, f.Ready = o, until, true
	return news
}

// Says fills in what the member runs. While something that was begun under an earlier order may act, that is the earlier one: who waits for
// a corrected record to be followed waits for it too, because it takes keys over by the times of the record as it was.
func (f *Following) Says(r *Report, earlier bool) {
	r.Epoch, r.Stage = -1, -1
	if !f.Lives() {
		return
	}
	r.Epoch, r.Stage = f.Epoch, f.Stage
	if earlier {
		r.Epoch = f.since
	}
}

// Ends tells that a report which failed ends the lease at once: there is no record, or one of a protocol that this build does not know, or
// what this member runs is two stages away from it. After any other failure the lease goes on to its end.
func Ends(err error) bool {
	return errors.Is(err, ErrNoRecord) || errors.Is(err, ErrApart) || errors.Is(err, ErrNewer)
}

// End ends the lease.
func (f *Following) End() {
	if now := time.Now(); now.Before(f.Until) {
		f.Until = now
	}
}

// Keep reports until ctx ends: three times in each lease, at once where a report has news or wake says so, and soon after a failure.
func Keep(ctx context.Context, lease time.Duration, wake <-chan struct{}, report func(ctx context.Context) (news bool, err error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := lease / 60
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		next := lease / 3
		news, err := report(ctx)
		if err != nil {
			next, pause = pause, min(2*pause, lease/10)
		} else {
			pause = lease / 60
		}
		if news {
			next = 0
		}
		timer.Reset(next)
	}
}
