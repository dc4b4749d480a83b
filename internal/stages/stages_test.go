package stages

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func newStore(s *redistest.Server) *Store {
	return &Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
}

var orders = Record{Stage: Legacy, Patterns: []string{"lock.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second}

// never is a bound that no test reaches.
var never = time.Now().AddDate(10, 0, 0)

// fake is a member that does as it is told, without a process.
type fake struct {
	t     *testing.T
	store *Store
	Report
}

func newFake(t *testing.T, s *Store, id string) *fake {
	return &fake{t: t, store: s, Report: Report{
		ID: id, Lease: time.Minute, Longest: 10 * time.Second, Epoch: -1, Stage: -1, Lowest: -1, Highest: -1,
		Info: Info{Host: "here", Process: 7}, Bound: never,
	}}
}

// report reports and then runs what it was told.
func (f *fake) report() Order {
	f.t.Helper()
	f.Seq++
	order, err := f.store.Join(f.t.Context(), f.Report)
	if err != nil {
		f.t.Fatalf("%s reports: %v", f.ID, err)
	}
	f.Epoch, f.Stage = order.Epoch, order.Stage
	return order
}

func (f *fake) holds(lowest, highest Stage) { f.Lowest, f.Highest = lowest, highest }

func create(t *testing.T, s *Store) {
	t.Helper()
	require.NoError(t, s.Init(t.Context(), orders))
}

// move tries to change the stage and returns who blocks, as "id:why".
func move(t *testing.T, s *Store, to Stage) string {
	t.Helper()
	view, err := s.Show(t.Context())
	require.NoError(t, err)
	blockers, err := s.Move(t.Context(), view.Record.Epoch, to, true)
	require.NoError(t, err)
	var all []string
	for _, b := range blockers {
		all = append(all, b.Member+":"+b.Why)
	}
	after, err := s.Show(t.Context())
	require.NoError(t, err)
	if moved := after.Record.Epoch != view.Record.Epoch; moved != (len(blockers) == 0) || moved != (after.Record.Stage == to) {
		t.Fatalf("blocked by %v, and the record is %+v", all, after.Record)
	}
	return strings.Join(all, " ")
}

func TestInit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		if _, err := store.Show(t.Context()); !errors.Is(err, ErrNoRecord) {
			t.Errorf("show: %v", err)
		}
		if _, err := store.Join(t.Context(), Report{ID: "a", Seq: 1, Lease: time.Second, Bound: never}); !errors.Is(err, ErrNoRecord) {
			t.Errorf("join: %v", err)
		}
		if _, err := store.Move(t.Context(), 1, Bridge, true); !errors.Is(err, ErrNoRecord) {
			t.Errorf("move: %v", err)
		}
		create(t, store)
		if err := store.Init(t.Context(), orders); !errors.Is(err, ErrExists) {
			t.Errorf("a second init: %v", err)
		}
		view, err := store.Show(t.Context())
		require.NoError(t, err)
		r := view.Record
		if r.Stage != Legacy || r.Epoch != 1 || r.Dialect != "jedis-ms" || r.Shortest != 10*time.Second || !r.Covers("lock.1") || r.Covers("cache.1") {
			t.Errorf("record %+v", r)
		}
		if age := view.Now.Sub(r.Since); age < 0 || age > time.Minute {
			t.Errorf("since %v", r.Since)
		}
	})
}

// TestFleetMovesForwardBackForward: every step asks every member.
func TestFleetMovesForwardBackForward(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a, b := newFake(t, store, "a"), newFake(t, store, "b")
		a.report()
		b.report()
		for _, to := range []Stage{Bridge, Modern, Bridge, Legacy, Bridge, Modern} {
			if to > a.Stage {
				if got := move(t, store, to); got != "a:behind b:behind" {
					t.Fatalf("to %v before anybody runs the epoch: blocked by %q", to, got)
				}
			}
			a.report()
			b.report()
			if got := move(t, store, to); got != "" {
				t.Fatalf("to %v: blocked by %q", to, got)
			}
			if a.report().Stage != to || b.report().Stage != to {
				t.Fatalf("told %v and %v, want %v", a.Stage, b.Stage, to)
			}
		}
	})
}

