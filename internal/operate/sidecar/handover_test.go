package sidecar_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// houses are two servers, the record of a handover between them on lock:*, and sidecars.
type houses struct {
	bed
	old, new *redistest.Server
	sidecars []*started
}

func newHouses(t testing.TB) *houses {
	h := &houses{old: redistest.Real(t), new: redistest.Real(t)}
	h.bed = bed{t: t, store: recordOf(t, h.old, h.new, "lock:*")}
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

func (h *houses) move(to ...stages.Stage) {
	h.t.Helper()
	for _, stage := range to {
		h.moves(stage, h.sidecars...)
	}
}

// sidecar starts one of a service whose other keys are on Old, or on New.
func (h *houses) sidecar(name string, dataOld bool, change ...func(*sidecar.Options)) *started {
	h.t.Helper()
	opts := sidecar.Options{Pool: h.new.Pool(), Old: h.old.Pool(), DataOld: dataOld, Namespace: "to-b", Name: name, MemberLease: 3 * time.Second, Lease: 2 * time.Second, ReplyTimeout: time.Second}
	for _, f := range change {
		f(&opts)
	}
	data := h.new.Addr
	if dataOld {
		data = h.old.Addr
	}
	s := h.start(opts, data, "jedis-ms")
	h.sidecars = append(h.sidecars, s)
	return s
}

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
	redistest.Await(h.t, "the end of "+key, func() bool { return h.where(key) == "nowhere" })
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
				if stage == stages.Both { // its TTL is the service's own: nobody renews it
					records, err := redis.Strings(h.new.Do("HVALS", protocol.SidecarKey(k)), nil)
					require.NoError(t, err)
					assert.True(t, slices.ContainsFunc(records, func(r string) bool { return strings.HasSuffix(r, " 1 x") }), records)
				}
				says(t, conn, "0", "EVAL", freeScript, "1", k, "y")
				says(t, conn, "1", "EVAL", freeScript, "1", k, "x")
				h.gone(k)
				says(t, conn, "OK", "SET", "data", stage.String())
			}
			// A text that is over is taken over once.
			past := ends(time.Second)
			says(t, one, "1", "SETNX", k, past)
			time.Sleep(1010 * time.Millisecond)
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

// TestHandoverLeavesNoText: what a GETSET at stage both leaves on Old keeps nobody out when the stage is both again.
func TestHandoverLeavesNoText(t *testing.T) {
	h := newHouses(t)
	one, two := h.client(h.sidecar("one", true)), h.client(h.sidecar("two", false))
	free := func() {
		t.Helper()
		h.gone("lock:a")
		if stage, _, _ := h.sidecars[0].Stage(); stage != stages.Both {
			h.move(stages.Both)
		}
		says(t, two, "1", "SETNX", "lock:a", "x y")
		says(t, two, "1", "DEL", "lock:a")
	}
	h.move(stages.Both, stages.New)
	says(t, one, "OK", "SET", "lock:a", "5") // no token
	h.move(stages.Both)
	says(t, one, "5", "GETSET", "lock:a", "x y")
	require.Equal(t, "new", h.where("lock:a"), "where it was")
	h.move(stages.New)
	says(t, two, "x y", "GETSET", "lock:a", "y z")
	says(t, two, "1", "DEL", "lock:a")
	free()
	says(t, two, "1", "SETNX", "lock:a", "two")
	says(t, one, "far", "GETSET", "lock:a", "one") // as on a bare server its text stands on Old
	require.Equal(t, "one", h.old.Value("lock:a"))
	h.move(stages.New)
	says(t, two, "1", "DEL", "lock:a")
	free()
	says(t, two, "1", "SETNX", "lock:a", "two")
	says(t, one, "far", "GETSET", "lock:a", "one")
	says(t, two, "1", "EXPIRE", "lock:a", "-1")
	free()
	h.move(stages.New)
	says(t, two, "OK", "MSET", "lock:b", "5", "data", "5")
	says(t, two, "1", "DEL", "lock:b")
	h.move(stages.Both, stages.Old) // data is no lock, for which the stages would wait
}

