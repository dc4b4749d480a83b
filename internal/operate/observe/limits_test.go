package observe

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// TestLimits wants a watch to end by itself at each of its limits, and to say which.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	start := func(o Options, l Limits) (*Masters, error) { return StartMasters(context.Background(), end, o, l) }
	ends := func(w *Masters, why string) {
		t.Helper()
		var stopped *Stopped
		err := w.Wait()
		require.ErrorAs(t, err, &stopped)
		assert.Contains(t, err.Error(), why)
	}

	w, err := start(Options{}, Limits{For: 100 * time.Millisecond, Load: 10})
	require.NoError(t, err)
	assert.NoError(t, w.Wait(), "the time is over: as planned")

	w, err = start(Options{}, Limits{Commands: 50, Load: 10})
	require.NoError(t, err)
	for range 60 {
		s.Do("PING")
	}
	ends(w, "limit of 50 commands")

	_, err = start(Options{}, Limits{Load: 1e-9})
	var stopped *Stopped
	require.ErrorAs(t, err, &stopped, "a server that is busy already is left alone")

	// A watch that does not read makes the server hold its output.
	entered, blocked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	match := func(string) bool { once.Do(func() { close(entered); <-blocked }); return true }
	w, err = start(Options{Match: match}, Limits{Load: 10})
	require.NoError(t, err)
	conn := s.Conn()
	_, err = conn.Do("SETNX", "lock:a", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
	require.NoError(t, err)
	<-entered
	big := strings.Repeat("x", 64<<10)
	for range 600 {
		_, err = conn.Do("SET", "big", big)
		require.NoError(t, err)
	}
	require.Eventually(t, w.watches[0].ending, time.Minute, 20*time.Millisecond)
	close(blocked)
	ends(w, "MiB of output")

	w, err = start(Options{}, Limits{Load: 10})
	require.NoError(t, err)
	s.Kill()
	assert.Error(t, w.Wait(), "the server is gone")
}

// TestUnknownCost: what a user may not ask is not reported as nothing. The limit on it is said not to be kept.
func TestUnknownCost(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	for _, c := range []struct{ rules, load string }{
		{"+@all", ""},
		{"+@all -info", "INFO: NOPERM"},
	} {
		s.Grant("few", append(strings.Fields(c.rules), "~*", "&*")...)
		end, err := endpoint.Parse(s.URLOf("few"), endpoint.TLSFiles{})
		require.NoError(t, err)
		w, err := StartMasters(context.Background(), end, Options{}, Limits{For: 700 * time.Millisecond, Load: 10})
		require.NoError(t, err)
		require.NoError(t, w.Wait())
		cost := w.Cost()
		assert.True(t, strings.HasPrefix(cost.LoadUnknown, c.load) && (cost.LoadUnknown == "") == (c.load == ""), "%s: %q", c.rules, cost.LoadUnknown)
		assert.Empty(t, cost.BufferUnknown, c.rules)
	}
}

// TestTheLatestEventsAreKept: a watch of days shows what happens now.
func TestTheLatestEventsAreKept(t *testing.T) {
	o := New(Options{})
	for n := range 3*maxEvents + 1 {
		o.hazard(event{At: protocol.Instant(n), Hazard: "clobber"})
	}
	events := o.Report().Events
	require.GreaterOrEqual(t, len(events), maxEvents)
	require.Less(t, len(events), 2*maxEvents)
	assert.Equal(t, protocol.Instant(3*maxEvents).Time(), events[len(events)-1].At)
}

func TestMain(m *testing.M) {
	holders.ServeIfAsked(nil)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestALateLineOfANode: what a node sends with a slot may be read when this one has the slot for long, and is no client's then either; after five
// seconds it is.
func TestALateLineOfANode(t *testing.T) {
	w := &watch{addr: "here:1", givers: map[string]bool{}}
	line := &traffic.Command{Addr: "node:1", Words: []string{"SETNX", "k", "1"}}
	for n, owner := range append([]string{"there:1"}, slices.Repeat([]string{w.addr}, tables)...) {
		table := topology.NewTable()
		table.Assign(0, 16383, owner)
		w.keep(table)
		clear(w.givers)
		assert.Equal(t, n < tables, w.given(line), n)
	}
}
