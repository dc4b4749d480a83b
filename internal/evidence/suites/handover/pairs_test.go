package handover

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
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
		return redistest.Shape{Version: name, Env: redistest.MovedClock(t, time.Hour)}.Start(t).Addr
	}
}

var pairs = []pair{
	{"legacy", ahead("redis-2.8.19")},
	{"compat", ahead("")},
	{"redisson", ahead("")},
	{"redsync", ahead("")},
	{"postgres", func(t *testing.T) string { return startPostgres(t) }},
}

// The locks of a pair's members.
const (
	ttl   = time.Second // of the halves
	lease = time.Second // of a member
)

// fleet is the processes of a pair, what they say, and the book in which each has a line while it is inside.
type fleet struct {
	t        *testing.T
	old      string
	oldAddr  string
	new      *redistest.Server // also of the record
	store    *stages.Store
	members  []*member
	started  int
	book     *redistest.Server
	monitor  *redistest.Monitor
	lateness *redistest.Lateness
	long     chan *member // has just begun a long turn; nobody waits to say so

	mu    sync.Mutex
	said  holders.Turns
	turns map[string]int // of each worker of each process
	dead  map[string]time.Time
	taken int
	awake map[string]time.Time // when a process was last continued
	lost  int                  // turns whose lock was lost, and whose holder was told
	at    map[string]int       // turns by stage
}

// member is a process, and its ways to the servers.
type member struct {
	*holders.Holder
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
				for faults := f.faults(i); *turns == 0 && moves < 6 || f.count() < *turns/len(pairs); faults = rand.Perm(6) {
					for i, fault := range faults {
						f.step(fault, []lockmigrate.Stage{lockmigrate.StageNew, lockmigrate.StageOld}[i%2])
						moves += 2
					}
				}
				f.judge()
				t.Logf("%s to modern: %d turns (%v), %d moves, %d processes in %v: %d losses told", p.old, f.taken, f.at, moves, f.started, time.Since(began).Round(time.Second), f.lost)
			})
		})
	}
}

// judge wants no overlap but of holders that were told of the end of their lock before.
func (f *fleet) judge() {
	book := f.monitor.Commands()
	f.mu.Lock()
	defer f.mu.Unlock()
	overlaps, told := holders.Overlaps(holders.Stays(book, f.said, f.dead))
	for _, o := range overlaps {
		f.t.Error(redistest.Violated, o)
	}
	f.t.Logf("%d times somebody came in while one whose lock was over was still inside, stopped or late", len(told))
	for _, stage := range []string{"old", "both", "new"} {
		assert.Positive(f.t, f.at[stage], "turns at stage %s", stage)
	}
	assert.Positive(f.t, f.lost, "losses")
}

// faults are what befalls the fleet at first: in the short run three of the six, so that every fault comes to two pairs at least.
func (f *fleet) faults(i int) []int {
	if *turns > 0 {
		return rand.Perm(6)
	}
	return []int{i % 6, (i + 1) % 6, (i + 3) % 6}
}