// TestLocksOfAnOldStageBlock: a member may run the new stage and still hold a lock of the old one.
func TestLocksOfAnOldStageBlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		a.report()
		move(t, store, Bridge)
		a.holds(Legacy, Legacy)
		a.report()
		a.report()
		assert.Equal(t, "a:holds", move(t, store, Modern), "with a legacy lock held")
		a.holds(-1, -1)
		a.report()
		assert.Equal(t, "", move(t, store, Modern), "after its release")
		a.holds(Bridge, Modern)
		a.report()
		assert.Equal(t, "", move(t, store, Bridge), "back")
		a.report()
		assert.Equal(t, "a:holds", move(t, store, Legacy), "back to legacy with a modern lock held")
	})
}

// TestSilentMembersRunOut: forward waits for the lease, the longest lock and the slack.
func TestSilentMembersRunOut(t *testing.T) {
	s := redistest.Mini(t)
	store := newStore(s)
	clock := time.Now().Truncate(time.Millisecond)
	s.Mini.SetTime(clock)
	pass := func(d time.Duration) { clock = clock.Add(d); s.Mini.SetTime(clock) }
	create(t, store)
	a, silent := newFake(t, store, "a"), newFake(t, store, "silent")
	for range 2 {
		a.report()
		silent.report()
	}
	move(t, store, Bridge)
	a.report()
	require.Equal(t, "a:behind silent:behind", move(t, store, Modern))
	pass(silent.Lease + time.Millisecond)
	a.report()
	require.Equal(t, "silent:silent", move(t, store, Modern), "after its lease")
	blockers, err := store.Move(t.Context(), 2, Modern, true)
	if err != nil || len(blockers) != 1 || blockers[0].Wait != silent.Longest+Slack {
		t.Fatalf("%+v, %v", blockers, err)
	}
	pass(silent.Longest + Slack - time.Millisecond)
	a.report()
	require.Equal(t, "silent:silent", move(t, store, Modern), "just before it has run out")
	pass(time.Millisecond)
	a.report()
	require.Equal(t, "", move(t, store, Modern), "after it has run out")
	// It comes back from its pause, and reports what it ran. It gets no lease until it says that it holds nothing there.
	silent.Seq++
	_, err = store.Join(t.Context(), silent.Report)
	require.ErrorIs(t, err, ErrApart)
	silent.Epoch, silent.Stage = -1, -1
	silent.report()
	require.Equal(t, "", move(t, store, Bridge), "back")
}

// TestUndoingAStepDoesNotWait: back may overtake a step that nobody, or somebody, has taken.
func TestUndoingAStepDoesNotWait(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a, b := newFake(t, store, "a"), newFake(t, store, "b")
		for range 2 {
			a.report()
			b.report()
		}
		move(t, store, Bridge)
		a.report()
		require.Equal(t, "", move(t, store, Legacy), "undo")
		require.Equal(t, "a:behind b:behind", move(t, store, Bridge), "again, while a runs an epoch that is over")
	})
}

func TestLateReportsChangeNothing(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		a.report()
		late := a.Report
		late.Seq, late.Highest, late.Lowest = 1, Modern, Modern
		if _, err := store.Join(t.Context(), late); err == nil {
			t.Error("a report that was overtaken was taken")
		}
		assert.NoError(t, store.Leave(t.Context(), "a", 1, never))
		view, _ := store.Show(t.Context())
		if len(view.Members) != 1 || view.Members[0].Highest != Legacy || view.Members[0].Info.Host != "here" {
			t.Errorf("members %+v", view.Members)
		}
		assert.NoError(t, store.Leave(t.Context(), "a", 3, never))
		if view, _ := store.Show(t.Context()); len(view.Members) != 0 {
			t.Errorf("members %+v", view.Members)
		}
	})
}

