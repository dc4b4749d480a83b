// Package clients holds what is true of the locks of released packages, and that every tool says just that: what they
// write, what they make of a value that is not theirs, and whether Go can lock beside them. The suite makes docs/clients.md.
package clients

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/modern"
)

// member starts one process of the client.
func (c client) member(t *testing.T, s *redistest.Server, more ...holders.Option) holders.Member {
	return func() *holders.Holder { return c.start(t, s, append(more, holders.Arg("lease", c.lease))...) }
}

// ofGo starts one Go process: compat at stage bridge or modern, or package modern.
func ofGo(t *testing.T, s *redistest.Server, kind string, args ...holders.Option) holders.Member {
	return func() *holders.Holder { return holders.StartGo(t, kind, s.URL(), args...) }
}

// goDialect is what Go members beside the client are given. Beside a token lock it does not matter: they keep the default.
func (c client) goDialect() string {
	if _, err := protocol.DialectNamed(c.dialect); err != nil {
		return ""
	}
	return c.dialect
}

// beside are the Go members that a client may meet.
var beside = map[string]func(*testing.T, client, *redistest.Server) []holders.Member{
	"bridge": func(t *testing.T, c client, s *redistest.Server) []holders.Member {
		m := ofGo(t, s, "compat", holders.Arg("stage", "bridge"), holders.Arg("dialect", c.goDialect()))
		return []holders.Member{m, m}
	},
	"modern": func(t *testing.T, c client, s *redistest.Server) []holders.Member {
		return []holders.Member{
			ofGo(t, s, "compat", holders.Arg("stage", "modern"), holders.Arg("dialect", c.goDialect())), ofGo(t, s, "modern"),
		}
	},
}

// TestFleets: two processes of a client take turns with two of Go, at stage bridge and at stage modern. Nobody is ever
// inside beside another, everybody gets turns (but see least), and no lock throws, although the clocks of the client's hosts are ahead of the
// server's by two leases, where it reads a clock.
func TestFleets(t *testing.T) {
	t.Parallel()
	for stage, members := range beside {
		for _, c := range clients {
			if c.blind {
				continue
			}
			t.Run(stage+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				s := redistest.Real(t)
				old := c.member(t, s)
				if c.clock != nil {
					old = c.member(t, s, c.clock(t, 2*lease)) // both: two clocks would break their own exclusion
				}
				// A client that looks once a second finds no gap of 120 ms between Go holders that work without a pause.
				each := map[bool]int{true: -1, false: 1}[c.kind == holders.Retools]
				report := holders.Fleet{
					T: t, Server: s, Key: c.key, Turns: c.turns(60), Each: each, Hold: 2 * time.Millisecond, Limit: 2 * time.Minute, Record: true,
					Meanwhile: holders.Noise(s), Members: append([]holders.Member{old, old}, members(t, c, s)...),
				}.Run()
				t.Log(report)
				assert.Zero(t, report.Overlaps, redistest.Violated)
				assert.Empty(t, report.Thrown(memberTTL), "a lock threw")
			})
		}
	}
}

// TestStoppedMembers: Go members are stopped inside their locks for longer than their TTL. Others go on, beside them in the critical section, and
// only after their deadlines; each hears of its loss as soon as it runs.
func TestStoppedMembers(t *testing.T) {
	t.Parallel()
	for _, at := range []struct{ stage, client string }{
		{"modern", "npm redis-lock 1.0.0"}, {"bridge", "Go go-redis 9.23.0, SetNX without expiration"},
	} {
		c := clients[slices.IndexFunc(clients, func(c client) bool { return c.name == at.client })]
		t.Run(at.stage+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			old := c.member(t, s)
			report := holders.Fleet{
				T: t, Server: s, Key: c.key, Turns: 40, Hold: 5 * time.Millisecond, Limit: 2 * time.Minute,
				Stops: []int{2, 3, 2}, StopFor: 2 * memberTTL,
				Record: true, Meanwhile: holders.Noise(s), Members: append([]holders.Member{old, old}, beside[at.stage](t, c, s)...),
			}.Run()
			t.Log(report)
			assert.Zero(t, report.Overlaps, redistest.Violated)
			assert.NotEmpty(t, report.Told, "nothing was shown")
			told := 0
			for _, e := range report.Errors {
				if e.Stood(2 * memberTTL / 3) {
					told++
				}
			}
			assert.GreaterOrEqual(t, told, 3, "each stopped member is told")
			assert.Empty(t, report.Thrown(memberTTL), "a lock threw")
		})
	}
}

// turns is how many turns a fleet takes: fewer where a client never releases, and every turn of it takes a lease.
func (c client) turns(n int) int {
	if c.never {
		return n / 3
	}
	return n
}

// TestBlindSetters: clients that write over a holder overlap with each other, and with Go at every stage. Go refuses
// the dialect in words.
func TestBlindSetters(t *testing.T) {
	t.Parallel()
	for _, c := range clients {
		if !c.blind {
			continue
		}
		eager := holders.Arg("poll", 1)
		for stage, members := range map[string]func(*testing.T, client, *redistest.Server) []holders.Member{
			"alone": nil, "bridge": beside["bridge"], "modern": beside["modern"],
		} {
			t.Run(stage+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				s := redistest.Real(t)
				fleet := []holders.Member{c.member(t, s, eager), c.member(t, s, eager)}
				if members != nil {
					fleet = append(fleet, members(t, c, s)...)
				}
				for range 20 { // it is a race: 11 of 976 turns beside the bridge
					report := holders.Fleet{
						T: t, Server: s, Key: c.key, Turns: 150, Hold: 2 * time.Millisecond, Limit: time.Minute, Record: true, Members: fleet,
					}.Run()
					t.Log(report)
					if report.Overlaps > 0 {
						return
					}
				}
				t.Error("no overlap was seen: what docs/clients.md says of it was not shown")
			})
		}
		_, err := protocol.DialectNamed(c.dialect)
		require.Error(t, err)
		assert.Contains(t, err.Error(), "overwrite")
	}
}

var update = flag.Bool("update", false, "write docs/clients.md as this run finds it")

func TestMain(m *testing.M) {
	holders.ServeIfAsked(map[string]holders.Maker{
		"compat": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			if name := args["namespace"]; name != "" {
				return holders.Of(compat.New(pool, compat.Options{Namespace: name, TTL: memberTTL, Lease: lease}))
			}
			return holders.Of(newCompat(pool, args["stage"], args["dialect"], memberTTL))
		},
		"modern": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			return holders.Of(modern.New(pool, modern.Options{TTL: memberTTL, FenceTTL: time.Minute}))
		},
	})
	_ = flag.Set("test.parallel", "4") // they wait as much as they work; the command line still decides
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python, redistest.Node, redistest.PHP, redistest.GoHold)
}

const (
	lease     = 3 * time.Second // of the clients, where they have one
	goTTL     = time.Second     // of a Go holder that somebody waits for
	memberTTL = time.Second     // of a fleet's Go members
)

// newCompat makes a Locker as a service that joins the fleet would.
func newCompat(pool *redis.Pool, stage, dialect string, ttl time.Duration) (compat.Locker, error) {
	o := compat.Options{
		TTL: ttl, Lease: lease, ShortestLease: lease, ClockLag: 100 * time.Millisecond, CommandDelay: 300 * time.Millisecond,
	}
	var err error
	if stage == "modern" {
		if o.Namespace, err = redistest.InStage(pool, lockmigrate.StageModern, dialect, lease); err != nil {
			return nil, err
		}
	} else {
		o.Dialect.Name = dialect
	}
	return compat.New(pool, o)
}
