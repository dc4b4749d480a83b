package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// place is an address and a database that was used from there.
type place struct {
	addr string
	db   int
}

// from is a connection at a place. Without OnlyMembers, and where it was in no list of clients, it has no id.
type from struct {
	place
	id string
}

// mostActors is how many of them are told apart; more than that are one that nobody knows.
const mostActors = 100_000

// deeds are what one client did to lock keys.
type deeds struct {
	name, user, dialect string
	legacy              bool             // only a client of the old scheme does some of it
	listed              bool             // CLIENT LIST has shown who did them as a client
	forms               map[string]int64 // how often in each form
	keys                []string         // the first of them
}

// note takes in so many commands of a form.
func (d *deeds) note(form string, n int64, keys ...string) {
	if d.forms == nil {
		d.forms = map[string]int64{}
	}
	d.forms[form] += n
	for _, key := range keys {
		if len(d.keys) < mostKeys && !slices.Contains(d.keys, key) {
			d.keys = append(d.keys, key)
		}
	}
}

// times is how many commands they were.
func (d *deeds) times() (n int64) {
	for _, of := range d.forms {
		n += of
	}
	return n
}

// client is who did them, for a certificate.
func (d *deeds) client(at place) Client {
	var forms []string
	for _, form := range slices.Sorted(maps.Keys(d.forms)) {
		forms = append(forms, fmt.Sprintf("%s (%d)", form, d.forms[form]))
	}
	return Client{Addr: at.addr, Name: d.name, User: d.user, DB: at.db, Dialect: d.dialect, Keys: d.keys, Evidence: fmt.Sprintf("MONITOR: it sent %s in database %d", strings.Join(forms, ", "), at.db)}
}

// acted takes in what a client did.
func (m *master) acted(at from, did *deeds) {
	legacy := did.legacy && at.db == m.end.DB
	if m.acts[at] == nil && len(m.acts) >= mostActors {
		at = from{}
	}
	is := m.acts[at]
	if is == nil {
		is = &deeds{name: did.name, user: did.user, listed: did.listed}
		m.acts[at] = is
	}
	is.legacy, is.dialect = is.legacy || legacy, cmp.Or(did.dialect, is.dialect)
	for form, n := range did.forms {
		is.note(form, n, did.keys...)
		m.seen += n
	}
}

// hear takes in what MONITOR has shown. With OnlyMembers that waits for the next list of clients: see attribute. Without, the list is asked who is
// behind an address that was seen for the first time.
func (m *master) hear(ctx context.Context, acts []act) {
	var who map[string]listed
	for _, a := range acts {
		if m.q.opts.OnlyMembers {
			m.adrift = append(m.adrift, unlisted{a, false})
			continue
		}
		if at := (from{place: a.place}); m.acts[at] == nil && who == nil {
			who = m.list(ctx)
		}
		by := who[a.addr]
		a.name, a.user, a.listed = by.name, by.user, by.id != ""
		m.acted(from{place: a.place}, a.deeds)
	}
}

// found returns the clients that MONITOR and ACL LOG named: legacy ones, and those whose commands nothing explains; with OnlyMembers all that
// are no member's, and it counts what the members' connections did. MONITOR shows a node that gives this one a slot like a client: it sends again
// what clients did to the slot's keys.
func (m *master) found() (legacy, others []Client) {
	for _, t := range m.adrift {
		m.touched(t, listed{})
	}
	m.adrift, m.facts.Members = nil, 0
	given := m.last.stats["cluster|syncslots"].Calls > m.first.stats["cluster|syncslots"].Calls
	order := func(a, b from) int {
		return cmp.Or(strings.Compare(a.addr, b.addr), a.db-b.db, strings.Compare(a.id, b.id))
	}
	for _, at := range slices.SortedFunc(maps.Keys(m.acts), order) {
		t := m.acts[at]
		switch c := t.client(at.place); {
		case m.claimed(at):
			m.facts.Members += t.times()
		case m.q.opts.OnlyMembers:
			c.Evidence += "; " + m.stranger(at)
			others = append(others, c)
		case given && !t.listed:
			c.Evidence += "; it may be a node that gave a slot to this one"
			others = append(others, c)
		case t.legacy:
			legacy = append(legacy, c)
		default:
			others = append(others, c)
		}
	}
	m.facts.Unexplained = m.seen - m.facts.Members
	legacy = append(legacy, m.denied...)
	if m.q.opts.OnlyMembers { // whoever was denied is no less a stranger
		legacy, others = nil, append(others, legacy...)
	}
	return legacy, others
}

// poll reads ACL LOG.
func (m *master) poll(ctx context.Context) {
	if !m.facts.LogRead {
		return // each refusal would be an entry of ACL LOG itself
	}
	hits, err := m.log.Poll(ctx, m.conn)
	if err != nil {
		m.facts.LogRead, m.facts.LogWhy = false, endOf(err)
		return
	}
	if m.log.Forgot {
		m.facts.LogGap = "more was denied between two looks than it keeps, or somebody reset it"
	}
	for _, h := range hits {
		if h.Command == fence.Joined {
			if len(m.q.opts.Match) == 0 || servers.MatchAny(m.q.opts.Match, h.Key) { // it may be our own look at a key, which matches no pattern by that
				m.facts.LogGap = fmt.Sprintf("it tells the last of %d commands on %q only", h.Count, h.Key)
			}
			continue
		}
		if h.Key != "" && !m.q.matches(h.Key) {
			if name := strings.ToLower(h.Command); slices.Contains(fence.Taking, name) && h.Context != "lua" {
				m.ran(name).Elsewhere += h.Count
			}
			continue
		}
		if h.Key == "" && !slices.Contains(fence.Denied, strings.ToLower(h.Command)) {
			m.facts.LogUntold += h.Count // a client that may set nothing at all is not a legacy one for that
			continue
		}
		m.facts.LogDenied += h.Count
		c := Client{Addr: h.Addr, Name: h.Name, User: h.User, Evidence: fmt.Sprintf("ACL LOG: %s denied (%s)", h.Command, h.Context)}
		if h.Key != "" {
			c.Keys = []string{h.Key}
		}
		sees(&m.denied, c)
	}
}
