package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

// sidecarred is a holder's kind: of a service behind a sidecar.
const sidecarred = "sidecar"

// span is a time in which a fault made servers forget what they had acknowledged, or broke connections.
type span struct{ from, to time.Time }

// stays are the fleet's turns inside, as the book's server saw them: everybody who comes in writes a line of a
// hash there, and removes it before the release. What MONITOR says of that server is one order of all
// comings and goings, of whatever language and process.
func (r *soaking) stays() (mine []*holders.Stay) {
	recorded := r.site.recorded()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range holders.Stays(recorded, r.turns, r.dead) {
		if key, of := strings.CutPrefix(s.Book, "book:"); of && (strings.HasPrefix(key, r.set.keys[0]) || slices.Contains(r.set.keys, key)) {
			mine = append(mine, s)
		}
	}
	return mine
}

// verdict is what a round's stays come to.
type verdict struct {
	violations []string
	turns      int
	unpromised int           // overlaps of old clients among themselves, and what a lossy fault did to them
	told       int           // overlaps of a lossy fault that ended with the holder's being told
	longest    time.Duration // the longest of those
	late       int           // overlaps after an old client's DEL that came twice, ended within a TTL
}

// judge finds the stays that overlap and asks what docs/guarantees.md promises about them.
func (r *soaking) judge(stays []*holders.Stay) verdict {
	out := verdict{turns: len(stays)}
	overlaps, _ := holders.Overlaps(stays)
	r.mu.Lock()
	defer r.mu.Unlock()
	rules := rules{r.kinds, r.site.lossy, r.site.broken}
	for _, o := range overlaps {
		out.overlap(o, rules)
	}
	return out
}

// rules are what an overlap is judged by.
type rules struct {
	kinds  map[string]string // of holders of other languages: old, of a client that knows nothing of bridge or tokens
	lossy  []span            // faults that made servers forget
	broken []span            // faults that broke connections of old clients
}

// tells: the holder hears of the loss of its lock. That of a Go member that said no stage, before it was killed, counts as such.
func (r rules) tells(s *holders.Stay) bool {
	kind, foreign := r.kinds[s.ID]
	return kind == redissons || !foreign && s.Turn.Stage != "legacy"
}

func (out *verdict) overlap(o holders.Overlap, r rules) {
	old := func(s *holders.Stay) bool { return r.kinds[s.ID] == "old" }
	first, second, took := o.First, o.Second, o.Took()
	switch {
	case old(first) && old(second):
		out.unpromised++ // the old scheme's own affair
	case !r.forgotten(o) && (old(first) || old(second)) && within(o, r.broken, ttl) && took <= ttl:
		// An old client may have sent its DEL a second time: redis-py and the current Jedis do, when the connection broke under the first. It may find
		// a successor's lock then, and whoever of the old clients comes in next is beside it until its holder's next renewal (stale-delete).
		out.late++
	case !r.forgotten(o):
		out.violations = append(out.violations, fmt.Sprintf("%s: %v, for %v", second.Book, o, took))
	case !r.tells(first) && !r.tells(second):
		out.unpromised++ // nobody tells them
	case took > 2*ttl:
		out.violations = append(out.violations, fmt.Sprintf("%s: %v, for %v: a lock was lost and its holder was not told", second.Book, o, took))
	default:
		out.told++
		out.longest = max(out.longest, took)
	}
}

// forgotten tells whether servers had forgotten what they acknowledged, so that two may be inside: tokens
// where the earlier came in before the fault was over, and had not been renewed since; where an old lock
// is one of them, also its late DEL and what follows from that, until a lease has passed.
func (r rules) forgotten(o holders.Overlap) bool {
	if r.tells(o.First) && r.tells(o.Second) {
		return within(o, r.lossy, ttl)
	}
	return within(o, r.lossy, lease+2*ttl)
}

// within tells whether the second came in after a fault had begun, and the first before it was over for so long.
func within(o holders.Overlap, faults []span, after time.Duration) bool {
	return slices.ContainsFunc(faults, func(s span) bool { return o.Second.From.After(s.from) && o.First.From.Before(s.to.Add(after)) })
}

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
