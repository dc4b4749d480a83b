package sidecar_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// houses are two servers, the record of a handover between them on lock:*, and sidecars.
type houses struct {
	t        testing.TB
	old, new *redistest.Server
	store    *stages.Store
	sidecars []*started
}

func newHouses(t testing.TB) *houses {
	h := &houses{t: t, old: redistest.Real(t), new: redistest.Real(t)}
	h.store = recordOf(t, h.old, h.new, "lock:*")
	return h
}

func recordOf(t testing.TB, old, new *redistest.Server, pattern string) *stages.Store {
	t.Helper()
	halves := &stages.Halves{}
	for _, half := range []struct {
		pool *redis.Pool
		is   *stages.Half
	}{{old.Pool(), &halves.Old}, {new.Pool(), &halves.New}} {
		mark, err := stages.WriteMark(t.Context(), half.pool, "to-b", time.Second)
		require.NoError(t, err)
		half.is.Mark = mark
	}
	store := &stages.Store{Pool: new.Pool(), Namespace: "to-b", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "to-b", Stage: stages.Old, Patterns: []string{pattern}, Handover: halves}))
	return store
}

// move moves the stage as soon as nobody is in the way.
func (h *houses) move(to ...stages.Stage) {
	h.t.Helper()
	mover := stages.Mover{Store: h.store, Look: 20 * time.Millisecond}
	for _, stage := range to {
		require.NoError(h.t, mover.Run(h.t.Context(), stage, func(stages.View, []stages.Blocker) {}))
		redistest.Await(h.t, "all to follow", 20*time.Second, func() bool {
			return !slices.ContainsFunc(h.sidecars, func(s *started) bool {
				is, _, lives := s.Stage()
				return is != stage || !lives
			})
		})
	}
}

// sidecar starts one of a service whose other keys are on Old, or on New.
func (h *houses) sidecar(name string, dataOld bool, change ...func(*sidecar.Options)) *started {
	h.t.Helper()
	opts := sidecar.Options{Pool: h.new.Pool(), Old: h.old.Pool(), DataOld: dataOld, Namespace: "to-b", Name: name, MemberLease: time.Second, Lease: 2 * time.Second, ReplyTimeout: time.Second}
	for _, f := range change {
		f(&opts)
	}
	data := h.new.Addr
	if dataOld {
		data = h.old.Addr
	}
	b := &bed{t: h.t}
	s := b.start(opts, data, "jedis-ms")
	h.sidecars = append(h.sidecars, s)
	return s
}

func (h *houses) client(s *started) redis.Conn { return (&bed{t: h.t}).client(s) }

// where tells on which servers a key stands.
func (h *houses) where(key string) (on string) {
	h.t.Helper()
	for name, server := range map[string]*redistest.Server{"old": h.old, "new": h.new} {
		if server.Do("EXISTS", key) == int64(1) {
			on = strings.TrimSpace(on + " " + name)
		}
	}
	if on == "new old" {
		on = "old new"
	}
	return cmp.Or(on, "nowhere")
}

func (h *houses) gone(key string) {
	h.t.Helper()
	redistest.Await(h.t, "the end of "+key, 5*time.Second, func() bool { return h.where(key) == "nowhere" })
}

// TestHandoverCommands: at each stage the lock stands where it should, whichever server has the service's other keys, and the commands answer as one lock
// would.
func TestHandoverCommands(t *testing.T) {
	h := newHouses(t)
	one, two := h.client(h.sidecar("one", true)), h.client(h.sidecar("two", false))
	for i, stage := range []stages.Stage{stages.Old, stages.Both, stages.New, stages.Both, stages.Old, stages.Both, stages.New} {
		t.Run(stage.String(), func(t *testing.T) {
			h.t = t
			if i > 0 {
				h.move(stage)
			}
			where := map[stages.Stage]string{stages.Old: "old", stages.Both: "old new", stages.New: "new"}[stage]
			k := "lock:a"
			for i, conn := range []redis.Conn{one, two} {
				other := []redis.Conn{two, one}[i]
				text := ends(30 * time.Second)
				says(t, conn, "nil", "GET", k)
				says(t, conn, "1", "SETNX", k, text)
				require.Equal(t, where, h.where(k))
				says(t, conn, text, "GET", k)
				says(t, other, "0", "SETNX", k, text)
				if stage == stages.Old {
					says(t, conn, "1", "EXPIRE", k, "20")
				} else {
					says(t, other, "0", "DEL", k)
					says(t, other, "0", "EXPIRE", k, "20")
					says(t, conn, "1", "EXPIRE", k, "20")
					says(t, other, "far", "GETSET", k, ends(20*time.Second))
				}
				says(t, conn, "1", "EXISTS", k)
				says(t, conn, "1", "DEL", k)
				h.gone(k) // at stage new it is kept for the other for a moment
				says(t, conn, "OK", "SET", k, "x", "NX", "PX", "20000")
				require.Equal(t, where, h.where(k))
				says(t, other, "nil", "SET", k, "y", "NX", "PX", "20000")
				says(t, conn, "0", "EVAL", freeScript, "1", k, "y")
				says(t, conn, "1", "EVAL", freeScript, "1", k, "x")
				h.gone(k)
				says(t, conn, "OK", "SET", "data", stage.String())
			}
			// A text that is over is taken over once.
			past := ends(30 * time.Millisecond)
			says(t, one, "1", "SETNX", k, past)
			time.Sleep(40 * time.Millisecond)
			if stage != stages.New {
				says(t, two, past, "GET", k)
				mine := ends(30 * time.Second)
				says(t, two, past, "GETSET", k, mine)
				require.Equal(t, where, h.where(k))
				says(t, two, mine, "GET", k)
				says(t, one, map[bool]string{true: mine, false: "far"}[stage == stages.Old], "GETSET", k, ends(30*time.Second))
			}
			says(t, two, map[bool]string{true: "0", false: "1"}[stage == stages.New], "DEL", k)
			h.gone(k)
		})
	}
	assert.Equal(t, "new", h.old.Value("data"))
	assert.Equal(t, "new", h.new.Value("data"))
}
