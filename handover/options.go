package handover

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a Locker. Namespace, Old and New are required.
type Options struct {
	// Namespace names the record that says which stage to run: `lockmigrate stage init --handover`. It lies on the pool's server.
	Namespace string

	// Old and New are the locks to move from and to. The Locker uses them and does not close them: close it first.
	Old, New lockmigrate.Locker

	// OldName and NewName say which lock it is where a half is not of this module, or is a quorum: the record has the same name. Zero: the name that
	// Wrap was given. A half of this module is known by the mark on its server.
	OldName, NewName string

	// OldConnections, where Old is a lock of another library on Redis, are that library's connections: see there. Locks of this module tell theirs.
	OldConnections *Connections

	// NewKey is what New calls the key that Old calls key. Every member must give the same function. Nil: the same name.
	NewKey func(key string) string

	// Lease is for how long the member may acquire, and its locks last, after its last report that came through. It reports three
	// times in each. At least 300 ms. Zero: 60 s.
	Lease time.Duration

	// Wait is how long Acquire tries. Zero: as long as the context lasts.
	Wait time.Duration

	// Member is what this process is called in `lockmigrate stage`, where a random part follows it. Zero: host and process id.
	Member string

	// ReplyTimeout bounds the wait for each reply of the record's server. Zero: 5 s, or a quarter of Lease if that is shorter.
	ReplyTimeout time.Duration

	// Observer, if set, is told of stages, acquisitions, releases and losses of whole locks; the halves have observers of their own.
	Observer lockmigrate.Observer
}

// Connections are those of a library to the Redis server of its locks. A member reports them, and `lockmigrate verify --only-members` knows by that
// which commands on the server are its own. Have the library call Opened for each connection, before it is used. With go-redis:
//
//	var conns handover.Connections
//	client := redis.NewClient(&redis.Options{OnConnect: func(ctx context.Context, conn *redis.Conn) error {
//		conns.Opened(conn.ClientID(ctx).Val(), conn.Info(ctx, "server").Val())
//		return nil
//	}})
type Connections struct{ opened lockers.Opened }

// Opened notes a connection by the replies to CLIENT ID and INFO server on it.
func (c *Connections) Opened(id int64, info string) { c.opened.Add(id, info) }

func (o Options) validate(pool lockmigrate.Pool) error {
	wrong := []error{lockers.CheckPool(pool), lockers.Durations(lockers.Named{Name: "Lease", Value: o.Lease}, lockers.Named{Name: "Wait", Value: o.Wait}, lockers.Named{Name: "ReplyTimeout", Value: o.ReplyTimeout})}
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if err := stages.CheckName(o.Namespace); err != nil {
		refuse("Namespace: %w", err)
	}
	switch {
	case o.Old == nil || o.New == nil:
		refuse("Old and New are required")
	case o.Old == o.New:
		refuse("Old and New are one Locker: it would wait for itself")
	}
	if name := nameOf(o.Old, o.OldName); name != "" && name == nameOf(o.New, o.NewName) && o.NewKey == nil {
		refuse("Old and New are both %q, with one key: it would wait for itself; give them two names, or NewKey", name)
	}
	if o.Lease != 0 && o.Lease < 300*time.Millisecond {
		refuse("Lease %v: at least 300ms", o.Lease)
	}
	for _, half := range []struct {
		locker      lockmigrate.Locker
		name, field string
	}{{o.Old, o.OldName, "Old"}, {o.New, o.NewName, "New"}} {
		if half.locker != nil && lockers.HalfOf(half.locker) == nil && nameOf(half.locker, half.name) == "" {
			refuse("%sName is missing: %s is no lock on one server of this module, so members know by its name alone that they have the same", half.field, half.field)
		}
		if w, ok := half.locker.(interface{ unheard() error }); ok && w.unheard() != nil {
			refuse("%s: %w", half.field, w.unheard())
		}
	}
	return errors.Join(wrong...)
}

func (o Options) withDefaults() Options {
	lockers.Default(&o.Lease, time.Minute)
	lockers.Default(&o.ReplyTimeout, min(5*time.Second, o.Lease/4))
	if o.NewKey == nil {
		o.NewKey = func(key string) string { return key }
	}
	return o
}

// nameOf is what a half is called in the record: what the options say, or what Wrap was given.
func nameOf(half lockmigrate.Locker, given string) string {
	if w, ok := half.(interface{ name() string }); ok && given == "" {
		return w.name()
	}
	return given
}
