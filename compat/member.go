package compat

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// member keeps a Locker in its namespace: it reports, and hands what it is told to the gate.
type member struct {
	*stages.Membership
	gate   *gate
	opts   Options // as the caller gave them
	seen   lockmigrate.Observer
	server *lockers.ServerClock // of stage Legacy: each answer tells the server's time
	// hasten renews the locks that are held at least so often from now on.
	hasten func(every time.Duration)
	why    string // why the record cannot be run, as the last answer says; empty when it can

	// longest is for how long a lock can outlive its last renewal, under every record that was ever obeyed: locks
	// are renewed as they were taken.
	longest time.Duration
}

func newMember(store *stages.Store, g *gate, opts Options, seen lockmigrate.Observer, server *lockers.ServerClock, hasten func(time.Duration)) *member {
	return &member{Membership: stages.NewMembership(store, opts.Member), gate: g, opts: opts, seen: seen, server: server, hasten: hasten}
}

// run reports until ctx ends: three times in each lease, at once after a change, and soon after a
// failure. It is the only goroutine that touches m.
func (m *member) run(ctx context.Context) {
	lease := m.gate.opts.memberLease
	timer := time.NewTimer(0)
	defer timer.Stop()
	closed := false // that nothing may be acquired has been told
	pause := lease / 60
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
			next, pause = pause, min(2*pause, lease/10)
			if why := m.gate.whyClosed(); why != nil && !closed && ctx.Err() == nil {
				closed = true
				m.seen(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.opts.Namespace, Err: why})
			}
		} else {
			pause = lease / 60
		}
		if err == nil && (news || closed) {
			stage, epoch, _ := m.gate.stage()
			closed = false
			m.seen(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.opts.Namespace, Stage: stage, Epoch: epoch})
		}
		if news {
			next = 0
		}
		timer.Reset(next)
	}
}

// report refreshes the lease, and takes what the answer says to the gate. News tells that the next report has
// something to say that this one had not.
func (m *member) report(ctx context.Context) (news bool, err error) {
	lease := m.gate.opts.memberLease
	bounded, cancel := context.WithTimeout(ctx, min(m.gate.opts.ReplyTimeout, lease/2))
	defer cancel()
	if !m.Known() {
		order, err := m.Hello(bounded)
		if err != nil {
			return false, m.failed(ctx, err)
		}
		opts, misfit := m.opts.under(order)
		m.note(misfit)
		if misfit == nil {
			m.longest = opts.longest()
		}
	}
	report := stages.Report{Lease: lease, Longest: m.longest, Misfit: m.why}
	m.gate.report(&report)
	sent := time.Now()
	order, until, err := m.Report(bounded, report)
	if !order.Now.IsZero() {
		m.server.Heard(order.Now, sent)
	}
	if err != nil {
		return errors.Is(err, stages.ErrLate), m.failed(ctx, err)
	}
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
		if news = m.gate.obey(order, opts, until); news {
			m.hasten(opts.renewEvery)
		}
		return news, nil
	}
}

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

// leave says goodbye, if nothing is held. Otherwise the lease runs out by itself.
func (m *member) leave() {
	if !m.gate.idle() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.gate.opts.ReplyTimeout)
	defer cancel()
	_ = m.Leave(ctx) // the lease runs out by itself
}
