package lockers

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Longest is the longest duration that an option may have. Sums and multiples of such durations, and instants so far from
// now, do not overflow. Nobody waits longer for a lock.
const Longest = 10 * 365 * 24 * time.Hour

// Shortest is the shortest pause, period or timeout. Shorter ones would only keep the processor busy.
const Shortest = protocol.ShortestPeriod

// Named is a duration with the name of its option.
type Named struct {
	Name  string
	Value time.Duration
}

// Durations refuses values that are negative or longer than Longest, each with its name and value.
func Durations(options ...Named) error {
	var wrong []error
	for _, o := range options {
		switch {
		case o.Value < 0:
			wrong = append(wrong, fmt.Errorf("%s %v: must not be negative", o.Name, o.Value))
		case o.Value > Longest:
			wrong = append(wrong, fmt.Errorf("%s %v: at most %v, ten years", o.Name, o.Value, Longest))
		}
	}
	return errors.Join(wrong...)
}

// Periods refuses what Durations refuses, and values that are not zero and shorter than Shortest.
func Periods(options ...Named) error {
	wrong := []error{Durations(options...)}
	for _, o := range options {
		if o.Value > 0 && o.Value < Shortest {
			wrong = append(wrong, fmt.Errorf("%s %v: at least %v", o.Name, o.Value, Shortest))
		}
	}
	return errors.Join(wrong...)
}

// CheckPool refuses a pool that can never give a connection: none, a nil pointer, and a *redis.Pool without a function to dial. It refuses
// one that only hands out connections: a lock waits, renews and outlives failovers over connections of its own.
func CheckPool(pool lockmigrate.Pool) error {
	if pool == nil {
		return errors.New("a Locker needs a pool")
	}
	if v := reflect.ValueOf(pool); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("a Locker needs a pool: the %T is nil", pool)
	}
	if p, ok := pool.(*redis.Pool); ok && p.Dial == nil && p.DialContext == nil {
		return errors.New("the *redis.Pool has neither Dial nor DialContext: set one of them")
	}
	if topology.RouterOf(pool) == nil && topology.Dialler(pool) == nil {
		return fmt.Errorf("the %T only hands out connections: give it a method Dial(context.Context) (redis.Conn, error), see lockmigrate.Dialer", pool)
	}
	return nil
}

// SamePool tells that two pools are one and the same.
func SamePool(a, b lockmigrate.Pool) bool {
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	return v.Kind() == reflect.Pointer && v.Type() == w.Type() && v.Pointer() == w.Pointer()
}

// Default sets a value that is zero.
func Default(value *time.Duration, otherwise time.Duration) {
	if *value == 0 {
		*value = otherwise
	}
}

// Terms are the options that all locks with a TTL share.
type Terms struct {
	TTL, Wait    time.Duration
	RenewEvery   time.Duration // negative: never
	MaxHold      time.Duration
	ReplyTimeout time.Duration
	Poll         time.Duration
}

// WithDefaults fills in the zero values.
func (t Terms) WithDefaults() Terms {
	Default(&t.TTL, protocol.DefaultTTL)
	Default(&t.RenewEvery, t.TTL/3)
	Default(&t.ReplyTimeout, ReplyTimeout(t.TTL))
	Default(&t.Poll, 100*time.Millisecond)
	return t
}

// ReplyTimeout is the default wait for a reply where locks last for ttl: 5 s, or a quarter of ttl, which leaves time for
// another try.
func ReplyTimeout(ttl time.Duration) time.Duration { return max(min(5*time.Second, ttl/4), Shortest) }

// Validate refuses what no lock with a TTL can work with.
func (t Terms) Validate() error {
	d := t.WithDefaults()
	wrong := []error{
		Durations(Named{"TTL", t.TTL}, Named{"Wait", t.Wait}, Named{"MaxHold", t.MaxHold}),
		Periods(Named{"RenewEvery", max(t.RenewEvery, 0)}, Named{"ReplyTimeout", t.ReplyTimeout}, Named{"Poll", t.Poll}),
	}
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	refuse(d.TTL < 10*time.Millisecond || d.TTL%time.Millisecond != 0, "TTL %v: whole milliseconds, at least 10; a lease must outlast a few round trips", d.TTL)
	refuse(d.RenewEvery > d.TTL/2, "RenewEvery %v: more than half of TTL %v; one lost reply would lose the lock", d.RenewEvery, d.TTL)
	refuse(t.RenewEvery < 0 && t.MaxHold > d.TTL, "MaxHold %v: without renewal a lock is held for TTL %v", t.MaxHold, d.TTL)
	refuse(d.ReplyTimeout >= d.TTL, "ReplyTimeout %v: not less than TTL %v; a lease would end before its acquisition is known", d.ReplyTimeout, d.TTL)
	return errors.Join(wrong...)
}
