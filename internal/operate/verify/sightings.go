package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// saw notes a command of a legacy client. The reader of MONITOR calls it.
func (m *master) saw(s sighting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen++
	t := m.traces[s.addr]
	if t == nil {
		if len(m.traces) >= mostTraces {
			return
		}
		t = &trace{forms: map[string]int64{}}
		m.traces[s.addr], m.stale = t, true
	}
	t.forms[s.form]++
	if s.dialect != "" {
		t.dialect = s.dialect
	}
	if len(t.keys) < mostKeys && !slices.Contains(t.keys, s.key) {
		t.keys = append(t.keys, s.key)
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
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, field := range list {
		if t := m.traces[field["addr"]]; t != nil {
			t.name, t.user = field["name"], field["user"]
		}
	}
}

// source is what shows the traffic.
func (m *master) source() string {
	if m.q.wire != nil || m.q.opts.Capture != nil {
		return "capture"
	}
	return "MONITOR"
}

// found returns the legacy clients that MONITOR and ACL LOG named.
func (m *master) found() (all []Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, addr := range slices.Sorted(maps.Keys(m.traces)) {
		t := m.traces[addr]
		var forms []string
		for _, form := range slices.Sorted(maps.Keys(t.forms)) {
			forms = append(forms, fmt.Sprintf("%s (%d)", form, t.forms[form]))
		}
		all = append(all, Client{Addr: addr, Name: t.name, User: t.user, Dialect: t.dialect, Keys: t.keys, Evidence: m.source() + ": it sent " + strings.Join(forms, ", ")})
	}
	for _, h := range m.hits {
		c := Client{Addr: h.Addr, Name: h.Name, User: h.User, Evidence: fmt.Sprintf("ACL LOG: %s denied (%s)", h.Command, h.Context)}
		if h.Key != "" {
			c.Keys = []string{h.Key}
		}
		all = append(all, c)
	}
	return all
}
