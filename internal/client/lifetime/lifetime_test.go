package lifetime

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a kind of lock whose commands end as the test says.
type fake struct {
	Life
	ended, gone int
	answers     chan driver.Outcome
	asked       chan string
	running     sync.WaitGroup
	unreachable bool // nothing can be sent
}

func (f *fake) Key() string                     { return "orders" }
func (f *fake) Acquired(driver.Outcome)         {}
func (f *fake) Explain(e *lockmigrate.Error)    {}
func (f *fake) Ended(*lockmigrate.Error)        { f.ended++ }
func (f *fake) Gone()                           { f.gone++ }
func (f *fake) Renewal() protocol.Command       { return protocol.Command{} }
func (f *fake) Heard(protocol.Reply) (a Answer) { return a }

func (f *fake) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	return f.run(ctx, "renew", abandoned)
}

func (f *fake) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	return f.run(ctx, "release", abandoned)
}

// run is as driver.PerAttempt's Advance.
func (f *fake) run(ctx context.Context, op string, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	if err := context.Cause(ctx); err != nil {
		return outcome(protocol.Failed, err), err
	}
	if f.unreachable {
		return outcome(protocol.Failed, io.ErrNoProgress), io.ErrNoProgress
	}
	f.asked <- op
	select {
	case o := <-f.answers:
		return o, nil
	case <-ctx.Done():
		f.running.Go(func() { abandoned(<-f.answers) })
		return outcome(protocol.Unsure, context.Cause(ctx)), context.Cause(ctx)
	}
}

func outcome(v protocol.Verdict, err error) driver.Outcome {
	return driver.Ended(v, err)
}

// bench is one lock on a clock of its own.
type bench struct {
	*testing.T
	fake
	mu     sync.Mutex
	now    protocol.Instant
	events []lockmigrate.EventKind
	group  driver.Background
	watch  *still
}

// still is a watch that the test wakes.
type still struct{ b *bench }

func (w *still) Add(*Lease)         {}
func (w *still) Rest(*Lease)        {}
func (w *still) Remove(*Lease) bool { return true }
func (w *still) Extend(s *Lease, until protocol.Instant) (Loss, bool) {
	if s.Until() <= w.b.clock() {
		return Deadline, false
	}
	s.Begin(s.Began, until)
	return 0, true
}

const lease = 10 * time.Second

func newBench(t *testing.T) *bench {
	b := &bench{T: t}
	b.answers, b.asked = make(chan driver.Outcome, 4), make(chan string, 8)
	b.watch = &still{b}
	b.Init(&Locker{
		Now: b.clock, At: func(i protocol.Instant) time.Time { return i.Time() }, Watch: b.watch, Background: &b.group,
		ReplyTimeout: time.Second, Pause: time.Hour,
		Seen: func(e lockmigrate.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e.Kind)
		},
	}, &b.fake, context.Background())
	b.Lease.Owner, b.Lease.Span, b.Lease.Every = &b.fake, lease, lease/3
	b.Lease.Begin(0, protocol.Instant(lease))
	t.Cleanup(func() {
		b.running.Wait()
		b.group.Close()
	})
	return b
}

func (b *bench) clock() protocol.Instant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func (b *bench) seen() []lockmigrate.EventKind {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]lockmigrate.EventKind(nil), b.events...)
}

func (b *bench) reason() lockmigrate.Reason {
	var e *lockmigrate.Error
	require.ErrorAs(b, context.Cause(b.Life.Context()), &e)
	return e.Reason
}

func (b *bench) release(v protocol.Verdict, err error) error {
	b.answers <- outcome(v, err)
	return b.Life.Release(b.T.Context())
}

func (b *bench) renew(v protocol.Verdict, err error) error {
	b.answers <- outcome(v, err)
	return b.Life.Renew(b.T.Context())
}