// TestHandoverClears: a command that writes leaves nothing of any of its keys where a stage's commands do not go, except what is
// another's, and an EXPIRE reaches a lock that was taken at stage old.
func TestHandoverClears(t *testing.T) {
	h := newHouses(t)
	one, two := h.client(h.sidecar("one", true)), h.client(h.sidecar("two", false))
	says(t, one, "1", "SETNX", "lock:old", ends(time.Minute))
	h.move(stages.Both)
	redistest.Await(t, "a look", func() bool { n, _ := redis.Int(one.Do("EXPIRE", "lock:old", "20")); return n == 1 })
	says(t, one, "1", "DEL", "lock:old")
	keys := []string{"lock:a", "lock:b", "lock:c", "lock:d", "lock:e"}
	for _, k := range keys {
		says(t, one, "1", "SETNX", k, ends(time.Minute))
		says(t, two, "0", "SETNX", k, ends(time.Minute))
	}
	says(t, two, "0", "EXPIRE", "lock:a", "20")
	require.Equal(t, int64(-1), h.old.Do("TTL", "lock:a"), "it is another's")
	h.move(stages.New)
	says(t, two, "0", "DEL", "lock:a")
	require.Equal(t, "old new", h.where("lock:a"), "it is another's")
	for _, k := range keys[:3] {
		h.new.Do("DEL", k, protocol.GuardKey(k), protocol.SidecarKey(k), protocol.QueueKey(k)) // as the end of its lease does
	}
	says(t, one, "0", "DEL", "lock:a")
	require.Equal(t, "nowhere", h.where("lock:a"), "nothing is given back, and what was left is")
	says(t, one, "0", "DEL", "lock:b", "lock:c")
	require.Equal(t, []string{"nowhere", "nowhere"}, []string{h.where("lock:b"), h.where("lock:c")})
	h.move(stages.Both, stages.Old)
	says(t, one, "2", "DEL", "lock:d", "lock:e")
	require.Equal(t, []string{"nowhere", "nowhere"}, []string{h.where("lock:d"), h.where("lock:e")})
}

// TestHandoverTextWithoutATime: where Old did not answer the DEL of such a lock at stage new, its text counts again at stage both: the stages wait for it, and a DEL frees
// it, be it the operator's.
func TestHandoverTextWithoutATime(t *testing.T) {
	h := newHouses(t)
	way := redistest.NewLink(t, h.old.Addr)
	one := h.client(h.sidecar("one", false, func(o *sidecar.Options) { o.Old = poolOf(t, way.Addr) }))
	h.move(stages.Both)
	says(t, one, "1", "SETNX", "lock:a", "x y")
	h.move(stages.New)
	way.Partition()
	says(t, one, "1", "DEL", "lock:a")
	way.Heal()
	h.move(stages.Both)
	says(t, one, "0", "SETNX", "lock:a", "x y")
	redistest.Await(t, "the sidecar's report", func() bool {
		view, err := h.store.Show(t.Context())
		require.NoError(t, err)
		inTheWay, err := h.store.Move(t.Context(), view.Record.Epoch, stages.New, false)
		require.NoError(t, err)
		return strings.Contains(fmt.Sprint(inTheWay), "holds a lock of, stage old")
	})
	h.old.Do("DEL", "lock:a")
	says(t, one, "1", "SETNX", "lock:a", "x y")
	require.Equal(t, "old new", h.where("lock:a"))
}

// TestHandoverWithoutOld: at stage new Old may be switched off. A sidecar forgets what is given back as before, and counts what is held as held on New.
func TestHandoverWithoutOld(t *testing.T) {
	h := newHouses(t)
	one := h.client(h.sidecar("one", false))
	h.move(stages.Both, stages.New)
	h.old.Kill()
	listed := func(keys int64) {
		t.Helper()
		redistest.Await(t, "the list of keys", func() bool { return h.new.Do("HLEN", sidecar.ListKey("to-b", "one")) == keys })
	}
	says(t, one, "1", "SETNX", "lock:held", ends(time.Minute))
	for i := range 3 {
		says(t, one, "1", "SETNX", fmt.Sprint("lock:", i), ends(time.Minute))
	}
	listed(4)
	time.Sleep(2 * time.Second) // they are looked at
	for i := range 3 {
		says(t, one, "1", "DEL", fmt.Sprint("lock:", i))
	}
	listed(1)
	view, err := h.store.Show(t.Context())
	require.NoError(t, err)
	require.Equal(t, []stages.Stage{stages.New, stages.New}, []stages.Stage{view.Members[0].Lowest, view.Members[0].Highest})
}

// TestHandoverOfAnotherRecord: a record that is made again may name other servers. A sidecar that runs looks whether they are its own, as one that
// starts does; where they are, under other marks, it goes on.
func TestHandoverOfAnotherRecord(t *testing.T) {
	t.Parallel()
	h := newHouses(t)
	one := h.client(h.sidecar("one", false))
	again := func(old *redistest.Server) {
		h.new.Do("FLUSHALL")
		old.Do("FLUSHALL")
		recordOf(t, old, h.new, "lock:*")
	}
	again(redistest.Real(t))
	redistest.Await(t, "a member of two minds", func() bool {
		view, err := h.store.Show(t.Context())
		return err == nil && len(view.Members) == 1 && strings.Contains(view.Members[0].Misfit, "two minds")
	})
	says(t, one, "0", "SETNX", "lock:a", ends(time.Minute))
	require.Equal(t, "nowhere", h.where("lock:a"))
	again(h.old)
	taken := func() bool { reply, _ := one.Do("SETNX", "lock:a", ends(time.Minute)); return reply == int64(1) }
	redistest.Await(t, "a lock", taken)
	require.Equal(t, "old", h.where("lock:a"))
}

