package sidecar_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var housePrograms = flag.Int("houses", 600, "how many programs TestTwinOfTwoServers runs")

// TestTwinOfTwoServers: the programs of TestTwin run on a bare server, and through sidecars of a handover, while its stage moves forth and back between
// two commands, whenever the record would let it. One service has its other keys on Old, the other one on New. What a sidecar refuses is not sent to the bare server.
func TestTwinOfTwoServers(t *testing.T) {
	w := newTwoServers(t)
	all := w.sites(t)
	counts := map[string]int{}
	for i := range *housePrograms {
		s := all[(int(*twinFirst)+i)%len(all)]
		p := random(*twinFirst + uint64(i))
		w.play(t, s, p)
		if p.why != "" {
			t.Fatalf("program %d at %s differs in a way that is not on the list: %s\n%s", p.seed, s.name, p.why, w.story)
		}
		if p.ended != "" {
			counts[p.ended]++
		}
	}
	t.Logf("%d commands compared, %d refused; commands at %v; moves to %v; programs that met a difference of the list: %v", w.compared, w.refused, w.at, w.moved, counts)
	require.Greater(t, w.compared, 3**housePrograms)
	for _, stage := range []stages.Stage{stages.Old, stages.Both, stages.New} {
		require.Greater(t, w.at[stage], *housePrograms/3, "commands at stage %v", stage)
	}
}

// twoServers are Old, on which the bare server's keys are too, and New. Their clocks go together.
type twoServers struct {
	*world
	new               *world
	story             string
	moved, at         map[stages.Stage]int
	refused, compared int
	tell              func(format string, args ...any)
	verbose           bool
}

// house is a dialect: a namespace, and two services.
type house struct {
	site
	sidecars [2]*sidecar.Sidecar
	stage    stages.Stage
}

func newTwoServers(t *testing.T) *twoServers {
	return &twoServers{world: newWorld(t), new: newWorld(t), moved: map[stages.Stage]int{}, at: map[stages.Stage]int{}}
}

func (w *twoServers) pass(d time.Duration) {
	w.world.pass(d)
	w.new.pass(d)
}

func (w *twoServers) sites(t *testing.T) (all []*house) {
	recordOf(t, w.server.Server, w.new.server.Server, "house-*")
	for _, d := range append(protocol.Dialects(), nil) {
		name := sidecar.DialectNone
		if d != nil {
			name = d.Name
		}
		if d != nil && d.Layout == protocol.FSTLong {
			continue
		}
		fleet := "jedis-ms"
		if d != nil {
			fleet = d.Name
		}
		h := &house{site: site{world: w.world, name: "house-" + name, dialect: d, fleet: fleet}, stage: stages.Old}
		for i := range h.services {
			h.sidecars[i], h.services[i] = w.service(t, name, sidecar.Options{
				Pool: w.new.server.Pool(), Old: w.server.Pool(), DataOld: i == 0, Namespace: "to-b", Name: fmt.Sprint(name, "-s", i), ReplyTimeout: 30 * time.Second,
			})
			h.owners[i] = fmt.Sprintf("to-b/%s-s%d", name, i)
		}
		h.commands = h.services[0].Commands()
		h.load(w.world, w.new)
		all = append(all, h)
	}
	return all
}

// play runs one program.
func (w *twoServers) play(t *testing.T, h *house, p *program) {
	w.keys++
	r := &run{program: p, site: &h.site, id: w.keys, at: w.now()}
	g := rand.New(rand.NewPCG(p.seed, 31))
	var story strings.Builder
	w.verbose = *housePrograms == 1
	w.tell = func(format string, args ...any) { fmt.Fprintf(&story, format+"\n", args...); w.story = story.String() }
	tell := w.tell
	tell("clients of services %v, at stage %v", p.services, h.stage)
	for i, service := range p.services {
		c := &proxy.Client{ID: int64(i + 1), Addr: "client"}
		h.services[service].Open(c)
		r.clients = append(r.clients, c)
		r.conns[0] = append(r.conns[0], w.dial(t))
		r.conns[1] = append(r.conns[1], []*world{w.world, w.new}[service].dial(t))
	}
	defer func() {
		for _, lock := range locks {
			key := r.key(lock, true)
			w.server.Do("DEL", key)
			w.new.server.Do("DEL", key, protocol.GuardKey(key), protocol.SidecarKey(key), protocol.QueueKey(key))
		}
		for i, service := range p.services {
			h.services[service].Close(r.clients[i])
			_ = r.conns[0][i].Close()
			_ = r.conns[1][i].Close()
		}
	}()
	for i := range p.steps {
		s := &p.steps[i]
		if s.pause {
			tell("  %v pass", pauses[(int(p.seed)+i)%len(pauses)])
			w.pass(pauses[(int(p.seed)+i)%len(pauses)])
			r.at = w.now()
		}
		w.change(t.Context(), h, g, tell)
		before := w.alike(r, h)
		if r.over {
			return
		}
		if s.client < 0 {
			continue
		}
		if h.stage == stages.Old {
			for _, v := range h.on(w.new, r) {
				r.guarded = r.guarded || v.owner != "" && v.owner != h.owners[r.services[s.client]]
			}
		}
		var got [2][]string
		sent := s.commands
		for _, c := range s.commands {
			if !r.send(r.conns[1][s.client], s.client, r.words(c, true)) {
				r.differ("D17")
				return
			}
		}
		behind := r.conns[1][s.client]
		behind.flush()
		refusals := 0
		for range s.commands {
			reply := behind.read()
			got[1] = append(got[1], reply)
			if strings.Contains(reply, "-ERR lockmigrate sidecar: ") {
				refusals++
			}
		}
		tell("  client %d: %q: %q", s.client, sent, got[1])
		if refusals > 0 && len(sent) == 1 {
			w.refused++
			continue
		} else if refusals > 0 {
			w.refused++
			r.differ("D15")
			return
		}
		bare := r.conns[0][s.client]
		for _, c := range s.commands {
			bare.send(r.words(c, false)...)
		}
		bare.flush()
		for range s.commands {
			got[0] = append(got[0], bare.read())
		}
		w.at[h.stage] += len(s.commands)
		w.compared += len(s.commands)
		if got[0][0] != got[1][0] {
			w.differs(r, h, s, before, got)
		}
		h.site.stage = stages.Modern
		if r.judge(s, before, got); r.why != "" {
			tell("  the bare server: %q; before it stood there %+v", got[0], before)
		}
		if r.over {
			return
		}
	}
	w.alike(r, h)
}

