package stages

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
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
		assert.ErrorIs(t, failed(store.Show(t.Context())), ErrNoRecord, "show")
		assert.ErrorIs(t, failed(store.Join(t.Context(), Report{ID: "a", Seq: 1, Lease: time.Second, Bound: never})), ErrNoRecord, "join")
		assert.ErrorIs(t, failed(store.Move(t.Context(), 1, Bridge, true)), ErrNoRecord, "move")
		create(t, store)
		assert.ErrorIs(t, store.Init(t.Context(), orders), ErrExists, "a second init")
		view, err := store.Show(t.Context())
		require.NoError(t, err)
		r := view.Record
		assert.False(t, r.Stage != Legacy || r.Epoch != 1 || r.Dialect != "jedis-ms" || r.Shortest != 10*time.Second || !r.Covers("lock.1") || r.Covers("cache.1"), "record %+v", r)
		if age := view.Now.Sub(r.Since); age < 0 || age > time.Minute {
			t.Errorf("since %v", r.Since)
		}
	})
}

// TestHistoriesOfMembers plays the histories of testdata/histories.txt: members that report and hold, moves, and time that passes. Behind => stands
// the stage that a member is told, or who is in the way of a move.
func TestHistoriesOfMembers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "histories.txt"))
	require.NoError(t, err)
	for history := range strings.SplitSeq(strings.TrimPrefix(string(text), "# "), "\n# ") {
		title, steps, _ := strings.Cut(history, "\n")
		t.Run(title, func(t *testing.T) {
			s := redistest.Mini(t)
			store, clock, members := newStore(s), time.Now().Truncate(time.Millisecond), map[string]*fake{}
			s.Mini.SetTime(clock)
			create(t, store)
			for step := range strings.SplitSeq(strings.TrimSpace(steps), "\n") {
				step, want, _ := strings.Cut(step, " => ")
				words := strings.Fields(step)
				if members[words[0]] == nil {
					members[words[0]] = newFake(t, store, words[0])
				}
				assert.Equal(t, want, members[words[0]].plays(words, &clock), step)
				s.Mini.SetTime(clock)
			}
		})
	}
}

// plays takes a step of a history, and returns what came of it.
func (f *fake) plays(words []string, clock *time.Time) string {
	switch words[0] + " " + words[1] {
	case "move " + words[1]:
		to, err := Parse(words[1])
		require.NoError(f.t, err)
		return cmp.Or(move(f.t, f.store, to), "done")
	case "pass " + words[1]:
		d, err := time.ParseDuration(words[1])
		require.NoError(f.t, err)
		*clock = clock.Add(d)
	case f.ID + " holds":
		if words[2] == "nothing" {
			f.Lowest, f.Highest = -1, -1
			break
		}
		lowest, err := Parse(words[2])
		require.NoError(f.t, err)
		highest, err := Parse(words[3])
		require.NoError(f.t, err)
		f.holds(lowest, highest)
	case f.ID + " reports":
		f.Seq++
		order, err := f.store.Join(f.t.Context(), f.Report)
		if errors.Is(err, ErrApart) {
			f.Epoch, f.Stage = -1, -1 // it ends what it ran
			return "apart"
		}
		require.NoError(f.t, err)
		f.Epoch, f.Stage = order.Epoch, order.Stage
		return order.Stage.String()
	default:
		f.t.Fatalf("no step: %q", words)
	}
	return ""
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
		assert.Error(t, failed(store.Join(t.Context(), late)), "a report that was overtaken was taken")
		assert.NoError(t, store.Leave(t.Context(), "a", 1, never))
		view, _ := store.Show(t.Context())
		assert.False(t, len(view.Members) != 1 || view.Members[0].Highest != Legacy || view.Members[0].Info.Host != "here", "members %+v", view.Members)
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
		assert.ErrorContains(t, store.Init(t.Context(), orders), "may still hold locks", "init")
		others := *store
		others.Namespace = "others"
		assert.ErrorIs(t, others.Init(t.Context(), orders), ErrOverlap, "the refused init gave their keys up")
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
			assert.ErrorIs(t, failed(store.Show(t.Context())), ErrGarbage, "%s", c.what)
			if _, err := store.Hello(t.Context()); (err == nil) != c.members {
				t.Errorf("%s: a member is told: %v", c.what, err)
			}
			assert.ErrorIs(t, (&Mover{Store: store}).Run(t.Context(), Bridge, nil), ErrGarbage, "%s: a move", c.what)
			assert.False(t, c.members && !reflect.DeepEqual(before, fields(s, RecordKey("orders"))), "%s: the record has changed", c.what)
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
			require.NoError(t, named(store, "pay").Init(t.Context(), record("pay.*")))
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

// keepsItsKeys: a record that cannot be read keeps its keys, and nobody else from theirs.
func keepsItsKeys(t *testing.T, store *Store) {
	t.Helper()
	require.ErrorIs(t, named(store, "pay").Init(t.Context(), record("lock.pay.*")), ErrOverlap)
	require.NoError(t, named(store, "pay").Init(t.Context(), record("pay.*")))
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
		keepsItsKeys(t, store)
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
		keepsItsKeys(t, store)
		s.Do("HDEL", RecordKey("orders"), "protocol")
		_, err = store.Show(t.Context())
		require.NoError(t, err, "without the field it is protocol 1")
	})
}

// failed is the error of a call that returns something beside it.
func failed[T any](_ T, err error) error { return err }
