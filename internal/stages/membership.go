package stages

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Membership is one member's side of a namespace: its id, the numbers of its reports, and what it knows of the server's
// clock. It is for one goroutine.
type Membership struct {
	Store *Store
	ID    string
	Info  Info

	seq   int64
	skew  time.Duration
	now   time.Time // on the server's clock when it was last heard of; zero: never
	heard time.Time // the same moment here
	bound time.Time // the latest bound of a report, on the server's clock; zero: none was sent
}

// NewMembership returns a member that has not joined. A member is a process, not a name: the process that follows a crashed
// one of the same name is another member, and what the crashed one may still hold counts until it has run out. An empty name
// is host and process id.
func NewMembership(store *Store, name string) *Membership {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	id := name + "/" + hex.EncodeToString(b[:])
	if name == "" {
		id = fmt.Sprintf("%s-%d-%x", host, os.Getpid(), b)
	}
	return &Membership{Store: store, ID: id, Info: Info{Host: host, Process: os.Getpid(), Build: thisBuild()}}
}

// Known tells that the server's clock has been heard of, so that a report can have a bound.
func (m *Membership) Known() bool { return !m.now.IsZero() }

// Hello asks for the record and writes nothing.
func (m *Membership) Hello(ctx context.Context) (Order, error) {
	order, err := m.Store.Hello(ctx)
	if err == nil {
		m.learn(order.Now)
		if m.Info.User == "" {
			m.Info.User = m.whoAmI(ctx)
		}
	}
	return order, err
}

// Report refreshes the member's lease, r.Lease long, and returns the order that stands, and when the lease ends on the local
// monotonic clock. It fills in what is the member's own: id, number, skew, info and bound. It needs a Hello first.
//
// The lease counts from before the report was sent; the server counts it from later, on its own clock, and has the last word.
// Each report carries a bound on the server's clock: one that arrives later, perhaps after this member has left, does not
// count. ErrLate says that the server's clock was set: the next report has another bound.
func (m *Membership) Report(ctx context.Context, r Report) (order Order, until time.Time, err error) {
	sent := time.Now()
	m.seq++
	r.ID, r.Seq, r.Skew, r.Info = m.ID, m.seq, m.skew, m.Info
	r.Bound = m.now.Add(sent.Sub(m.heard) + r.Lease)
	if r.Bound.After(m.bound) {
		m.bound = r.Bound
	}
	order, err = m.Store.Join(ctx, r)
	if !order.Now.IsZero() {
		m.learn(order.Now)
	}
	if err != nil {
		return order, time.Time{}, err
	}
	m.skew = sent.Add(time.Since(sent) / 2).Round(0).Sub(order.Now)
	return order, sent.Add(r.Lease), nil
}

// learn keeps what time it is on the server. The server read its clock before now: a bound that is computed from it is early
// rather than late.
func (m *Membership) learn(server time.Time) { m.now, m.heard = server, time.Now() }

// Leave takes the member off the record. Call it when it holds nothing; else its lease runs out by itself.
func (m *Membership) Leave(ctx context.Context) error {
	if m.bound.IsZero() {
		return nil
	}
	m.seq++
	return m.Store.Leave(ctx, m.ID, m.seq, m.bound)
}

// whoAmI returns the user of the pool's connections; empty where that cannot be told.
func (m *Membership) whoAmI(ctx context.Context) string {
	conn, err := m.Store.Pool.GetContext(ctx)
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
