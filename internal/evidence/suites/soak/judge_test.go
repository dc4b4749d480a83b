package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// visit is one stay inside a lock, as the book's server saw it: everybody who comes in writes a line of a
// hash there, and removes it before the release. What MONITOR says of that server is one order of all
// comings and goings, of whatever language and process.
type visit struct {
	key, id  string
	kind     string // see tells
	from, to time.Time
	lost     bool // its holder was told
	open     bool
}

func (v visit) String() string {
	end := "left"
	if v.lost {
		end = "was told"
	}
	if v.open {
		end = "is still inside"
	}
	return fmt.Sprintf("%s (%s) %s..%s %s", v.id, v.kind, v.from.Format("05.000000"), v.to.Format("05.000000"), end)
}

// tells: a holder of this kind hears of the loss of its lock.
func (v visit) tells() bool {
	switch v.kind {
	case "bridge", token, redissons:
		return true
	}
	return false
}

// old: of a client that knows nothing of bridge or tokens.
func (v visit) old() bool { return v.kind == "old" }

// span is a time in which a fault made servers forget what they had acknowledged.
type span struct{ from, to time.Time }

// visits reads the book. Kinds say of which kind the holders are that write only a 1; the dead are those
// that were killed, and when.
func visits(book []redistest.Command, kinds map[string]string, dead map[string]time.Time) []*visit {
	var all []*visit
	inside := map[[2]string]*visit{}
	for _, c := range book {
		if len(c.Words) < 3 || !strings.HasPrefix(c.Words[1], "book:") {
			continue
		}
		at := [2]string{c.Words[1], c.Words[2]}
		switch c.Words[0] {
		case "HSET":
			if t, killed := dead[at[1]]; killed && c.At.After(t) {
				continue // the last word of a dead process
			}
			kind, _, named := strings.Cut(c.Words[3], ":")
			if !named {
				kind = kinds[at[1]]
			}
			v := &visit{key: strings.TrimPrefix(at[0], "book:"), id: at[1], kind: kind, from: c.At, open: true}
			inside[at] = v
			all = append(all, v)
		case "HDEL":
			v := inside[at]
			if v == nil {
				continue
			}
			delete(inside, at)
			v.to, v.open = c.At, false
			if t, killed := dead[v.id]; killed && t.Before(v.to) {
				v.to = t
			}
			if len(c.Words) == 4 {
				how, when, _ := strings.Cut(c.Words[3], "@")
				if us, err := strconv.ParseInt(when, 10, 64); err == nil {
					v.lost = how == "told"
					v.to = time.UnixMicro(us)
				}
			}
		}
	}
	for _, v := range inside {
		v.to = time.Now()
		if t, killed := dead[v.id]; killed {
			v.to, v.open = t, false
		}
	}
	return all
}

// verdict is what a round's visits come to.
type verdict struct {
	violations []string
	turns      int
	unpromised int           // overlaps of old clients among themselves, and what a lossy fault did to them
	told       int           // overlaps of a lossy fault that ended with the holder's being told
	longest    time.Duration // the longest of those
	late       int           // overlaps after an old client's DEL that came twice, ended within a TTL
}

// judge finds the visits that overlap and asks what docs/guarantees.md promises about them.
// Lossy are the faults that made servers forget, broken those that broke connections of old clients.
func judge(all []*visit, lossy, broken []span) verdict {
	out := verdict{turns: len(all)}
	byKey := map[string][]*visit{}
	for _, v := range all {
		byKey[v.key] = append(byKey[v.key], v)
	}
	for _, list := range byKey {
		for i, a := range list {
			for _, b := range list[i+1:] {
				if !b.from.Before(a.to) {
					break // they are in the order of their coming
				}
				if a.id != b.id && b.from.Before(b.to) {
					out.overlap(a, b, lossy, broken)
				}
			}
		}
	}
	return out
}

func (out *verdict) overlap(a, b *visit, lossy, broken []span) {
	end := a.to
	if b.to.Before(end) {
		end = b.to
	}
	took := end.Sub(b.from)
	switch {
	case a.old() && b.old():
		out.unpromised++ // the old scheme's own affair
	case !within(a, b, lossy) && twice(a, b, broken) && took <= ttl:
		out.late++
	case !within(a, b, lossy):
		out.violations = append(out.violations, fmt.Sprintf("%s: %v came in beside %v, for %v", a.key, b, a, took))
	case !a.tells() && !b.tells():
		out.unpromised++ // nobody tells them
	case took > 2*ttl:
		out.violations = append(out.violations, fmt.Sprintf("%s: %v beside %v for %v: a lock was lost and its holder was not told", a.key, b, a, took))
	default:
		out.told++
		out.longest = max(out.longest, took)
	}
}

// within tells whether servers had forgotten what they acknowledged, so that two may be inside: tokens
// where the earlier came in before the fault was over, and had not been renewed since; where an old lock
// is one of them, also its late DEL and what follows from that, until a lease has passed.
func within(a, b *visit, lossy []span) bool {
	for _, s := range lossy {
		after := ttl
		if !a.tells() || !b.tells() {
			after = lease + 2*ttl
		}
		if b.from.After(s.from) && a.from.Before(s.to.Add(after)) {
			return true
		}
	}
	return false
}

// twice tells whether an old client may have sent its DEL a second time: redis-py and the current Jedis do,
// when the connection broke under the first. It may find a successor's lock then, and whoever of the old
// clients comes in next is beside it until its holder's next renewal (stale-delete).
func twice(a, b *visit, broken []span) bool {
	if !a.old() && !b.old() {
		return false
	}
	for _, s := range broken {
		if b.from.After(s.from) && a.from.Before(s.to.Add(ttl)) {
			return true
		}
	}
	return false
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
