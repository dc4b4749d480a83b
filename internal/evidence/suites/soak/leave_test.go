package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// leave writes down what is needed to look at the round again.
func (r *soaking) leave(parent string) string {
	dir := filepath.Join(parent, fmt.Sprintf("%s-seed-%d", r.site.topology, r.seed))
	require.NoError(r.t, os.MkdirAll(dir, 0o755))
	write := func(name, text string) {
		require.NoError(r.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	var plan strings.Builder
	fmt.Fprintf(&plan, "seed %d\ntopology %s\nfleet %s\nturns %v\nagain: make soak TOPOLOGY=%s SEED=%d LENGTH=1s\n",
		r.seed, r.site.topology, r.fleet, r.counts(), r.site.topology, r.seed)
	for _, i := range r.injected {
		fmt.Fprintf(&plan, "at %v %s\n", i.at.Round(time.Millisecond), i.what)
	}
	for _, v := range r.violations {
		fmt.Fprintln(&plan, "violation", v)
	}
	write("plan.txt", plan.String())
	write("log.txt", r.log.String())
	write("scenario.txt", r.scenario())
	var book strings.Builder
	for _, c := range r.site.visited {
		fmt.Fprintf(&book, "%s %v\n", c.At.Format("05.000000"), c.Words)
	}
	write("book.txt", book.String())
	return dir
}

// schemeOf is a Go member's in the simulator's language: a follower is a bridge client there.
func schemeOf(name string) string {
	if strings.HasPrefix(name, "token") {
		return "modern"
	}
	return "bridge"
}

// scenario is the same fleet under the same faults in virtual time, for `lockmigrate simulate --scenario`:
// 200 seeds of it, so that what real time did once can be found again and made smaller.
func (r *soaking) scenario() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# From a soak, seed %d: %s\n", r.seed, slices.Concat(r.violations, []string{"no violation"})[0])
	fmt.Fprintf(&b, "run %v\nseed %d\nseeds 200\n", r.took.Round(time.Millisecond), r.seed)
	client := func(name, scheme string) {
		switch {
		case name == planted:
			fmt.Fprintf(&b, "client %s legacy lease=100ms hold=5ms..300ms think=5ms..10ms\n", name)
		case scheme == "legacy":
			fmt.Fprintf(&b, "client %s legacy dialect=%s lease=%v hold=3ms think=1ms..10ms\n", name, dialectOf(r.fleet).Name, lease)
		case scheme == "bridge":
			fmt.Fprintf(&b, "client %s bridge dialect=%s ttl=%v hold=1ms..6ms think=1ms..10ms\n", name, dialectOf(r.fleet).Name, ttl)
		default:
			fmt.Fprintf(&b, "client %s modern ttl=%v hold=1ms..6ms think=1ms..10ms\n", name, ttl)
		}
	}
	in := map[string]bool{} // those of the keys that the simulator's one key stands for
	for _, m := range r.processes {
		if !strings.Contains(m.name, "redisson") {
			in[m.name] = true
			client(m.name, m.sim)
		}
	}
	for _, i := range r.injected {
		who, _, _ := strings.Cut(i.sim, " ")
		if (in[who] || who == "server") && i.at < r.took {
			fmt.Fprintf(&b, "at %v %s\n", i.at.Round(time.Millisecond), i.sim)
		}
	}
	return b.String()
}
