package handover

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

const namespace = "to-b"

var turns = flag.Int("turns", 0, "TestPairs goes on until there were so many turns in all; 0: each stage and each fault once")

// pair is a lock to move from; all move to package modern on Valkey 9.
type pair struct {
	old  string
	from func(t *testing.T) (addr string) // its server
}

// ahead is a real server whose clock is an hour ahead of that of the other.
func ahead(name string) func(t *testing.T) string {
	return func(t *testing.T) string {
		program := "redis-server"
		if name != "" {
			redistest.Need(t, redistest.Servers)
			program = filepath.Join(redistest.ServersDir(), name, "bin", program)
		}
		return redistest.Wrapped(t, []string{program}, redistest.MovedClock(t, time.Hour)).Addr
	}
}

var pairs = []pair{
	{"legacy", ahead("redis-2.8.19")},
	{"compat", ahead("")},
	{"redisson", ahead("")},
	{"redsync", ahead("")},
	{"postgres", func(t *testing.T) string { return startPostgres(t) }},
}

// fleet is the processes of a pair, and all that can befall them.
type fleet struct {
	*referee
	t       *testing.T
	store   *stages.Store
	members []*member
	orders  orders
	started int
}

// member is a process, and its ways to the servers.
type member struct {
	*process
	old, new, record *redistest.Link
}

// TestPairs: fleets of three processes move from each lock to another on another server, forward, back and forward, while they work. At every step one
// of them is killed inside its lock, stopped for longer than its lease, or cut off from the record, from Old or from New. Nobody is inside beside another, and every loss is told.
func TestPairs(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Servers)
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for i, p := range pairs {
		// Beside each other whatever -parallel says: they wait for leases nearly all of the time.
		all.Go(func() {
			t.Run(p.old, func(t *testing.T) {
				f := newFleet(t, p)
				began, moves := time.Now(), 0
				for faults := f.faults(i); *turns == 0 && moves < 6 || f.taken() < *turns/len(pairs); faults = rand.Perm(6) {
					for i, fault := range faults {
						f.step(fault, []lockmigrate.Stage{lockmigrate.StageNew, lockmigrate.StageOld}[i%2])
						moves += 2
					}
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				t.Logf("%s to modern: %d turns (%v), %d moves, %d processes in %v: %d overlaps; %d losses told, %d of them to holders that were passed while they were stopped, %d after another had come in",
					p.old, f.turns, f.stages, moves, f.started, time.Since(began).Round(time.Second), len(f.overlaps), f.told, f.passed, f.late)
				for _, o := range f.overlaps {
					t.Error(redistest.Violated, o)
				}
				for _, stage := range []string{"old", "both", "new"} {
					assert.Positive(t, f.count.stages[stage], "turns at stage %s", stage)
				}
				assert.Positive(t, f.told, "losses")
			})
		})
	}
}

// faults are what befalls the fleet at first: in the short run three of the six, so that every fault comes to two pairs at least.
func (f *fleet) faults(i int) []int {
	if *turns > 0 {
		return rand.Perm(6)
	}
	return []int{i % 6, (i + 1) % 6, (i + 3) % 6}
}

func newFleet(t *testing.T, p pair) *fleet {
	oldAddr := p.from(t)
	b := redistest.Of(t, "valkey-9.0.0")
	f := &fleet{referee: newReferee(t), t: t, store: &stages.Store{Pool: b.Pool(), Namespace: namespace, ReplyTimeout: 5 * time.Second, By: "test"}}
	ctx := t.Context()
	require.NoError(t, f.store.Init(ctx, stages.Record{Patterns: []string{"lock.*"}, Handover: record(t, p.old, oldAddr, b)}))
	f.orders = orders{Old: p.old, New: "modern", Referee: f.listener.Addr().String(), TTL: time.Second, Lease: time.Second, Workers: 2, Keys: 4, Pause: 30 * time.Millisecond, Long: 40}
	if *turns > 0 {
		f.orders.Pause, f.orders.Workers, f.orders.Keys, f.orders.Long = 2*time.Millisecond, 3, 4, 200
	}
	for range 3 {
		m := &member{old: redistest.NewLink(t, oldAddr), new: redistest.NewLink(t, b.Addr), record: redistest.NewLink(t, b.Addr)}
		f.members = append(f.members, m)
		f.launch(m)
	}
	t.Cleanup(func() {
		for _, m := range f.members {
			f.kill(m.process)
		}
	})
	return f
}

