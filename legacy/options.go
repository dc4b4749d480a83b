package legacy

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// defaultLease is how long a lock is held at most.
const defaultLease = 5 * time.Minute

// Options of a Locker. The zero value speaks dialect jedis-ms with a lease of five minutes. It waits for as long as the context
// allows, and deletes only while its lease lasts. No duration may be longer than ten years.
type Options struct {
	// Dialect of the fleet. Every client of a key must speak the same one. Zero: jedis-ms.
	Dialect Dialect

	// Lease is how long a lock is held at most before others take it over. It must be a whole number of
	// the dialect's unit, and longer than the work plus the fleet's clock skew: nothing renews it
	// unless Renew is called. Zero: 5 minutes.
	Lease time.Duration

	// Wait is how long Acquire tries (the article's timeoutMsecs). As in the old code the sleeps count against it. An attempt that
	// begins within it is finished, within one Poll; here the time that attempts take counts too. Zero: as long as the context
	// lasts.
	Wait time.Duration

	// Poll is the sleep between two attempts. Zero: the dialect's own, 100 ms for most. Shorter values
	// cost the server three commands an attempt and a waiter.
	Poll time.Duration

	// Jitter is the most that is added to each Poll, at random, so that waiters do not march in step.
	// Zero: none, as the old clients.
	Jitter time.Duration

	// Release says how a lock is given back. Zero: ReleaseUnexpired.
	Release ReleasePolicy

	// FollowServer lives by the server's TIME instead of the host's wall clock, for hosts whose clock is not trusted: each value
	// is written and judged by it. The offset is measured every 30 s, to within half a round trip, and carried on by the
	// monotonic clock. When no measurement comes through for 5 minutes, nothing is acquired or renewed.
	FollowServer bool

	// Observer is told of acquisitions, waits, renewals, losses, releases and failures. Nil: nobody is.
	Observer lockmigrate.Observer

	// ReplyTimeout is when a reply that has not come counts as lost, or a quarter later, whatever the context says. The server is then
	// asked what became of the command. So a call to a server that never answers takes several times ReplyTimeout: bound its
	// context for less. Zero: 5 s, or a quarter of Lease if that is shorter.
	ReplyTimeout time.Duration
}

// ReleasePolicy says how a lock is given back. Where an earlier DEL may have run, the next one is sent only while the
// key holds our value, and not where that DEL may be on its way yet: then the key is free when it has come, or at the end of the lease.
type ReleasePolicy uint8

const (
	// ReleaseUnexpired sends DEL while the lease is unexpired by the holder's own clock, and nothing after. What remains is a
	// stale-delete in three cases: the holder's clock is behind; its DEL is delayed on the way; after an early-takeover.
	ReleaseUnexpired ReleasePolicy = iota

	// ReleaseAsDialect does what the dialect's old clients do. For jedis-ms that is a DEL whatever has
	// happened since: a holder that overran its lease removes its successor's key (stale-delete).
	ReleaseAsDialect

	// ReleaseCompare deletes the key in one script if it still holds the value that we wrote. After a
	// clobber it does not, so the key stays as a ghost until the clobberer's expiry. Where two clients
	// can write the same number in the same unit of time, a twin's key can be deleted.
	ReleaseCompare
)

func (p ReleasePolicy) rule(d *protocol.Dialect) protocol.Release {
	switch p {
	case ReleaseAsDialect:
		return d.Release
	case ReleaseCompare:
		return protocol.ReleaseCompare
	default:
		return protocol.ReleaseUnexpired
	}
}

// validate tells what is wrong with the options, without changing them.
func (o Options) validate() error {
	wrong := []error{
		lockers.Durations(lockers.Named{Name: "Lease", Value: o.Lease}, lockers.Named{Name: "Wait", Value: o.Wait}, lockers.Named{Name: "Jitter", Value: o.Jitter}),
		lockers.Periods(lockers.Named{Name: "Poll", Value: o.Poll}, lockers.Named{Name: "ReplyTimeout", Value: o.ReplyTimeout}),
	}
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	d, err := o.Dialect.rules()
	if err != nil {
		return errors.Join(append(wrong, err)...)
	}
	refuse(o.lease()%d.Unit.Resolution() != 0, "Lease %v: dialect %s writes whole units of %v", o.lease(), d.Name, d.Unit.Resolution())
	refuse(o.Release > ReleaseCompare, "Release %d: no such policy", o.Release)
	return errors.Join(wrong...)
}

func (o Options) lease() time.Duration {
	lockers.Default(&o.Lease, defaultLease)
	return o.Lease
}

func (o Options) withDefaults() Options {
	o.Lease = o.lease()
	rules, _ := o.Dialect.rules()
	lockers.Default(&o.Poll, rules.Poll)
	lockers.Default(&o.ReplyTimeout, lockers.ReplyTimeout(o.Lease))
	return o
}
