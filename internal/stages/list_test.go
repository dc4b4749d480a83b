package stages

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

func record(patterns ...string) Record {
	return Record{Stage: Legacy, Patterns: patterns, Dialect: "jedis-ms", Shortest: 10 * time.Second}
}

func named(s *Store, name string) *Store {
	return &Store{Pool: s.Pool, Namespace: name, ReplyTimeout: s.ReplyTimeout}
}

// overCluster returns a store of a cluster: its namespaces lie on all masters.
func overCluster(t *testing.T) *Store {
	t.Helper()
	c := redistest.NewCluster(t, 3, 0)
	pool, err := cluster.New(cluster.Options{Addrs: c.Addrs()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return &Store{Pool: pool, Namespace: "orders", ReplyTimeout: 5 * time.Second}
}

// TestOverlapsAreFoundOnEveryMaster: wherever the record of the other namespace lies, also without the list.
func TestOverlapsAreFoundOnEveryMaster(t *testing.T) {
	store := overCluster(t)
	for _, listed := range []bool{true, false} {
		for i := range 12 { // names in slots of every master
			first, second := named(store, fmt.Sprintf("first-%v-%d", listed, i)), named(store, fmt.Sprintf("second-%v-%d", listed, i))
			prefix := fmt.Sprintf("lock.%v.%d.", listed, i)
			require.NoError(t, first.Init(t.Context(), record(prefix+"*")))
			if !listed {
				conn, err := store.Pool.GetContext(t.Context())
				require.NoError(t, err)
				require.NoError(t, failed(conn.Do("DEL", ListKey)))
				_ = conn.Close()
			}
			if err := second.Init(t.Context(), record(prefix+"order.*")); !errors.Is(err, ErrOverlap) || !strings.Contains(err.Error(), first.Namespace) {
				t.Errorf("%s beside %s: %v", second.Namespace, first.Namespace, err)
			}
			assert.ErrorIs(t, failed(second.Show(t.Context())), ErrNoRecord, "%s", second.Namespace)
		}
	}
}

// TestOperatorsAtOnce: of those who reserve the same keys at the same moment exactly one gets them, on a server and
// on a cluster.
func TestOperatorsAtOnce(t *testing.T) {
	many := func(t *testing.T, store *Store) {
		for round := range 10 {
			var operators sync.WaitGroup
			results := make([]error, 6)
			for i := range results {
				operators.Go(func() {
					one := named(store, fmt.Sprintf("r%d-%d", round, i))
					results[i] = one.Init(t.Context(), record(fmt.Sprintf("lock.%d.*", round), fmt.Sprintf("own.%d.%d.*", round, i)))
				})
			}
			operators.Wait()
			created := 0
			for i, err := range results {
				switch {
				case err == nil:
					created++
				case !errors.Is(err, ErrOverlap):
					t.Errorf("round %d, operator %d: %v", round, i, err)
				}
			}
			require.True(t, created == 1, "round %d: %d namespaces over the same keys: %v", round, created, results)
		}
		all, err := store.List(t.Context())
		if err != nil || len(all) != 10 {
			t.Errorf("listed: %+v, %v", all, err)
		}
	}
	t.Run("one server", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) { many(t, newStore(s)) })
	})
	t.Run("cluster", func(t *testing.T) { many(t, overCluster(t)) })
}