func newFleet(t *testing.T, p pair) *fleet {
	f := &fleet{t: t, old: p.old, oldAddr: p.from(t), new: redistest.Of(t, "valkey-9.0.0"), book: redistest.Real(t), long: make(chan *member)}
	f.said, f.turns, f.dead, f.awake, f.at = holders.Turns{}, map[string]int{}, map[string]time.Time{}, map[string]time.Time{}, map[string]int{}
	f.monitor, f.lateness = f.book.Monitor(), redistest.NewLateness(t)
	f.store = &stages.Store{Pool: f.new.Pool(), Namespace: namespace, ReplyTimeout: 5 * time.Second, By: "test"}
	require.NoError(t, f.store.Init(t.Context(), stages.Record{Patterns: []string{"lock.*"}, Handover: record(t, p.old, f.oldAddr, f.new)}))
	for range 3 {
		m := &member{old: redistest.NewLink(t, f.oldAddr), new: redistest.NewLink(t, f.new.Addr), record: redistest.NewLink(t, f.new.Addr)}
		f.members = append(f.members, m)
		f.launch(m)
	}
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

// launch starts a process of two or three workers, each with two keys of its own.
func (f *fleet) launch(m *member) {
	workers, pause, rarely := 2, 30*time.Millisecond, 40
	if *turns > 0 {
		workers, pause, rarely = 3, 2*time.Millisecond, 200
	}
	f.started++
	m.Holder = holders.StartGo(f.t, "member", "redis://"+f.book.Addr, holders.Arg("id", fmt.Sprint("m", f.started)), holders.Arg("old", f.old),
		holders.Arg("old-addr", m.old.Addr), holders.Arg("new-addr", m.new.Addr), holders.Arg("record", m.record.Addr),
		holders.Arg("pause", pause), holders.Arg("long", 2*ttl), holders.Arg("rarely", rarely))
	for i := range workers {
		f.mu.Lock()
		f.turns[worker(m.ID, i)] = 0
		f.mu.Unlock()
		m.Send("turns lock.%d,lock.%d book:* 1000000000 2", 2*i, 2*i+1)
	}
	go f.hear(m, m.Holder)
}

// worker names the i-th of a process.
func worker(id string, i int) string { return fmt.Sprint(id, " ", i) }

// hear takes what a process says until it has ended.
func (f *fleet) hear(m *member, h *holders.Holder) {
	for e := range h.Events() {
		f.mu.Lock()
		f.said.Note(h.ID, e)
		if e.Event == "turn" {
			key, _ := strconv.Atoi(strings.TrimPrefix(e.Key, "lock."))
			f.turns[worker(h.ID, key/2)]++
			f.taken++
			f.at[e.Stage]++
			if e.Lost {
				f.lost++
			}
			// A holder that runs is told by its deadline, as far as the machine's timers allow.
			due := max(e.Until, f.awake[h.ID].UnixMicro())
			if late, bound := time.Duration(e.Told-due)*time.Microsecond, 50*time.Millisecond+f.lateness.Most(); e.Told > 0 && late > bound {
				f.t.Errorf("%s was told %v after its deadline (bound %v): %+v", h.ID, late, bound, e)
			}
		}
		f.mu.Unlock()
		if e.Event == "entered" && e.Long {
			select {
			case f.long <- m:
			default: // nobody waits for the moment in which a fault does most harm
			}
		}
	}
}

func (f *fleet) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taken
}

// kill ends a process. It is at work no more from before the signal on.
func (f *fleet) kill(m *member) {
	f.mu.Lock()
	f.dead[m.ID] = time.Now()
	maps.DeleteFunc(f.turns, func(worker string, _ int) bool { return strings.HasPrefix(worker, m.ID+" ") })
	f.mu.Unlock()
	m.Kill()
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
	var m *member
	select {
	case m = <-f.long:
	case <-time.After(2 * time.Minute):
		f.t.Fatal("no long turn within two minutes")
	}
	away := func(l *redistest.Link, by func(*redistest.Link)) (back func()) {
		by(l)
		return func() {
			if f.old == "legacy" || rand.IntN(2) == 0 { // what was under way is lost; a late DEL of the old scheme is its own fault
				l.Cut()
			}
			l.Heal()
		}
	}
	back := map[int]func() func(){
		0: func() func() {
			f.kill(m)
			return func() { f.launch(m) }
		},
		1: func() func() { m.Stop(); return func() { f.goOn(m) } },
		2: func() func() { return away(m.record, (*redistest.Link).Partition) },
		3: func() func() { return away(m.old, (*redistest.Link).Partition) },
		4: func() func() { return away(m.new, (*redistest.Link).HalfOpen) },
		5: func() func() { return away(m.old, (*redistest.Link).HalfOpen) },
	}[fault]()
	over := time.After(ttl + lease/2) // longer than either lease: it is lost by then
	if !early {
		move(f.t, f.store, lockmigrate.StageBoth)
	}
	move(f.t, f.store, to)
	<-over
	back()
	f.progress()
}

func (f *fleet) goOn(m *member) {
	f.mu.Lock()
	f.awake[m.ID] = time.Now()
	f.mu.Unlock()
	m.Signal(syscall.SIGCONT)
}

// progress waits until every worker has ended another turn: all who are inside now have gone then.
func (f *fleet) progress() {
	f.t.Helper()
	f.mu.Lock()
	before := maps.Clone(f.turns)
	f.mu.Unlock()
	redistest.Await(f.t, "turns of all workers", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for worker, n := range before {
			if f.turns[worker] <= n {
				return false
			}
		}
		return true
	})
}

// move makes a step of the stages as soon as nobody is in the way.
func move(t testing.TB, store *stages.Store, to lockmigrate.Stage) {
	t.Helper()
	ctx := redistest.Bounded(t, 2*time.Minute)
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
