package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// A run about a handover's Old asks who sent a command, and not which: see Options.OnlyMembers.
//
// MONITOR tells an address, CLIENT LIST which connection has it, by an id that the server gives once, and the record which ids are members'.
// A list is taken right before each look. So what MONITOR shows between the marks of two looks came from the connection that had the address in
// the first list or in the second; where these are two, both must be members'. One that is in neither, nor in the list after, came
// and went unseen: it is nobody's. No name counts, neither of a client nor of a user.

// unlisted is what an address did that was in neither list; after the second time it is nobody's.
type unlisted struct {
	act
	again bool
}

// listed is one line of CLIENT LIST.
type listed struct{ id, name, user string }

// list tells which client has which address. A node of the cluster is none.
func (m *master) list(ctx context.Context) map[string]listed {
	clients, err := endpoint.Clients(ctx, m.conn)
	if err != nil && ctx.Err() == nil && m.q.opts.OnlyMembers {
		m.breaks("it is not known which connection has which address: grant +client|list: " + endOf(err))
	}
	by := map[string]listed{}
	for _, c := range clients {
		if !endpoint.IsNode(c) {
			by[c["addr"]] = listed{c["id"], c["name"], c["user"]}
		}
	}
	return by
}

// attribute finds the connections behind what MONITOR has shown before a look, with OnlyMembers. Clients were listed right before it.
func (m *master) attribute(clients map[string]listed) {
	all := m.adrift
	m.adrift = nil
	for _, t := range all {
		was, now := m.last.clients[t.addr], clients[t.addr]
		switch {
		case was.id == "" && now.id == "" && !t.again:
			t.again = true
			m.adrift = append(m.adrift, t)
		case was.id == "" || was.id == now.id:
			m.touched(t, now)
		default:
			m.touched(t, was)
			if now.id != "" {
				m.touched(t, now)
			}
		}
	}
}

func (m *master) touched(t unlisted, by listed) {
	t.name, t.user = by.name, by.user
	m.acted(from{t.place, by.id}, t.deeds)
}

// stranger says why a connection is no member's.
func (m *master) stranger(at from) string {
	switch {
	case strings.HasPrefix(at.addr, "unix:"):
		return "the server does not tell the clients of its unix socket apart"
	case m.q.claimed[lockers.Connection(m.facts.RunID, at.id)] == shared:
		return "two members say that it is their own: a proxy sends the commands of several clients over it"
	case at.id == "":
		return "it was gone before anybody could look at it"
	}
	return "no member has said that this connection is its own"
}

// claimed tells that a member has said that a connection is its own.
func (m *master) claimed(at from) bool {
	by := m.q.claimed[lockers.Connection(m.facts.RunID, at.id)]
	return at.id != "" && by != "" && by != shared
}

// shared stands for members that claim one connection: a proxy between them and the server sends everybody's commands over it.
const shared = "two members"

// claims notes which connections the members say are their own. A server gives an id once, so a claim stands for good.
func (q *inquiry) claims(ctx context.Context) (stages.View, error) {
	view, err := q.show(ctx)
	if err != nil {
		return view, err
	}
	for _, m := range view.Members {
		for _, connection := range m.Info.Connections {
			if by := q.claimed[connection]; by != "" && by != m.ID {
				q.claimed[connection] = shared
				continue
			}
			q.claimed[connection] = m.ID
		}
	}
	return view, nil
}

// lastClaims waits until each member that lives has reported since the last look, as far as that may still explain something.
func (q *inquiry) lastClaims(ctx context.Context) {
	for ended := time.Now(); ; {
		asked := time.Now() // Seen is of a moment after it
		view, err := q.claims(ctx)
		if err == nil && (q.allClaimed() || !slices.ContainsFunc(view.Members, func(m stages.Member) bool {
			return m.Lives() && m.Misfit == "" && m.Seen >= asked.Sub(ended)
		})) {
			return
		}
		if time.Since(ended) > longestReport || lifetime.Sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

// longestReport is more than the pause between two reports of a member with the default lease.
const longestReport = 30 * time.Second

func (q *inquiry) allClaimed() bool {
	for _, m := range q.masters {
		if len(m.adrift) > 0 {
			return false
		}
		for at := range m.acts {
			if !m.claimed(at) {
				return false
			}
		}
	}
	return true
}

// ofHandover checks that the run looks where the record says that Old is.
func (q *inquiry) ofHandover(ctx context.Context, r stages.Record) error {
	switch {
	case !q.opts.OnlyMembers && r.Handover == nil:
		return nil
	case !q.opts.OnlyMembers:
		return &endpoint.Error{What: fmt.Sprintf("namespace %s is a handover from one lock to another: verify is about old clients of SETNX and GETSET", r.Namespace),
			Advice: "--only-members shows that nobody but its members locks by Old", BadInput: true}
	case r.Handover == nil:
		return &endpoint.Error{What: fmt.Sprintf("namespace %s moves from legacy to modern: --only-members is about a handover", r.Namespace), Advice: "leave --only-members out", BadInput: true}
	}
	q.facts.Namespace.OldName, q.facts.Namespace.OldMark = r.Handover.Old.Name, r.Handover.Old.Mark
	pool, err := q.end.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()
	here, err := stages.ReadMark(ctx, pool, r.Namespace, 5*time.Second)
	if err != nil {
		return endpoint.Explain(err)
	}
	if q.facts.Namespace.MarkHere = here; here != r.Handover.Old.Mark && r.Handover.Old.Mark != "" {
		return &endpoint.Error{What: fmt.Sprintf("this is not the server of the record's Old: %v is there, %v is wanted", cmp.Or(here, "no mark"), r.Handover.Old),
			Advice: "name Old's server with --old, and the record's with --redis", BadInput: true}
	}
	return nil
}

// onlyMembers is the duty of a handover: its record stands, this is Old's server, and members work.
func onlyMembers(e *Evidence) (bool, string) {
	stood, evidence := recordStands(e)
	if !stood {
		return false, evidence
	}
	n, commands := e.Namespace, int64(0)
	for _, m := range e.Masters {
		commands += m.Members
	}
	switch {
	case n.OldMark == "" && n.OldName == "":
		return false, "the record does not say what Old is"
	case n.OldMark != "" && n.OldMark != n.MarkHere:
		return false, "this is not the server of the record's Old: its mark is another one"
	case n.OldMark == "" && commands == 0:
		return false, fmt.Sprintf("no member's connection touched these keys: is this the server of %q, and do the members give Options.OldConnections?", n.OldName)
	}
	return true, fmt.Sprintf("namespace %s stayed at epoch %d, %s reported at the end, and their connections sent %s that touched a lock key",
		n.Name, n.Epoch, nouns(int64(n.Living), "member"), nouns(commands, "command"))
}