// age makes the claims of the list as old as nobody's command can be.
func age(t *testing.T, s *redistest.Server, store *Store) {
	t.Helper()
	l, err := store.list(t.Context())
	require.NoError(t, err)
	for name, e := range l.entries {
		e.At -= claimStands.Milliseconds()
		require.NoError(t, named(store, name).write(t.Context(), l, &e))
		if l, err = store.list(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnotherOperatorAtWork: while a command for a namespace is under way nobody else changes it, and a command that
// comes too late writes nothing.
func TestAnotherOperatorAtWork(t *testing.T) {
	s := redistest.Mini(t)
	clock := time.Now().Truncate(time.Millisecond)
	s.Mini.SetTime(clock)
	store := newStore(s)
	c, err := store.reserve(t.Context(), orders.Patterns, 0)
	require.NoError(t, err)
	if err := store.Init(t.Context(), orders); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "run it again in 15s") {
		t.Errorf("a second init: %v", err)
	}
	assert.ErrorIs(t, failed(store.Delete(t.Context(), 1, true)), ErrBusy, "a delete")
	s.Mini.SetTime(clock.Add(claimStands))
	assert.NoError(t, failed(store.Delete(t.Context(), 1, true)), "keys that a stopped command has reserved are given up")
	assert.NoError(t, named(store, "other").Init(t.Context(), orders), "and another namespace can have them:")
	require.NoError(t, c.done(t.Context(), &c.entry))
	if l, err := store.list(t.Context()); err != nil || len(l.entries["orders"].Patterns) > 0 {
		t.Errorf("a claim that was over came back: %+v, %v", l.entries, err)
	}
}

// TestSetAndDelete: what a change of the record or its end lets other namespaces have, and what its members keep.
func TestSetAndDelete(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store, third := newStore(s), named(newStore(s), "third")
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		a.report()
		change := func(execute bool, change func(*Record)) ([]Blocker, error) {
			t.Helper()
			view, err := store.Show(t.Context())
			require.NoError(t, err)
			to := view.Record
			change(&to)
			return store.Set(t.Context(), view.Record.Epoch, view.Record, to, execute)
		}
		blockers, err := change(true, func(r *Record) { r.Patterns = []string{"lock.*", "key.*"}; r.Shortest = 3 * time.Second })
		require.NoError(t, err)
		require.Empty(t, blockers, "more keys beside a member")
		assert.Equal(t, "a:behind", move(t, store, Bridge), "a stage change waits until members have taken it over")
		if order := a.report(); order.Shortest != 3*time.Second || !order.Covers("key.1") {
			t.Errorf("the member was told %+v", order.Record)
		}
		fewer := func(r *Record) { r.Patterns, r.Dialect = []string{"key.*"}, "redispy-float" }
		for _, execute := range []bool{false, true} {
			for what, to := range map[string]func(*Record){"another dialect": func(r *Record) { r.Dialect = "redispy-float" }, "fewer keys": fewer} {
				if blockers, err := change(execute, to); err != nil || len(blockers) != 1 || blockers[0].Why != "lives" {
					t.Errorf("%s beside a member: %v, %v", what, blockers, err)
				}
			}
			if blockers, err := store.Delete(t.Context(), 2, execute); err != nil || len(blockers) != 1 || blockers[0].Why != "lives" {
				t.Errorf("delete beside a member: %v, %v", blockers, err)
			}
		}
		require.NoError(t, named(store, "other").Init(t.Context(), record("bill.*")))
		_, err = change(true, func(r *Record) { r.Patterns = []string{"lock.*", "key.*", "*.order"} })
		assert.ErrorIs(t, err, ErrOverlap, "the keys of another")
		assert.ErrorIs(t, third.Init(t.Context(), record("key.9")), ErrOverlap, "a key that was added")

		require.NoError(t, store.Leave(t.Context(), "a", 99, never))
		blockers, err = change(true, fewer)
		require.NoError(t, err)
		require.Empty(t, blockers, "without members")
		require.NoError(t, third.Init(t.Context(), record("lock.9")), "a key that was given up")
		_, err = store.Delete(t.Context(), 2, true)
		assert.ErrorIs(t, err, ErrConflict, "another epoch")
		blockers, err = store.Delete(t.Context(), 3, true)
		require.NoError(t, err)
		require.Empty(t, blockers)
		all, err := store.List(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 2)
		_, err = third.Delete(t.Context(), 1, true)
		require.NoError(t, err)
		create(t, store)
		again, err := store.Show(t.Context())
		require.NoError(t, err)
		assert.Greater(t, again.Record.Epoch, int64(3), "a namespace of the same name begins behind the one before")
	})
}

// TestNothingIsLeftBehind: after delete and forget the server is as before.
func TestNothingIsLeftBehind(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		require.NoError(t, store.Leave(t.Context(), "a", 2, never))
		require.NoError(t, store.Forget(t.Context()))
		assert.NoError(t, failed(store.Show(t.Context())), "forget takes a namespace that stands")
		if blockers, err := store.Delete(t.Context(), 1, true); err != nil || len(blockers) > 0 {
			t.Fatal(blockers, err)
		}
		require.NoError(t, store.Forget(t.Context()))
		assert.Equal(t, int64(0), s.Do("DBSIZE"))
	})
}