// TestReleases: what each sequence of verdicts means to the holder, once and for all.
func TestReleases(t *testing.T) {
	type step struct {
		verdict protocol.Verdict
		want    error
	}
	const failed, released, lost = lockmigrate.EventFailed, lockmigrate.EventReleased, lockmigrate.EventLost
	events := func(all ...lockmigrate.EventKind) []lockmigrate.EventKind { return all }
	for name, c := range map[string]struct {
		steps  []step
		cause  error // of the holder's context; nil: it has not ended
		events []lockmigrate.EventKind
	}{
		"released":                         {[]step{{protocol.Released, nil}, {protocol.Pending, lockmigrate.ErrReleased}}, lockmigrate.ErrReleased, events(released)},
		"not ours":                         {[]step{{protocol.NotOurs, lockmigrate.ErrLost}, {protocol.Pending, lockmigrate.ErrLost}}, lockmigrate.ErrLost, events(lost)},
		"displaced":                        {[]step{{protocol.Displaced, lockmigrate.ErrLost}}, lockmigrate.ErrLost, events(lost)},
		"refused":                          {[]step{{protocol.Failed, io.EOF}}, nil, events(failed)},
		"refused, then not ours":           {[]step{{protocol.Failed, io.EOF}, {protocol.NotOurs, lockmigrate.ErrLost}}, lockmigrate.ErrLost, events(failed, lost)},
		"no answer":                        {[]step{{protocol.Unsure, lockmigrate.ErrUnknownOutcome}}, nil, events(failed)},
		"no answer, then not ours: it ran": {[]step{{protocol.Unsure, lockmigrate.ErrUnknownOutcome}, {protocol.NotOurs, nil}}, lockmigrate.ErrReleased, events(failed, released)},
		"no answer, then displaced":        {[]step{{protocol.Unsure, lockmigrate.ErrUnknownOutcome}, {protocol.Displaced, lockmigrate.ErrLost}}, lockmigrate.ErrLost, events(failed, lost)},
		"no answer, then released":         {[]step{{protocol.Unsure, lockmigrate.ErrUnknownOutcome}, {protocol.Released, nil}}, lockmigrate.ErrReleased, events(failed, released)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, s := range c.steps {
				var err error
				if s.verdict == protocol.Pending { // nothing is asked any more
					err = b.Life.Release(t.Context())
				} else {
					err = b.release(s.verdict, io.EOF)
				}
				assert.ErrorIs(t, err, s.want)
			}
			assert.ErrorIs(t, context.Cause(b.Life.Context()), c.cause)
			assert.Equal(t, c.events, b.seen())
			ends := 0
			if c.cause != nil {
				ends = 1
			}
			assert.Equal(t, ends, b.ended)
			assert.Equal(t, ends, b.gone)
			if c.cause == nil {
				assert.NoError(t, b.Life.Context().Err(), "the watch goes on")
				b.pass(lease)
				b.Lost(Deadline)
				assert.ErrorIs(t, context.Cause(b.Life.Context()), lockmigrate.ErrLost)
				assert.ErrorIs(t, context.Cause(b.Life.Context()), io.EOF, "and says how the release failed")
				assert.Equal(t, lockmigrate.ReasonDeadline, b.reason())
				assert.ErrorIs(t, b.release(protocol.Failed, io.EOF), lockmigrate.ErrLost, "a failure does not hide it")
				assert.ErrorIs(t, b.release(protocol.Released, nil), lockmigrate.ErrLost)
				assert.Equal(t, 1, b.ended)
				assert.Equal(t, 1, b.gone)
			}
		})
	}
}

// TestKeptAfterTheDeadlineIsNoRelease: the earlier release ran, or the lease has run out; nobody knows.
func TestKeptAfterTheDeadlineIsNoRelease(t *testing.T) {
	b := newBench(t)
	require.ErrorIs(t, b.release(protocol.Unsure, io.EOF), lockmigrate.ErrUnknownOutcome)
	b.pass(lease) // and the watch comes after us
	assert.ErrorIs(t, b.release(protocol.NotOurs, nil), lockmigrate.ErrLost)
	assert.Equal(t, lockmigrate.ReasonDeadline, b.reason())
}

func TestRenewals(t *testing.T) {
	for name, c := range map[string]struct {
		verdict protocol.Verdict
		late    time.Duration // between the question and the reply
		told    bool          // the watch comes before the reply
		want    error
		reason  lockmigrate.Reason // empty: it is held
	}{
		"renewed":            {protocol.Renewed, 0, false, nil, ""},
		"repaired":           {protocol.Repaired, 0, false, nil, ""},
		"after the deadline": {protocol.Renewed, lease, false, lockmigrate.ErrLost, lockmigrate.ReasonDeadline},
		"after the watch":    {protocol.Renewed, lease, true, lockmigrate.ErrLost, lockmigrate.ReasonDeadline},
		"not ours":           {protocol.Lost, 0, false, lockmigrate.ErrLost, lockmigrate.ReasonTaken},
		"displaced":          {protocol.Displaced, 0, false, lockmigrate.ErrLost, lockmigrate.ReasonDisplaced},
		"refused":            {protocol.Failed, 0, false, io.EOF, ""},
		"no answer":          {protocol.Unsure, 0, false, lockmigrate.ErrUnknownOutcome, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.pass(time.Second)
			renewed := make(chan error, 1)
			go func() { renewed <- b.Life.Renew(t.Context()) }()
			<-b.asked
			b.pass(c.late)
			if c.told {
				b.Lost(Deadline)
			}
			b.answers <- outcome(c.verdict, io.EOF)
			assert.ErrorIs(t, <-renewed, c.want)
			if c.reason == "" {
				assert.NoError(t, b.Life.Context().Err())
			} else {
				assert.Equal(t, c.reason, b.reason())
			}
			want := protocol.Instant(lease)
			if c.want == nil {
				want = want.Add(time.Second)
			}
			assert.Equal(t, want, b.Lease.Until(), "counted from before the question")
		})
	}
}

