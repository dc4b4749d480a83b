package clients

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// member starts one process of the client.
func (c client) member(t *testing.T, s *redistest.Server, more ...holders.Option) holders.Member {
	return func() *holders.Holder { return c.start(t, s, append(more, holders.Arg("lease", c.turnLease()))...) }
}

// ofGo starts one Go process: compat at stage bridge or modern, or package modern.
func ofGo(t *testing.T, s *redistest.Server, kind string, args ...holders.Option) holders.Member {
	return func() *holders.Holder { return holders.StartGo(t, kind, s.URL(), args...) }
}

// goDialect is what Go members beside the client are given. Beside a token lock it does not matter: they keep the default.
func (c client) goDialect() string {
	if _, err := legacy.ParseDialect(c.dialect); err != nil {
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
				report := holders.Fleet{
					T: t, Server: s, Key: c.key, Turns: 60, Each: c.least(stage), Hold: 2 * time.Millisecond, Limit: 2 * time.Minute,
					Members: append([]holders.Member{old, old}, members(t, c, s)...),
				}.Run()
				t.Log(report)
				assert.Zero(t, report.Overlaps, redistest.Violated)
				for _, e := range report.Errors {
					// A clobber by a losing GETSET is told to the holder as a loss: it cannot know better.
					if stage != "bridge" || e.Op != "release" || !strings.Contains(e.Message, "displaced") {
						assert.Fail(t, "a lock threw", "%+v", e)
					}
				}
			})
		}
	}
}

// least is how many turns everybody must get. A client that looks once a second finds no gap between modern holders that work
// without a pause: that stage is for clients that wait in its queue, or look often.
func (c client) least(stage string) int {
	if stage == "modern" && c.kind == holders.Retools {
		return -1
	}
	return 1
}

// TestBlindSetters: clients that write over a holder overlap with each other, and with Go at every stage. Go refuses
// the dialect in words.
func TestBlindSetters(t *testing.T) {
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
						T: t, Server: s, Key: c.key, Turns: 150, Hold: 2 * time.Millisecond, Limit: time.Minute, Members: fleet,
					}.Run()
					t.Log(report)
					if report.Overlaps > 0 {
						return
					}
				}
				t.Error("no overlap was seen: what docs/clients.md says of it was not shown")
			})
		}
		_, err := legacy.ParseDialect(c.dialect)
		require.Error(t, err)
		assert.Contains(t, err.Error(), "overwrite")
	}
}

// TestGoKeepsOut: a client finds a Go holder's value and takes it for held, whatever its clock says, at each stage.
func TestGoKeepsOut(t *testing.T) {
	for _, stage := range []string{"bridge", "modern"} {
		for _, c := range clients {
			t.Run(stage+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				s := redistest.Real(t)
				locker, err := newCompat(s.Pool(), stage, c.goDialect(), 30*time.Second) // no busy machine makes it late
				require.NoError(t, err)
				defer locker.Close()
				lock, err := locker.Acquire(t.Context(), c.key)
				require.NoError(t, err)
				all := []*holders.Holder{c.start(t, s)}
				if c.clock != nil {
					all = append(all, c.start(t, s, c.clock(t, time.Hour)))
				}
				for _, h := range all {
					assert.Equal(t, held, c.reads(t, s, h, s.Value(c.key)))
				}
				assert.NoError(t, lock.Renew(t.Context()))
				assert.NoError(t, lock.Release(t.Context()))
				assert.True(t, strings.HasPrefix(all[0].Do("try %s", c.key).Event, "acq"), "and free after it")
			})
		}
	}
}

// TestGoWaits: Go finds a client's value and takes it for held; after a crash it takes over what only a client's own code
// would end, and waits for the TTL of all others.
func TestGoWaits(t *testing.T) {
	for _, c := range clients {
		if c.blind {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			locker, err := newCompat(s.Pool(), "bridge", c.goDialect(), goTTL)
			require.NoError(t, err)
			defer locker.Close()
			h := c.start(t, s)
			c.acquire(t, h)
			_, err = locker.TryAcquire(t.Context(), c.key)
			h.Kill()
			if c.lease == 0 {
				assert.ErrorIs(t, err, compat.ErrForeignFormat, "nothing will ever free it, and that is said")
				return
			}
			assert.ErrorIs(t, err, compat.ErrNotAcquired)
			began := time.Now()
			lock, err := locker.Acquire(t.Context(), c.key)
			require.NoError(t, err)
			assert.Less(t, time.Since(began), c.lease+3*time.Second)
			assert.NoError(t, lock.Release(t.Context()))
		})
	}
}
