package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var (
	long      = flag.Bool("long", false, "TestMoves in its long form: client clocks 10 s apart, and stage legacy once more on the way")
	longTurns = flag.Int("turns", 1500, "of each fleet of TestMoves in its long form")
)

// form is how much of TestMoves is run.
type form struct {
	turns           int
	path            []stages.Stage
	lease           time.Duration // longer than the clocks are apart, or the old scheme itself fails at stage legacy
	apart           time.Duration // the services' clocks
	clients, others int           // kills of clients, and of sidecars and the server each
}

// TestMoves takes fleets in which every old Java and Python service is behind a sidecar through legacy, bridge, modern, bridge and modern,
// under load, beside Go members, and in one fleet beside Java and Python members. Clients, sidecars and the server, which persists, are killed, and the clients' clocks differ. Verify then finds nobody
// of the old scheme. It has a fleet for each dialect, as at stage legacy those of two do not exclude each other.
func TestMoves(t *testing.T) {
	f := form{turns: 120, path: []stages.Stage{stages.Bridge, stages.Modern, stages.Bridge, stages.Modern}, lease: 3 * time.Second, apart: 2 * time.Second, clients: 1, others: 1}
	if *long {
		f = form{turns: *longTurns, path: []stages.Stage{stages.Bridge, stages.Modern, stages.Bridge, stages.Legacy, stages.Bridge, stages.Modern}, lease: 12 * time.Second, apart: 10 * time.Second, clients: 6, others: 4}
	}
	program := redistest.Built(t, redistest.Operators)
	for _, fleet := range []struct {
		kind    holders.Kind
		dialect string
	}{{holders.JedisLock, "jedis-ms"}, {holders.JedisUUID, "jedis-uuid"}, {holders.RedisPy, "redispy-float"}} {
		t.Run(fleet.kind.Name, func(t *testing.T) {
			t.Parallel()
			f.run(t, program, fleet.kind, fleet.dialect)
		})
	}
}

func (f form) run(t *testing.T, program string, kind holders.Kind, dialect string) {
	s := &site{T: t, server: redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always"), book: redistest.Real(t), lease: f.lease}
	s.init(stages.Record{Stage: stages.Legacy, Dialect: dialect, ClockLag: f.apart})
	var members []holders.Member
	var sidecars []*holders.Sidecar
	for i, name := range []string{"billing", "stock", "mail"} {
		m, p := s.behind(kind, name, "", f.apart*time.Duration(i-1)/2)
		members, sidecars = append(members, m), append(sidecars, p)
	}
	members = append(members, s.goMember(), s.goMember())

	kills := []int{0, 3, 1, 2, 0, 3}
	if kind == holders.JedisLock {
		kills = []int{0, 5, 6, 3, 5, 6}
		for _, member := range []holders.Kind{holders.JavaMember, holders.PythonMember} {
			members = append(members, func() *holders.Holder {
				return holders.Start(t, member, s.server.URL(), holders.Arg("namespace", "orders"), holders.Arg("lease", 2*time.Second), holders.Arg("book", s.book.Addr))
			})
		}
	}
	ctx := redistest.Bounded(t, 15*time.Minute)
	reached := stages.Legacy
	at := map[string]int{}
	said := ""
	others, next := 2*f.others, 1
	r := holders.Fleet{
		T: t, Server: s.book, Key: "lock:fleet", Turns: f.turns, Each: f.turns / 60, Hold: 2 * time.Millisecond, Limit: 15 * time.Minute, Members: members,
		Kills: kills[:f.clients],
		Beside: func(after func(int)) {
			for i, to := range f.path {
				after(f.turns * (i + 1) / (len(f.path) + 1))
				began := time.Now()
				s.moveUnderFaults(ctx, to)
				t.Logf("stage %v after %v", to, time.Since(began).Round(time.Millisecond))
			}
			said = verdict(ctx, program, s.server.URL(), f.lease)
		},
		Meanwhile: func(n int) {
			if view, err := s.store.Show(ctx); err == nil {
				reached = view.Record.Stage
				at[reached.String()]++
			}
			// At stage legacy redis-py's second DEL, after a connection that broke, is the old scheme's own affair.
			if reached > stages.Legacy && next <= others && n >= f.turns*(next+others/3)/(others*4/3+1) {
				if next%2 == 0 {
					s.server.Kill()
					s.server.Start()
				} else {
					victim := sidecars[next/2%len(sidecars)]
					victim.Kill()
					victim.Start()
				}
				next++
			}
		},
	}.Run()
	t.Logf("%v; turns by stage %v; verify: %s", r, at, said)
	assert.Equal(t, 1, r.Inside, redistest.Violated)
	assert.Zero(t, r.Overlaps)
	assert.Equal(t, f.clients, r.Kills)
	assert.Equal(t, others+1, next, "the kills of sidecars and of the server")
	assert.Equal(t, "none-seen", said)
	s.noLockWithoutTTL()
}

// moveUnderFaults moves the stage, however often the server is killed meanwhile.
func (s *site) moveUnderFaults(ctx context.Context, to stages.Stage) {
	mover := stages.Mover{Store: s.store, Look: 100 * time.Millisecond}
	for ctx.Err() == nil {
		if err := mover.Run(ctx, to, func(stages.View, []stages.Blocker) {}); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// verdict is what verify says of the fleet at work. The server may be killed meanwhile: then it looks again.
func verdict(ctx context.Context, program, url string, lease time.Duration) string {
	for ctx.Err() == nil {
		command := exec.CommandContext(ctx, program, "verify", "--redis", url, "--namespace", "orders", "--longest-silence", lease.String(),
			"--for", (lease + time.Second).String(), "--monitor", "--json")
		out, err := command.Output()
		var found struct {
			Verdict string `json:"verdict"`
		}
		var exit *exec.ExitError
		if json.Unmarshal(out, &found) == nil && found.Verdict == "none-seen" || errors.As(err, &exit) && exit.ExitCode() == 3 {
			return found.Verdict
		}
		if ctx.Err() == nil {
			fmt.Printf("verify: %v %s\n", err, out)
		}
	}
	return "no verdict in time"
}