// TestHandoverFaults cuts a sidecar off from either server within a command, at stage both. The service hears an error or "held", nobody enters beside another, and what
// was taken ends with its lease.
func TestHandoverFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what     string
		way      int // 0: to Old
		fault    func(*redistest.Link)
		old, new bool // where something may be left until its lease ends
	}{
		{"no reply of New", 1, (*redistest.Link).HalfOpen, false, true},
		{"no way to New", 1, (*redistest.Link).Partition, false, false},
		{"no reply of Old", 0, (*redistest.Link).HalfOpen, true, false},
		{"no way to Old", 0, (*redistest.Link).Partition, false, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			h := newHouses(t)
			ways := [2]*redistest.Link{redistest.NewLink(t, h.old.Addr), redistest.NewLink(t, h.new.Addr)}
			s := h.sidecar("one", true, func(o *sidecar.Options) {
				o.Old, o.Pool, o.MemberLease = poolOf(t, ways[0].Addr), poolOf(t, ways[1].Addr), 5*time.Second
			})
			one := h.client(s)
			two := h.client(h.sidecar("two", true))
			h.move(stages.Both)
			commands := []string{"SETNX", "GETSET", "DEL"}
			if !c.old && !c.new {
				commands = commands[:1]
			}
			for _, command := range commands {
				k := "lock:" + command
				args := []any{k, ends(2 * time.Second)}
				switch command {
				case "GETSET": // of a lock that is over
					h.old.Do("SET", k, ends(-time.Second))
				case "DEL":
					redistest.Await(t, "the way", func() bool { n, _ := redis.Int(one.Do("SETNX", args...)); return n == 1 })
					args = args[:1]
				}
				c.fault(ways[c.way])
				_, err := one.Do(command, args...)
				ways[c.way].Cut()
				ways[c.way].Heal()
				if errors.Is(err, syscall.ECONNRESET) { // it came later than the lease
					one = h.client(s)
				} else {
					require.ErrorContains(t, err, "ERR lockmigrate sidecar: "+command)
				}
				if command != "DEL" {
					require.False(t, h.old.Do("EXISTS", k) == int64(1) && h.old.Value(k) == args[1] && !c.old, "the text stands on Old")
					require.False(t, h.new.Do("EXISTS", k) == int64(1) && !c.new, "New is taken")
				}
				redistest.Await(t, "the end of the lease", func() bool { // as its client takes it
					text := ends(30 * time.Second)
					if n, _ := redis.Int(two.Do("SETNX", k, text)); n == 1 {
						return true
					}
					over := func(reply any, err error) bool {
						n, err := redis.Int64(reply, err)
						return err == nil && n < time.Now().UnixMilli()
					}
					return over(two.Do("GET", k)) && over(two.Do("GETSET", k, text))
				})
				require.Equal(t, "old new", h.where(k))
				says(t, two, "1", "DEL", k)
			}
		})
	}
}

// TestHandoverLease: a reply that comes after the sidecar's lease does not reach the service, and while it lasts no more nothing is granted.
func TestHandoverLease(t *testing.T) {
	t.Parallel()
	h := newHouses(t)
	way := redistest.NewLink(t, h.new.Addr)
	pool := poolOf(t, way.Addr)
	s := h.sidecar("one", true, memberFor(time.Second), func(o *sidecar.Options) { o.Pool = pool })
	conn := h.client(s)
	h.old.Do("CLIENT", "PAUSE", "1500")
	_, err := conn.Do("SETNX", "lock:a", ends(time.Minute))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "old", h.where("lock:a"), "it has acted")
	way.Partition()
	redistest.Await(t, "the end of the lease", func() bool { _, _, lives := s.Stage(); return !lives })
	conn = h.client(s)
	says(t, conn, "0", "SETNX", "lock:b", ends(time.Minute))
	says(t, conn, "nil", "SET", "lock:b", "x", "NX", "PX", "1000")
	says(t, conn, "far", "GETSET", "lock:b", ends(time.Minute))
	_, err = conn.Do("EVAL", takeScript, "1", "lock:b", "x", "1000")
	require.ErrorContains(t, err, "its lease is over")
	require.Equal(t, "nowhere", h.where("lock:b"))
	says(t, conn, "OK", "SET", "data", "1")
}