// change moves the stage, if the record would: nothing is held that two stages later nobody looks at.
func (w *twoServers) change(ctx context.Context, h *house, g *rand.Rand, tell func(string, ...any)) {
	if g.IntN(3) > 0 {
		return
	}
	to := stages.Both
	if h.stage == stages.Both {
		to = []stages.Stage{stages.Old, stages.New}[g.IntN(2)]
	}
	for _, s := range h.sidecars {
		low, high := s.Holds(ctx)
		if to == stages.New && low == stages.Old || to == stages.Old && high == stages.New {
			return
		}
	}
	h.stage = to
	w.moved[to]++
	for _, s := range h.sidecars {
		s.Follow(to)
	}
	tell("  stage %v", to)
}

// on are what stands on the keys behind, on one of the servers.
func (h *house) on(w *world, r *run) [2]view {
	r.site = &site{world: w, name: h.name, dialect: h.dialect, fleet: h.fleet}
	r.ask()
	w.conn.flush()
	_, behind := r.hear()
	r.site = &h.site
	return behind
}

// views are what stands on the keys behind: a token on New, or else what is on Old before stage new.
func (w *twoServers) views(r *run, h *house) [2]view {
	old, new := h.on(w.world, r), h.on(w.new, r)
	for i := range new {
		there, token := old[i], new[i]
		switch {
		case h.stage == stages.Old, h.stage == stages.Both && token.what == "none":
			new[i] = there
		case h.stage == stages.Both && there.kind != "none" && (there.ttl >= 0 || h.dialect == nil || h.dialect.JudgeAsOldCode(there.value, protocol.InstantOf(w.now()), "") != protocol.Expired):
			token.kind, token.value, token.ttl = there.kind, there.value, there.ttl
			new[i] = token
		}
	}
	return new
}

// alike compares what stands on the keys.
func (w *twoServers) alike(r *run, h *house) (behind [2]view) {
	r.ask()
	w.conn.flush()
	bare, _ := r.hear()
	behind = w.views(r, h)
	for i, b := range bare {
		v := behind[i]
		if !same(b, v) && h.stage != stages.New && b.kind == "none" && r.ends(v.value) { // of a lock that ended by D1 at stage new
			r.differ("D1")
		}
		if (r.lost || !same(b, v)) && v.what == "token" && r.guarded { // another service acted on it at stage old
			r.differ("D10")
		}
	}
	r.compare([2][2]view{bare, behind})
	if w.verbose {
		w.tell("    %+v\n    %+v", bare, behind)
	}
	return behind
}

// differs are the differences of stage both.
func (w *twoServers) differs(r *run, h *house, s *step, before [2]view, got [2][]string) {
	bare, behind, name, v := got[0][0], got[1][0], strings.ToUpper(s.commands[0][0]), before[0]
	swaps := name == "GETSET" || name == "SET"
	switch {
	case r.guarded && v.what == "token": // another service acted on it at stage old
		r.differ("D10")
	case h.stage != stages.Both || len(s.commands) > 1:
	case swaps && farNumber.MatchString(behind) && r.ends(r.word(s.commands[0][2], true)):
		r.differ("D2")
	case swaps && farNumber.MatchString(behind) && bare == "nil":
		r.differ("D5")
	case swaps && farNumber.MatchString(behind) && !r.ends(bare) && h.on(w.new, r)[0].kind == "none": // it loses by either
		got[1][0] = bare
	case strings.Contains("EXPIREAT PEXPIREAT PERSIST", name) && bare == "1" && behind == "0" && v.what == "raw":
		r.differ("D16")
	}
}
