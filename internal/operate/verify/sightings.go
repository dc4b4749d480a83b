package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

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

// saw notes a command that nothing explains. The reader of MONITOR calls it.
func (m *master) saw(s sighting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen++
	at := place{s.addr, s.db}
	t := m.traces[at]
	if t == nil {
		if len(m.traces) >= mostTraces {
			return
		}
		t = &deeds{}
		m.traces[at], m.stale = t, true
	}
	t.legacy = t.legacy || s.legacy && s.db == m.end.DB
	t.note(s.form, 1, s.key)
	if s.dialect != "" {
		t.dialect = s.dialect
	}
}

// name asks who is behind an address that was seen for the first time.
func (m *master) name(ctx context.Context) {
	m.mu.Lock()
	stale := m.stale
	m.stale = false
	m.mu.Unlock()
	if stale {
		m.rename(ctx)
	}
}

func (m *master) rename(ctx context.Context) {
	list, err := endpoint.Clients(ctx, m.conn)
	if err != nil {
		return
	}
	by := map[string]map[string]string{}
	for _, fields := range list {
		by[fields["addr"]] = fields
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, t := range m.traces {
		if fields := by[at.addr]; fields != nil {
			t.name, t.user, t.listed = fields["name"], fields["user"], !endpoint.IsNode(fields)
		}
	}
}

// found returns the clients that MONITOR and ACL LOG named: legacy ones, and those whose commands nothing explains. MONITOR shows a node that gives
// this one a slot like a client: it sends again what clients did to the slot's keys.
func (m *master) found() (legacy, others []Client) {
	given := m.last.stats["cluster|syncslots"].Calls > m.first.stats["cluster|syncslots"].Calls
	m.mu.Lock()
	defer m.mu.Unlock()
	order := func(a, b place) int { return cmp.Or(strings.Compare(a.addr, b.addr), a.db-b.db) }
	for _, at := range slices.SortedFunc(maps.Keys(m.traces), order) {
		t := m.traces[at]
		if c := t.client(at); given && !t.listed {
			c.Evidence += "; it may be a node that gave a slot to this one"
			others = append(others, c)
		} else if t.legacy {
			legacy = append(legacy, c)
		} else {
			others = append(others, c)
		}
	}
	for _, h := range m.hits {
		c := Client{Addr: h.Addr, Name: h.Name, User: h.User, Evidence: fmt.Sprintf("ACL LOG: %s denied (%s)", h.Command, h.Context)}
		if h.Key != "" {
			c.Keys = []string{h.Key}
		}
		legacy = append(legacy, c)
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
	for _, h := range hits {
		if h.Key != "" && !m.q.matches(h.Key) {
			if name := strings.ToLower(h.Command); slices.Contains(Taking, name) && h.Context != "lua" {
				m.ran(name).Elsewhere += h.Count
			}
			continue
		}
		if h.Key == "" && !slices.Contains(fence.Denied, strings.ToLower(h.Command)) {
			m.facts.LogUntold += h.Count // a client that may set nothing at all is not a legacy one for that
			continue
		}
		m.facts.LogDenied += h.Count
		if len(m.hits) < mostTraces {
			m.hits = append(m.hits, h)
		}
	}
}