// TestLostRecordComesBackOnlyWhenItsMembersAreGone: after a FLUSH of the record alone.
func TestLostRecordComesBackOnlyWhenItsMembersAreGone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		newFake(t, store, "a").report()
		s.Do("DEL", RecordKey("orders"))
		if err := store.Init(t.Context(), orders); err == nil || !strings.Contains(err.Error(), "may still hold locks") {
			t.Errorf("init: %v", err)
		}
	})
}

func TestPatternsAndNamesAreChecked(t *testing.T) {
	for pattern, good := range map[string]bool{"lock.*": true, "{7}*": true, "*": false, "": false, "[ab]": false, "lockmigrate:*": false, "**": false, "*stage": false} {
		if err := CheckPatterns([]string{pattern}); (err == nil) != good {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	for name, good := range map[string]bool{"orders": true, "a.b_c:d-1": true, "": false, "a b": false, "{a}": false, strings.Repeat("a", 101): false} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestGarbageInARecord: what somebody else has written is told as such. Nobody moves by it, and no member is told a stage.
func TestGarbageInARecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		for _, c := range []struct {
			what    string
			write   []any
			members bool // the members are at fault
		}{
			{"another type", []any{"SET", RecordKey("orders"), "x"}, false},
			{"no epoch", []any{"HSET", RecordKey("orders"), "epoch", "many"}, false},
			{"an epoch below one", []any{"HSET", RecordKey("orders"), "epoch", "-5"}, false},
			{"an epoch beyond counting", []any{"HSET", RecordKey("orders"), "epoch", "9007199254740993"}, false},
			{"no stage", []any{"HSET", RecordKey("orders"), "stage", ""}, false},
			{"a stage of a newer version", []any{"HSET", RecordKey("orders"), "stage", "3"}, false},
			{"no pattern", []any{"HSET", RecordKey("orders"), "patterns", "[]"}, false},
			{"half a list of patterns", []any{"HSET", RecordKey("orders"), "patterns", `["lock`}, false},
			{"no clients", []any{"HDEL", RecordKey("orders"), "clients"}, false},
			{"clients without a dialect", []any{"HSET", RecordKey("orders"), "clients", "{}"}, false},
			{"members of another type", []any{"SET", MembersKey("orders"), "x"}, true},
		} {
			s.Do("FLUSHALL")
			create(t, store)
			before := fields(s, RecordKey("orders"))
			s.Do(c.write[0].(string), c.write[1:]...)
			if _, err := store.Show(t.Context()); !errors.Is(err, ErrGarbage) {
				t.Errorf("%s: %v", c.what, err)
			}
			if _, err := store.Hello(t.Context()); (err == nil) != c.members {
				t.Errorf("%s: a member is told: %v", c.what, err)
			}
			if err := (&Mover{Store: store}).Run(t.Context(), Bridge, nil); !errors.Is(err, ErrGarbage) {
				t.Errorf("%s: a move: %v", c.what, err)
			}
			if c.members && !reflect.DeepEqual(before, fields(s, RecordKey("orders"))) {
				t.Errorf("%s: the record has changed", c.what)
			}
		}
	})
}

// TestAnUnreadableMemberStopsNobodyElse: others report and join, the namespace and the other namespaces are shown and created; a change of
// the stage names the entry and the way out, which works. A member of the name writes its entry anew.
func TestAnUnreadableMemberStopsNobodyElse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, entry := range []string{"{}", "7", "", "{", `{"seq":1,"epoch":1,"stage":0,"lo":"0","hi":0,"ends":1,"longest":1}`} {
			s.Do("FLUSHALL")
			store := newStore(s)
			create(t, store)
			a := newFake(t, store, "a")
			a.report()
			s.Do("HSET", MembersKey("orders"), "m", entry)
			a.report()
			newFake(t, store, "b").report()
			view, err := store.Show(t.Context())
			require.NoError(t, err)
			require.Len(t, view.Members, 3)
			require.Contains(t, view.Members[2].Misfit, `HDEL lockmigrate:{orders}:members "m"`)
			all, err := store.List(t.Context())
			require.NoError(t, err)
			require.Len(t, all, 1)
			other := newStore(s)
			other.Namespace = "pay"
			pay := orders
			pay.Patterns = []string{"pay.*"}
			require.NoError(t, other.Init(t.Context(), pay))
			blockers, err := store.Move(t.Context(), view.Record.Epoch, Bridge, true)
			require.NoError(t, err)
			require.Contains(t, blockers[len(blockers)-1].String(), `HDEL lockmigrate:{orders}:members "m"`)
			_, err = store.Delete(t.Context(), view.Record.Epoch, true)
			require.NoError(t, err)
			m := newFake(t, store, "m")
			m.report()
			view, err = store.Show(t.Context())
			require.NoError(t, err)
			require.Empty(t, view.Members[2].Misfit)
		}
	})
}