// TestReportsHaveABound: one that comes after its bound does not count, whether or not its member has left.
func TestReportsHaveABound(t *testing.T) {
	s := redistest.Mini(t)
	store := newStore(s)
	clock := time.Now().Truncate(time.Millisecond)
	s.Mini.SetTime(clock)
	create(t, store)
	a := newFake(t, store, "a")
	a.Bound = clock.Add(10 * time.Second)
	late := a.Report
	late.Seq = 7
	if order, err := store.Hello(t.Context()); err != nil || order.Now != clock || order.Stage != Legacy || !order.Ends.IsZero() {
		t.Errorf("hello: %+v, %v", order, err)
	}
	if view, _ := store.Show(t.Context()); len(view.Members) != 0 {
		t.Error("to ask for the record is no report")
	}
	if err := store.Leave(t.Context(), "a", 9, a.Bound); err != nil { // its first report is still on its way
		t.Fatal(err)
	}
	for _, at := range []time.Duration{time.Second, 11 * time.Second, time.Hour} {
		s.Mini.SetTime(clock.Add(at))
		order, err := store.Join(t.Context(), late)
		if err == nil || (at > 10*time.Second) != errors.Is(err, ErrLate) || order.Now != clock.Add(at) {
			t.Errorf("after %v: %+v, %v", at, order, err)
		}
		if view, _ := store.Show(t.Context()); len(view.Members) != 0 {
			t.Fatalf("after %v it is back: %+v", at, view.Members)
		}
		other := newFake(t, store, fmt.Sprint("other", at)) // its joining forgets what has run out
		other.Lease, other.Longest = time.Millisecond, time.Millisecond
		other.report()
		s.Mini.SetTime(clock.Add(at + 5*time.Second))
	}
	assert.Equal(t, int64(0), s.Do("HEXISTS", MembersKey("orders"), "a"), "the goodbye is never forgotten")
}

// TestWhatAStoppedSetReserved: where a command was stopped beside a record, the record says which keys are taken once the command
// can write no more.
func TestWhatAStoppedSetReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		if _, err := store.reserve(t.Context(), []string{"ticket.*"}, 0); err != nil { // and nothing follows
			t.Fatal(err)
		}
		other := named(store, "tickets")
		assert.ErrorIs(t, other.Init(t.Context(), record("ticket.*")), ErrOverlap, "the command may still be under way")
		age(t, s, store)
		assert.NoError(t, other.Init(t.Context(), record("ticket.*")), "the command is over, and its record has no such key:")
		assert.ErrorIs(t, named(store, "more").Init(t.Context(), record(orders.Patterns...)), ErrOverlap, "the record's own keys")
	})
}

// TestEveryKeyCanBeNamed: a text of \xHH alone is a pattern of exactly one key, whatever bytes it has, and it survives the record.
func TestEveryKeyCanBeNamed(t *testing.T) {
	named := func(key, other []byte) bool {
		if len(key) == 0 {
			return true
		}
		text := ""
		for _, c := range key {
			text += fmt.Sprintf(`\x%02x`, c)
		}
		pattern := Unescape(text)
		return CheckPatterns([]string{pattern}) == nil && Unescape(Escape(pattern)) == pattern &&
			servers.Match(pattern, key) && servers.Match(pattern, other) == (string(other) == string(key)) && !servers.Match(pattern, append(key, 'x'))
	}
	assert.NoError(t, quick.Check(named, &quick.Config{MaxCount: 2000}))
	for _, c := range []byte(special) {
		assert.True(t, named([]byte{'k', c}, []byte("kz")), "%c", c)
	}
}

