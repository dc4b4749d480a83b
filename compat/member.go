package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/random"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// member keeps a Locker in its namespace: it reports, and hands what it is told to the gate.
type member struct {
	store *stages.Store
	gate  *gate
	opts  Options // as the caller gave them
	seen  lockmigrate.Observer
	id    string
	host  string
	user  string // of the connections, as the server says

	seq   int64
	skew  time.Duration
	why   string    // why the record cannot be run, as the last answer says; empty when it can
	now   time.Time // on the server's clock when it was last heard of; zero: never
	heard time.Time // the same moment here
	bound time.Time // the latest bound of a report, on the server's clock; zero: none was sent

	// longest is for how long a lock can outlive its last renewal, under every record that was ever obeyed: locks
	// are renewed as they were taken.
	longest time.Duration
}

func newMember(store *stages.Store, g *gate, opts Options, seen lockmigrate.Observer) *member {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	m := &member{store: store, gate: g, opts: opts, seen: seen, host: host}
	// A member is a process, not a name: the process that follows a crashed one is another member, and what the
	// crashed one may still hold goes on counting until it has run out.
	if name := opts.Member; name != "" {
		m.id = name + "/" + random.UUID()[:8]
	} else {
		m.id = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), random.UUID()[:8])
	}
	return m
}

// run reports until ctx ends: three times in each lease, at once after a change, and soon after a
// failure. It is the only goroutine that touches m.
func (m *member) run(ctx context.Context) {
	lease := m.gate.opts.memberLease
	timer := time.NewTimer(0)
	defer timer.Stop()
	closed := false // that nothing may be acquired has been told
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.gate.drained:
		case <-timer.C:
		}
		next := lease / 3
		news, err := m.report(ctx)
		if err != nil {
			next = lease / 10
			if why := m.gate.whyClosed(); why != nil && !closed && ctx.Err() == nil {
				closed = true
				m.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.opts.Namespace, Err: why})
			}
		} else if news || closed {
			stage, epoch, _ := m.gate.stage()
			closed = false
			m.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.opts.Namespace, Stage: stage, Epoch: epoch})
		}
		if news {
			next = 0
		}
		timer.Reset(next)
	}
}

// report refreshes the lease, and takes what the answer says to the gate. News tells that the next report has
// something to say that this one had not.
//
// The lease counts from before the report was sent, on the local monotonic clock; the server counts it from
// later, on its own, and has the last word. Each report carries a bound on the server's clock: one that arrives
// later, perhaps after this member has left, does not count.
func (m *member) report(ctx context.Context) (news bool, err error) {
	lease := m.gate.opts.memberLease
	bounded, cancel := context.WithTimeout(ctx, min(m.gate.opts.ReplyTimeout, lease/2))
	defer cancel()
	if m.now.IsZero() {
		order, err := m.store.Hello(bounded)
		if err != nil {
			return false, m.failed(ctx, err)
		}
		m.learn(order.Now, time.Now())
		opts, misfit := m.opts.under(order)
		m.note(misfit)
		if misfit == nil {
			m.longest = opts.longest()
		}
		if m.user == "" {
			m.user = whoAmI(bounded, m.store.Pool)
		}
	}
	sent := time.Now()
	m.seq++
	report := stages.Report{
		ID: m.id, Seq: m.seq, Lease: lease, Longest: m.longest, Skew: m.skew, Misfit: m.why,
		Info:  stages.Info{Host: m.host, Process: os.Getpid(), User: m.user},
		Bound: m.now.Add(sent.Sub(m.heard) + lease),
	}
	if report.Bound.After(m.bound) {
		m.bound = report.Bound
	}
	m.gate.report(&report)
	order, err := m.store.Join(bounded, report)
	if !order.Now.IsZero() {
		m.learn(order.Now, time.Now())
	}
	if err != nil {
		return errors.Is(err, stages.ErrLate), m.failed(ctx, err) // the server's clock was set: the next one has another bound
	}
	m.skew = sent.Add(time.Since(sent) / 2).Round(0).Sub(order.Now)
	opts, misfit := m.opts.under(order)
	said := m.why
	m.note(misfit)
	switch {
	case misfit != nil:
		m.gate.extend(order)
		return m.why != said, m.failed(ctx, &unfit{misfit})
	case said != "", opts.longest() > m.longest:
		// The record says that this member does not run it, or that its locks end sooner. Nothing may be acquired
		// before the record is right.
		m.longest = max(m.longest, opts.longest())
		return true, nil
	default:
		return m.gate.obey(order, opts, sent.Add(lease)), nil
	}
}

// learn keeps what time it is on the server. The server read its clock before now: a bound that is computed from
// it is early rather than late.
func (m *member) learn(server, now time.Time) { m.now, m.heard = server, now }

// note keeps why the record cannot be run, in one line and not too long: it is for people who look at the stage.
func (m *member) note(misfit error) {
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
func (m *member) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		m.gate.failed(err)
	}
	return err
}

// whoAmI returns the user of the pool's connections; empty where that cannot be told.
func whoAmI(ctx context.Context, pool lockmigrate.Pool) string {
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return ""
	}
	defer conn.Close()
	user, err := redis.String(redis.DoContext(conn, ctx, "ACL", "WHOAMI"))
	if err != nil {
		return ""
	}
	return user
}

// leave says goodbye, if nothing is held. Otherwise the lease runs out by itself.
func (m *member) leave() {
	if !m.gate.idle() || m.bound.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.gate.opts.ReplyTimeout)
	defer cancel()
	m.seq++
	_ = m.store.Leave(ctx, m.id, m.seq, m.bound) // the lease runs out by itself
}
