package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lockmigrate/lockmigrate"
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

	seq  int64
	skew time.Duration
}

func newMember(store *stages.Store, g *gate, opts Options, seen lockmigrate.Observer) *member {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	m := &member{store: store, gate: g, opts: opts, seen: seen, id: opts.Member, host: host}
	if m.id == "" {
		m.id = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), newUUID()[:8])
	}
	return m
}

// run reports until ctx ends: three times in each lease, at once after a change, and soon after a
// failure. It is the only goroutine that touches m.
func (m *member) run(ctx context.Context) {
	lease := m.gate.opts.MemberLease
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
		switch {
		case err != nil:
			next = lease / 10
			if why := m.gate.whyClosed(); why != nil && !closed && ctx.Err() == nil {
				closed = true
				m.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.opts.Namespace, Err: why})
			}
		case news || closed:
			stage, epoch, _ := m.gate.stage()
			closed, next = false, 0
			m.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventStage, Op: "stage", Key: m.opts.Namespace, Note: fmt.Sprintf("%v, epoch %d", stage, epoch)})
		}
		timer.Reset(next)
	}
}

// report refreshes the lease. The lease counts from before the report was sent, on the local monotonic
// clock; the server counts it from later, on its own, and has the last word.
func (m *member) report(ctx context.Context) (news bool, err error) {
	lease := m.gate.opts.MemberLease
	m.seq++
	report := stages.Report{
		ID: m.id, Seq: m.seq, Lease: lease, Longest: m.gate.opts.longest(), Skew: m.skew,
		Info: stages.Info{Host: m.host, Process: os.Getpid(), Version: m.opts.Version},
	}
	m.gate.report(&report)
	bounded, cancel := context.WithTimeout(ctx, min(m.gate.opts.ReplyTimeout, lease/2))
	defer cancel()
	sent := time.Now()
	order, err := m.store.Join(bounded, report)
	if err != nil {
		if ctx.Err() == nil {
			m.gate.failed(err, errors.Is(err, stages.ErrNoRecord))
		}
		return false, err
	}
	trip := time.Since(sent)
	m.skew = sent.Add(trip / 2).Round(0).Sub(order.Now)
	opts, err := m.opts.under(order.Record)
	if err != nil {
		m.gate.failed(err, true)
		return false, err
	}
	return m.gate.obey(order, opts, sent.Add(lease)), nil
}

// leave says goodbye, if nothing is held. Otherwise the lease runs out by itself.
func (m *member) leave() {
	if !m.gate.idle() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.gate.opts.ReplyTimeout)
	defer cancel()
	m.seq++
	_ = m.store.Leave(ctx, m.id, m.seq) // the lease runs out by itself
}