func TestPatternsThatCannotBe(t *testing.T) {
	for text, says := range map[string]string{
		``:          `a pattern is empty`,
		`lk.[a]*`:   `pattern lk.[a]*: the server reads [ as part of a class, which a namespace cannot have: write \[ or \x5b for the character`,
		`lk]`:       `write \] or \x5d`,
		`lk\d`:      `a backslash stands before one of *?[]\, or begins \xHH with two hexadecimal digits`,
		`lk\x5`:     `with two hexadecimal digits`,
		`lk\`:       `a backslash stands before`,
		`*?`:        `covers every key of the server`,
		`lockmig*`:  `covers the keys of the namespaces themselves`,
		`\x6cockm*`: `covers the keys of the namespaces themselves`,
	} {
		assert.ErrorContains(t, CheckPatterns([]string{Unescape(text)}), says, text)
	}
	assert.NoError(t, CheckPatterns([]string{`lk.\[*`, Unescape(`lk.\x5b\x5c\x2a?`), `*.order`}))
}

// FuzzRecord reads what somebody else may have written into the record and the members of a namespace.
func FuzzRecord(f *testing.F) {
	f.Add(`["lock:*"]`, `{"seq":1,"epoch":1,"stage":1,"lo":1,"hi":1,"seen":1,"ends":2,"longest":3,"skew":4,"info":"{}"}`, `{"dialect":"jedis-ms","shortest_ms":1000}`, "lock:1", int64(1))
	f.Add(`[]`, `{}`, `{"lag_ms":-1}`, "", int64(-1))
	f.Add(`["*","?",""]`, `{"epoch":1e308,"ends":-1e308,"info":"\u0000"}`, `{"shortest_ms":9e18}`, "a*b", int64(99))
	f.Add(`null`, `[]`, `null`, "\xff", int64(2))
	f.Fuzz(func(t *testing.T, patterns, entry, clients, key string, stage int64) {
		s := &Store{Namespace: "n"}
		r, err := s.record(1, stage, 0, patterns, clients)
		if err == nil {
			require.True(t, Valid(r.Stage), "stage %d passed", r.Stage)
			require.False(t, r.Shortest < 0 || r.ClockLag < 0 || r.CommandDelay < 0, "a time below zero passed: %+v", r)
			covered := r.Covers(key)
			require.False(t, CheckPatterns(r.Patterns) == nil && covered && key == RecordKey("n"), "a namespace that covers its own record")
		}
		if m, _, err := member("id", entry, time.UnixMilli(1)); err == nil {
			_ = m.ID
		}
	})
}

func TestBuild(t *testing.T) {
	dep := func(version string, replaced *debug.Module) []*debug.Module {
		return []*debug.Module{{Path: "example.com/other", Version: "v9.0.0"}, {Path: library, Version: version, Replace: replaced}}
	}
	vcs := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"-":                               nil,
		"billing@v1.4.2 (library v0.3.0)": {Main: debug.Module{Path: "example.com/billing", Version: "v1.4.2"}, Deps: dep("v0.3.0", nil)},
		"billing@0123456789ab+dirty (library v0.3.0)":      {Main: debug.Module{Path: "example.com/billing", Version: "(devel)"}, Deps: dep("v0.3.0", nil), Settings: vcs("0123456789abcdef", "true")},
		"billing@v1.4.2 (library example.com/fork v0.3.1)": {Main: debug.Module{Path: "example.com/billing", Version: "v1.4.2"}, Deps: dep("v0.3.0", &debug.Module{Path: "example.com/fork", Version: "v0.3.1"})},
		"lockmigrate@v0.3.0":                               {Main: debug.Module{Path: library, Version: "v0.3.0"}},
		"job":                                              {Path: "example.com/billing/cmd/job"},
	} {
		assert.Equal(t, want, buildOf(info).String())
	}
}

// TestRelease: the version that a build sets stands before what the Go command recorded, for this repository's programs alone.
func TestRelease(t *testing.T) {
	release = "v1.2.3"
	t.Cleanup(func() { release = "" })
	ours := &debug.BuildInfo{Main: debug.Module{Path: library, Version: "(devel)"}}
	assert.Equal(t, "lockmigrate@v1.2.3", buildOf(ours).String())
	ours.Main.Version = "v1.2.2+dirty"
	assert.Equal(t, "lockmigrate@v1.2.3", buildOf(ours).String())
	service := &debug.BuildInfo{Main: debug.Module{Path: "example.com/billing", Version: "v2.0.0"}, Deps: []*debug.Module{{Path: library, Version: "v1.0.0"}}}
	assert.Equal(t, "billing@v2.0.0 (library v1.0.0)", buildOf(service).String())
}