// TestADeadlineSaysWhatFailedLast, and no failure before a renewal that came through.
func TestADeadlineSaysWhatFailedLast(t *testing.T) {
	b := newBench(t)
	b.RenewalFailed(io.ErrUnexpectedEOF)
	require.NoError(t, b.renew(protocol.Renewed, nil))
	b.Lost(Deadline)
	assert.NotErrorIs(t, context.Cause(b.Life.Context()), io.ErrUnexpectedEOF)

	b = newBench(t)
	b.RenewalFailed(io.ErrUnexpectedEOF)
	b.RenewalFailed(io.EOF)
	b.Lost(Deadline)
	b.Lost(Taken) // too late: the first cause counts
	cause := context.Cause(b.Life.Context())
	assert.ErrorIs(t, cause, io.EOF)
	assert.ErrorContains(t, cause, "no renewal came through for 10s")
	assert.Equal(t, lockmigrate.ReasonDeadline, b.reason())
	assert.Equal(t, []lockmigrate.EventKind{lockmigrate.EventFailed, lockmigrate.EventFailed, lockmigrate.EventLost}, b.seen())
}

// TestADeadlineNamesTheSpanThatRanOut: a lock that was handed over lasts for its claim only, until its first renewal.
func TestADeadlineNamesTheSpanThatRanOut(t *testing.T) {
	b := newBench(t)
	b.Lease.Begin(0, protocol.Instant(lease/20))
	b.Lost(Deadline)
	assert.ErrorContains(t, context.Cause(b.Life.Context()), "no renewal came through for 500ms")

	b = newBench(t)
	b.Lease.Begin(0, protocol.Instant(lease/20))
	require.Error(t, b.release(protocol.Failed, io.EOF))
	b.Lost(Deadline)
	assert.ErrorContains(t, context.Cause(b.Life.Context()), "before the deadline of the lease of 500ms")
}

// TestOneCommandAtATime: the turn of a command whose caller has left lasts until its reply, and who waits for it leaves with
// its context.
func TestOneCommandAtATime(t *testing.T) {
	b := newBench(t)
	ctx, leave := context.WithCancel(t.Context())
	renewed := make(chan error, 1)
	go func() { renewed <- b.Life.Renew(ctx) }()
	require.Equal(t, "renew", <-b.asked)
	leave()
	require.ErrorIs(t, <-renewed, lockmigrate.ErrUnknownOutcome)

	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, b.Life.Renew(short), context.DeadlineExceeded)
	assert.ErrorContains(t, b.Life.Release(short), "goes on in the background")
	assert.ErrorContains(t, b.Life.Release(short), "goes on in the background", "once is enough")
	assert.Empty(t, b.asked, "nothing crosses the renewal")

	b.answers <- outcome(protocol.Renewed, nil)
	require.Equal(t, "release", <-b.asked)
	b.answers <- outcome(protocol.Released, nil)
	<-b.Life.Context().Done()
	assert.ErrorIs(t, context.Cause(b.Life.Context()), lockmigrate.ErrReleased)
	b.group.Close()
	assert.Empty(t, b.asked, "and one release was sent")
	assert.Equal(t, []lockmigrate.EventKind{lockmigrate.EventRenewed, lockmigrate.EventReleased}, b.seen())
}

// TestAReleaseOutlivesItsCaller, who left before it or while it was under way.
func TestAReleaseOutlivesItsCaller(t *testing.T) {
	for _, before := range []bool{true, false} {
		b := newBench(t)
		ctx, leave := context.WithCancel(t.Context())
		if before {
			leave()
		}
		released := make(chan error, 1)
		go func() { released <- b.Life.Release(ctx) }()
		require.Equal(t, "release", <-b.asked)
		leave()
		require.ErrorIs(t, <-released, context.Canceled)
		assert.NoError(t, b.Life.Context().Err())
		b.answers <- outcome(protocol.Released, nil)
		<-b.Life.Context().Done()
		assert.ErrorIs(t, context.Cause(b.Life.Context()), lockmigrate.ErrReleased)
	}
}

// TestAReleaseBehindItsCallerIsTriedOnce: where not even a connection is to be had, it gives up, and says so.
func TestAReleaseBehindItsCallerIsTriedOnce(t *testing.T) {
	b := newBench(t)
	b.unreachable = true
	ctx, leave := context.WithCancel(t.Context())
	leave()
	require.ErrorIs(t, b.Life.Release(ctx), context.Canceled)
	b.group.Close()
	assert.Equal(t, []lockmigrate.EventKind{lockmigrate.EventFailed}, b.seen())
	assert.NoError(t, b.Life.Context().Err(), "the watch goes on")
}

func TestAfterCloseNothingIsSent(t *testing.T) {
	b := newBench(t)
	b.group.Close()
	assert.ErrorIs(t, b.Life.Renew(t.Context()), ErrClosed)
	assert.ErrorIs(t, b.Life.Release(t.Context()), ErrClosed)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	assert.ErrorIs(t, b.Life.Release(ctx), ErrClosed)
	b.Lost(Closed)
	assert.ErrorIs(t, b.Life.Release(t.Context()), lockmigrate.ErrLost)
	assert.Empty(t, b.asked)
}
