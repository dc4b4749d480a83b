package stages

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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