// TestAnUnreadableRecordIsListed: it keeps its keys, and nobody else from theirs.
func TestAnUnreadableRecordIsListed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		s.Do("HSET", RecordKey("orders"), "stage", "3")
		all, err := store.List(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, all[0].Unknown, ErrGarbage)
		other := newStore(s)
		other.Namespace = "pay"
		pay := orders
		pay.Patterns = []string{"lock.pay.*"}
		require.ErrorIs(t, other.Init(t.Context(), pay), ErrOverlap)
		pay.Patterns = []string{"pay.*"}
		require.NoError(t, other.Init(t.Context(), pay))
	})
}

// fields are those of a hash.
func fields(s *redistest.Server, key string) map[string]string {
	all, _ := redis.StringMap(s.Do("HGETALL", key), nil)
	return all
}

// TestANewerProtocol: a build that does not know a record's protocol reads and changes nothing of it, and names the build that does. Other
// namespaces are as they were.
func TestANewerProtocol(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		view, err := store.Show(t.Context())
		require.NoError(t, err)
		require.Equal(t, "1", fields(s, RecordKey("orders"))["protocol"])
		epoch := view.Record.Epoch
		for planted, names := range map[string]string{"2 lockmigrate v0.7.0": "protocol 2, and this build knows protocol 1; use lockmigrate v0.7.0", "12": "protocol 12, and this build knows protocol 1; use a later build", "new": "use a later build"} {
			s.Do("HSET", RecordKey("orders"), "protocol", planted)
			before, members := fields(s, RecordKey("orders")), fields(s, MembersKey("orders"))
			for what, try := range map[string]func() error{
				"show":  func() error { _, err := store.Show(t.Context()); return err },
				"hello": func() error { _, err := store.Hello(t.Context()); return err },
				"report": func() error {
					_, err := store.Join(t.Context(), Report{ID: "b", Seq: 1, Lease: time.Second, Bound: time.Now().Add(time.Hour)})
					return err
				},
				"leave":  func() error { return store.Leave(t.Context(), "a", 99, time.Now()) },
				"init":   func() error { return store.Init(t.Context(), orders) },
				"move":   func() error { _, err := store.Move(t.Context(), epoch, Bridge, true); return err },
				"set":    func() error { _, err := store.Set(t.Context(), epoch, orders, orders, true); return err },
				"delete": func() error { _, err := store.Delete(t.Context(), epoch, true); return err },
				"mover":  func() error { return (&Mover{Store: store}).Run(t.Context(), Bridge, nil) },
			} {
				err := try()
				require.ErrorIs(t, err, ErrNewer, what)
				require.ErrorContains(t, err, names, what)
			}
			require.Equal(t, before, fields(s, RecordKey("orders")))
			require.Equal(t, members, fields(s, MembersKey("orders")))
		}
		all, err := store.List(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, all[0].Unknown, ErrNewer)
		other := newStore(s)
		other.Namespace = "pay"
		pay := orders
		pay.Patterns = []string{"lock.pay.*"}
		require.ErrorIs(t, other.Init(t.Context(), pay), ErrOverlap)
		pay.Patterns = []string{"pay.*"}
		require.NoError(t, other.Init(t.Context(), pay))
		s.Do("HDEL", RecordKey("orders"), "protocol")
		_, err = store.Show(t.Context())
		require.NoError(t, err, "without the field it is protocol 1")
	})
}
