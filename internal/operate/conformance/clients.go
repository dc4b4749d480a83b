package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// client is one who locks: a Locker of the implementation, a Go member, an old client. Its errors have words, see WordOf.
type client struct {
	acquire func(ctx context.Context, key string, wait time.Duration) (fleet.Held, error)
	close   func(ctx context.Context) error
}

// told is a lock whose holder knows more of it than an old client does. Its Context ends when it is lost.
type told interface {
	Token() string
	Fence() int64
	Stage() lockmigrate.Stage
}

// alive tells whether the holder still believes in a lock.
func alive(ctx context.Context, held fleet.Held) bool {
	if l, ok := held.(*remoteLock); ok {
		a, err := l.ask(ctx, request{"do": "check", "lock": l.name})
		return err == nil && a.Alive
	}
	return held.Context().Err() == nil
}

// said is the error of a driver's answer.
type said struct{ word, text string }

func (s said) Error() string { return s.word + ": " + s.text }

// WordOf is the word of docs/conformance.md for an error of a lock.
func WordOf(err error) string {
	var answered said
	if errors.As(err, &answered) {
		return answered.word
	}
	for kind, word := range map[error]string{
		nil: "ok", lockmigrate.ErrLost: "lost", lockmigrate.ErrNotAcquired: "refused", lockmigrate.ErrForeignFormat: "foreign",
		lockmigrate.ErrStage: "stage", lockmigrate.ErrUnknownOutcome: "unknown",
	} {
		if errors.Is(err, kind) {
			return word
		}
	}
	return "failed"
}

// word is WordOf, and more where that says little.
func word(err error) string {
	if word := WordOf(err); word != "failed" {
		return word
	}
	return "failed: " + err.Error()
}

// remote is a Locker of the implementation.
type remote struct {
	*process
	locker string
}

// request asks for what is answered by ok, or by a word.
func (r *remote) request(ctx context.Context, q request) (answer, error) {
	q["locker"] = r.locker
	a, err := r.ask(ctx, q)
	if err == nil && !a.OK {
		err = said{a.Error, a.Text}
	}
	return a, err
}

func (r *remote) acquire(ctx context.Context, key string, wait time.Duration) (fleet.Held, error) {
	name := fmt.Sprintf("%s.%d", r.locker, number.Add(1))
	held := r.watch(name)
	a, err := r.request(ctx, request{"do": "acquire", "lock": name, "key": key, "wait_ms": wait.Milliseconds()})
	if err != nil {
		return nil, err
	}
	return &remoteLock{r, name, a, held}, nil
}

func (r *remote) close(ctx context.Context) error {
	_, err := r.request(ctx, request{"do": "close"})
	return err
}

// number makes names that a process has not heard yet.
var number atomic.Int64

// remoteLock is a lock in a driver's hands.
type remoteLock struct {
	*remote
	name string
	answer
	held context.Context
}

func (l *remoteLock) Context() context.Context { return l.held }
func (l *remoteLock) Token() string            { return l.answer.Token }
func (l *remoteLock) Fence() int64             { return l.answer.Fence }

func (l *remoteLock) Stage() lockmigrate.Stage {
	stage, err := stages.Parse(l.answer.Stage)
	if err != nil {
		return -1
	}
	return stage
}

func (l *remoteLock) Release(ctx context.Context) error {
	_, err := l.request(ctx, request{"do": "release", "lock": l.name})
	return err
}

// Attempt is an acquire request for a Go Locker.
func Attempt(ctx context.Context, l lockmigrate.Locker, key string, wait time.Duration) (lockmigrate.Lock, error) {
	if wait == 0 {
		return l.TryAcquire(ctx, key)
	}
	waits, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return l.Acquire(waits, key)
}

// open makes the client that a name stands for: go... is a Go member, old... an old client, anything else the implementation.
func (p *play) open(ctx context.Context, a *actor, args map[string]string) (string, error) {
	r, offset := p.record, time.Duration(0)
	if args["ahead"] != "" {
		offset, _ = time.ParseDuration(args["ahead"])
	}
	pool := dials(a.link)
	fence, ttl := time.Duration(0), ttl
	if args["ttl"] != "" {
		ttl, _ = time.ParseDuration(args["ttl"])
	}
	if args["fence"] != "" {
		fence = time.Minute
	}
	switch {
	case strings.HasPrefix(a.name, "go"):
		locker, err := compat.New(pool, compat.Options{
			Namespace: r.Namespace, Member: a.name, TTL: ttl, Lease: r.Shortest, ReplyTimeout: replyTimeout, FenceTTL: fence,
		})
		if err != nil {
			return "", err
		}
		a.client = client{func(ctx context.Context, key string, wait time.Duration) (fleet.Held, error) {
			return fleet.Of(func(ctx context.Context, key string) (lockmigrate.Lock, error) {
				return Attempt(ctx, locker, key, wait)
			})(ctx, key)
		}, func(context.Context) error { return errors.Join(locker.Close(), pool.Close()) }}
		return word(locker.Ready(ctx)), nil
	case strings.HasPrefix(a.name, "old"):
		old := &fleet.Old{Pool: pool, Dialect: p.dialect(), Lease: r.Shortest, Poll: 20 * time.Millisecond, Offset: offset}
		a.client = client{func(ctx context.Context, key string, wait time.Duration) (fleet.Held, error) {
			waits, cancel := context.WithTimeout(ctx, max(wait, 10*old.Poll))
			defer cancel()
			lock, err := old.Acquire(waits, key)
			if err != nil && waits.Err() != nil {
				err = lockmigrate.ErrNotAcquired
			}
			return lock, err
		}, func(context.Context) error { return pool.Close() }}
		return "ok", nil
	}
	proc, err := p.process(ctx)
	if err != nil {
		return "", err
	}
	l := &remote{proc, fmt.Sprintf("%s%d", a.name, number.Add(1))}
	a.client, a.proc = client{l.acquire, l.close}, proc
	_, err = l.request(ctx, request{
		"do": "open", "redis": "redis://" + a.link.Addr + "/0", "namespace": r.Namespace, "member": a.name, "stage": r.Stage.String(), "dialect": r.Dialect,
		"ttl_ms": ttl.Milliseconds(), "lease_ms": r.Shortest.Milliseconds(), "reply_ms": replyTimeout.Milliseconds(), "shortest_ms": r.Shortest.Milliseconds(),
		"lag_ms": r.ClockLag.Milliseconds(), "delay_ms": r.CommandDelay.Milliseconds(), "yield_ms": r.Yield.Milliseconds(), "fence_ttl_ms": fence.Milliseconds(),
	})
	return word(err), nil
}