// record is the halves of a handover to a server: a half of this module has a mark, another a name.
func record(t testing.TB, old, addr string, b *redistest.Server) *stages.Halves {
	t.Helper()
	halves := &stages.Halves{Old: stages.Half{Name: old}}
	var err error
	switch old {
	case "legacy", "compat", "redisson":
		pool := poolOf(addr, time.Second)
		defer pool.Close()
		halves.Old.Name = ""
		halves.Old.Mark, err = stages.WriteMark(t.Context(), pool, namespace, time.Second)
		require.NoError(t, err)
	}
	halves.New.Mark, err = stages.WriteMark(t.Context(), b.Pool(), namespace, time.Second)
	require.NoError(t, err)
	return halves
}

func (f *fleet) launch(m *member) {
	o := f.orders
	f.started++
	o.Name, o.OldAddr, o.NewAddr, o.Record = fmt.Sprint("m", f.started), m.old.Addr, m.new.Addr, m.record.Addr
	m.process = start(f.t, f.referee, o)
}

func (f *fleet) taken() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.turns
}

// step has something befall a member that is inside, while the stage moves to both and further. The second move waits until no member can hold
// anything of the stage before.
func (f *fleet) step(fault int, to lockmigrate.Stage) {
	early := fault > 2 // both halves are in use when one is cut off; one who is cut off from the record holds what two stages later nobody looks at
	if *turns > 0 {
		early = rand.IntN(2) == 0
	}
	if early {
		move(f.t, f.store, lockmigrate.StageBoth)
		f.progress()
	}
	victim := f.busy()
	var m *member
	for _, m = range f.members {
		if m.process == victim {
			break
		}
	}
	away := func(l *redistest.Link, by func(*redistest.Link)) (back func()) {
		by(l)
		return func() {
			if f.orders.Old == "legacy" || rand.IntN(2) == 0 { // what was under way is lost; a late DEL of the old scheme is its own fault
				l.Cut()
			}
			l.Heal()
		}
	}
	back := map[int]func() func(){
		0: func() func() {
			f.kill(m.process)
			return func() { f.launch(m) }
		},
		1: func() func() { f.stop(m.process); return func() { f.goOn(m.process) } },
		2: func() func() { return away(m.record, (*redistest.Link).Partition) },
		3: func() func() { return away(m.old, (*redistest.Link).Partition) },
		4: func() func() { return away(m.new, (*redistest.Link).HalfOpen) },
		5: func() func() { return away(m.old, (*redistest.Link).HalfOpen) },
	}[fault]()
	over := time.After(f.orders.TTL + f.orders.Lease/2) // longer than either lease: it is lost by then
	if !early {
		move(f.t, f.store, lockmigrate.StageBoth)
	}
	move(f.t, f.store, to)
	<-over
	back()
	f.progress()
}

// progress waits until everybody has taken another turn, and until all who are inside now have gone.
func (f *fleet) progress() {
	f.t.Helper()
	f.mu.Lock()
	now, before := time.Now(), map[*process]int{}
	for _, m := range f.members {
		before[m.process] = m.turns
	}
	f.mu.Unlock()
	f.await("turns of all members", func() bool {
		for p, n := range before {
			if p.turns <= n {
				return false
			}
		}
		for v := range f.open {
			if v.since.Before(now) {
				return false
			}
		}
		return true
	})
}

// move makes a step of the stages as soon as nobody is in the way.
func move(t testing.TB, store *stages.Store, to lockmigrate.Stage) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		view, err := store.Show(ctx)
		require.NoError(t, err)
		blockers, err := store.Move(ctx, view.Record.Epoch, to, true)
		require.NoError(t, err)
		if len(blockers) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
