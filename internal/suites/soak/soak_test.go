// Package soak lets a mixed fleet work for as long as it is told to, while faults and stage changes come at
// random: `make soak LENGTH=1h`. Every round is drawn from its own seed, which is printed; a round that
// fails leaves a folder with its plan, its log, and a scenario for the simulator.
package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/holders"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
	"github.com/lockmigrate/lockmigrate/internal/sim/scenario"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

var (
	length = flag.Duration("length", 12*time.Second, "how long to soak")
	seed   = flag.Uint64("seed", 0, "seed of the first round; 0: from the clock")
	keep   = flag.String("keep", "", "folder for what a failed round leaves; default: soak-failures beside this package")
)

const (
	key       = "soak:lock"
	book      = "soak:book" // who is inside; it knows nothing of the lock
	namespace = "soak"
	ttl       = time.Second
	lease     = 3 * time.Second
	delay     = 500 * time.Millisecond // allowed between a legacy client's computing and its command
	round     = 6 * time.Second
)

func TestMain(m *testing.M) {
	redistest.Main(leakless{m}, redistest.Redis)
}

type leakless struct{ *testing.M }

func (m leakless) Run() int {
	code := m.M.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return code
}

func TestSoak(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano()) % 1_000_000
	}
	t.Logf("seed %d", first)
	end := time.Now().Add(*length)
	turns, faults, n := 0, 0, 0
	for ; n == 0 || time.Now().Before(end); n++ {
		r := newRound(t, first+uint64(n), false)
		r.run()
		turns += r.turns
		faults += len(r.injected)
		if len(r.violations) > 0 {
			t.Fatalf("seed %d: %v\nsee %s", r.seed, r.violations, r.leave(folder(t)))
		}
	}
	t.Logf("%d rounds, %d turns, %d faults and stage changes, no violation", n, turns, faults)
}

// The soak is worth nothing if it finds nothing: a member that does not renew, and deletes what may be
// another's, must be found, and the failure must leave a scenario that the simulator can read.
func TestSoakFindsAPlantedBug(t *testing.T) {
	for n := range uint64(5) {
		r := newRound(t, 1+n, true)
		r.run()
		if len(r.violations) == 0 {
			continue
		}
		dir := r.leave(t.TempDir())
		t.Logf("found with seed %d: %v", r.seed, r.violations[0])
		text, err := os.ReadFile(filepath.Join(dir, "scenario.txt"))
		require.NoError(t, err)
		_, err = scenario.Parse(string(text))
		require.NoError(t, err, string(text))
		for _, file := range []string{"plan.txt", "log.txt"} {
			info, err := os.Stat(filepath.Join(dir, file))
			require.NoError(t, err)
			assert.Positive(t, info.Size())
		}
		return
	}
	t.Fatal("five rounds with a planted bug, and none found it")
}

func folder(t *testing.T) string {
	if *keep != "" {
		return *keep
	}
	dir, err := filepath.Abs("soak-failures")
	require.NoError(t, err)
	return dir
}

// soaking is one round.
type soaking struct {
	t      *testing.T
	seed   uint64
	rand   *rand.Rand
	server *redistest.Server
	link   *redistest.Link
	store  *stages.Store
	began  time.Time
	old    string // the kind of the old holders; empty for a round without
	plant  bool

	mu         sync.Mutex
	told       map[string]time.Time // members of this process that were told of a loss, or left, lately
	turns      int
	by         map[string]int
	injected   []injection
	violations []string
	log        strings.Builder

	only    atomic.Pointer[string] // the member that may try, when the faults are over
	stop    chan struct{}
	working sync.WaitGroup
	closers []func()
}

type injection struct {
	at   time.Duration
	what string
	sim  string // the fault in the simulator's language; empty where it has none
}

func newRound(t *testing.T, seed uint64, plant bool) *soaking {
	r := &soaking{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 8)), began: time.Now(), plant: plant,
		told: map[string]time.Time{}, by: map[string]int{}, stop: make(chan struct{}),
	}
	kinds := []string{""}
	if redistest.Wanted(redistest.Java) {
		kinds = append(kinds, "java", "java")
	}
	if redistest.Wanted(redistest.Python) {
		kinds = append(kinds, "python")
	}
	r.old = kinds[r.rand.IntN(len(kinds))]
	return r
}

func (r *soaking) dialect() legacy.Dialect {
	if r.old == "python" {
		return legacy.RedisPyFloat
	}
	return legacy.JedisMS
}

func (r *soaking) run() {
	r.t.Helper()
	r.server = redistest.Real(r.t, "--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "local")
	r.link = redistest.NewLink(r.t, r.server.Addr)
	pool := dialed(r.server.Addr)
	defer pool.Close()
	r.store = &stages.Store{Pool: pool, Namespace: namespace, ReplyTimeout: time.Second}
	require.NoError(r.t, r.store.Init(r.t.Context(), stages.Record{
		Namespace: namespace, Stage: stages.Bridge, Patterns: []string{key}, Dialect: r.dialect().String(), Shortest: lease,
	}))
	old := r.oldMembers()
	for i := range 3 {
		r.goMember(fmt.Sprintf("go-%d", i+1), i == 2)
	}
	if r.plant {
		r.planted()
	}
	for end := time.Now().Add(round); time.Now().Before(end); {
		time.Sleep(time.Duration(150+r.rand.IntN(500)) * time.Millisecond) // the plan's own pace
		r.inject(old)
	}
	for _, h := range old {
		h.send("stop")
	}
	r.everybodyGoesOn()
	close(r.stop)
	r.working.Wait()
	for _, c := range r.closers {
		c()
	}
	r.server.Kill()
	r.t.Logf("seed %d: old members %q, %d turns %v, %d faults", r.seed, r.old, r.turns, r.by, len(r.injected))
}

// everybodyGoesOn waits, once the faults are over, for a turn of each member of this process, with no
// competition: the old scheme is not fair, and somebody who starves does not hang.
func (r *soaking) everybodyGoesOn() {
	count := func() map[string]int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return maps.Clone(r.by)
	}
	for _, id := range []string{"go-1", "go-2", "go-3"} {
		r.only.Store(&id)
		before := count()[id]
		for deadline := time.Now().Add(2*lease + 5*time.Second); count()[id] == before; time.Sleep(5 * time.Millisecond) { // polling
			if time.Now().After(deadline) {
				r.violate("%s hangs: no turn since the faults are over (%v)", id, count())
				return
			}
		}
	}
}

func dialed(addr string) *redis.Pool {
	return &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialConnectTimeout(time.Second))
	}}
}

// goMember is a member of this process that follows the namespace; far ones are behind the link.
func (r *soaking) goMember(id string, far bool) {
	addr := r.server.Addr
	if far {
		addr = r.link.Addr
	}
	pool, direct := dialed(addr), dialed(r.server.Addr)
	l, err := compat.New(pool, compat.Options{
		Namespace: namespace, Member: id, Dialect: r.dialect(), TTL: ttl, Lease: lease, ShortestLease: lease,
		ClockLag: 100 * time.Millisecond, CommandDelay: delay, MemberLease: 2 * time.Second, ReplyTimeout: ttl / 2,
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.closers = append(r.closers, func() { l.Close(); _ = pool.Close(); _ = direct.Close() })
	r.working.Go(func() { <-r.stop; cancel() })
	hold := rand.New(rand.NewPCG(r.seed, uint64(len(id)+int(id[len(id)-1]))))
	r.working.Go(func() {
		for ctx.Err() == nil {
			if only := r.only.Load(); only != nil && *only != id {
				time.Sleep(5 * time.Millisecond) // the end of the round
				continue
			}
			k, err := l.Acquire(ctx, key)
			if err != nil {
				r.note("%s: %v", id, err)
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
				continue
			}
			work := time.Duration(1+hold.IntN(6)) * time.Millisecond
			if hold.IntN(12) == 0 {
				work += ttl // lives by its renewals
			}
			r.inside(direct, id, work, k.Context())
			bounded, done := context.WithTimeout(context.Background(), ttl)
			if err := k.Release(bounded); err != nil {
				r.note("%s: %v", id, err)
			}
			done()
		}
	})
}

// inside enters and leaves the book, and stays until the work is done or the holder is told to stop.
func (r *soaking) inside(direct *redis.Pool, id string, work time.Duration, told context.Context) {
	conn := direct.Get()
	defer conn.Close()
	r.mu.Lock()
	delete(r.told, id)
	r.mu.Unlock()
	if told.Err() != nil {
		return
	}
	if _, err := conn.Do("HSET", book, id, 1); err != nil {
		r.note("%s: the book: %v", id, err)
		return
	}
	names, err := redis.Strings(conn.Do("HKEYS", book))
	r.turn(id, names, err, told)
	timer := time.NewTimer(work)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-told.Done():
	}
	r.mu.Lock()
	r.told[id] = time.Now()
	r.mu.Unlock()
	if _, err := conn.Do("HDEL", book, id); err != nil {
		_, _ = direct.Get().Do("HDEL", book, id) // the server was away
	}
}

// turn judges an entry: whoever else is in the book overlaps, unless it is just leaving.
func (r *soaking) turn(id string, names []string, err error, told context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns++
	r.by[id]++
	if err != nil {
		return
	}
	for _, other := range names {
		if _, leaving := r.told[other]; other != id && !leaving && (told == nil || told.Err() == nil) {
			r.violateLocked("%s came in beside %s", id, other)
		}
	}
}

// beside looks whether an old holder that is inside has a member of this process beside it. Two old
// holders side by side are the old scheme's own affair, and noted.
func (r *soaking) beside(id string) {
	names, err := redis.Strings(r.server.Try("HKEYS", book))
	if err != nil || !slices.Contains(names, id) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range names {
		_, ours := r.by[other]
		if _, leaving := r.told[other]; ours && !leaving {
			r.violateLocked("%s came in beside %s", id, other)
		}
	}
}

func (r *soaking) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violateLocked(format, args...)
}

func (r *soaking) violateLocked(format string, args ...any) {
	text := fmt.Sprintf("%v: %s", time.Since(r.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
	r.violations = append(r.violations, text)
	fmt.Fprintln(&r.log, "VIOLATION", text)
}

func (r *soaking) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.log, "%v %s\n", time.Since(r.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
}

// planted is the bug: it takes the key as others do, does not renew, overruns, and deletes blindly.
func (r *soaking) planted() {
	direct := dialed(r.server.Addr)
	r.closers = append(r.closers, func() { _ = direct.Close() })
	r.working.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-r.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			conn := direct.Get()
			_, err := redis.String(conn.Do("SET", key, "6000000000000000001", "NX", "PX", 100))
			if err == nil {
				work := 5 * time.Millisecond
				if n%4 == 0 {
					work = 300 * time.Millisecond
				}
				r.inside(direct, "planted", work, context.Background())
				_, _ = conn.Do("DEL", key)
			}
			_ = conn.Close()
		}
	})
}

// oldMember is a Java or Python process.
type oldMember struct {
	r      *soaking
	kind   holders.Kind
	mu     sync.Mutex
	holder *holders.Holder
	dead   map[*holders.Holder]bool
}

func (r *soaking) oldMembers() []*oldMember {
	var kinds []holders.Kind
	switch r.old {
	case "java":
		kinds = []holders.Kind{holders.JedisLock, holders.Article}
	case "python":
		kinds = []holders.Kind{holders.RedisPy, holders.RedisPy}
	}
	var members []*oldMember
	for _, k := range kinds {
		m := &oldMember{r: r, kind: k, dead: map[*holders.Holder]bool{}}
		m.start()
		members = append(members, m)
	}
	return members
}

func (m *oldMember) start() {
	h := holders.Start(m.r.t, m.kind, m.r.server.URL(), holders.Arg("lease", lease), holders.Arg("wait", 10*time.Second))
	m.mu.Lock()
	m.holder = h
	m.mu.Unlock()
	h.Send("turns %s %s %d %d", key, book, 1_000_000, 3)
	m.r.working.Go(func() {
		for e := range h.Events() {
			switch e.Event {
			case "entered":
				m.r.beside(h.ID)
			case "turn":
				m.r.mu.Lock()
				m.r.turns++
				m.r.by[m.kind.Name]++
				m.r.mu.Unlock()
			case "error":
				m.r.note("%s: %s %s", h.ID, e.Class, e.Message)
			case "done":
				h.Send("quit")
			}
		}
	})
}

func (m *oldMember) send(command string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holder.Send("%s", command)
}

// crash kills the process, inside or not, and starts another. Its name in the book goes with it.
func (m *oldMember) crash() {
	m.mu.Lock()
	h := m.holder
	m.mu.Unlock()
	h.Kill()
	_, _ = m.r.server.Try("HDEL", book, h.ID)
	m.start()
}

// inject draws one fault, or one stage change, and lets it happen.
func (r *soaking) inject(old []*oldMember) {
	type fault struct {
		name string
		sim  string
		do   func()
	}
	pause := func(max int) time.Duration { return time.Duration(50+r.rand.IntN(max)) * time.Millisecond }
	faults := []fault{
		{"client kill", "", func() { _, _ = r.server.Try("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }},
		{"script flush", "", func() { _, _ = r.server.Try("SCRIPT", "FLUSH") }},
		{"listeners killed", "", func() { _, _ = r.server.Try("CLIENT", "KILL", "TYPE", "pubsub") }},
		{"link cut", "", r.link.Cut},
		{"partition", "go-3 pauses 500ms", func() { r.link.Partition(); time.Sleep(pause(1500)); r.link.Heal() }},
		{"half-open", "", func() { r.link.HalfOpen(); time.Sleep(pause(800)); r.link.Heal() }},
		{"slow link", "", func() { r.link.Slow(pause(60), 0); time.Sleep(pause(800)); r.link.Slow(0, 0) }},
		{"server stopped", "", func() { thaw := r.server.Freeze(); time.Sleep(pause(250)); thaw() }},
		{"stage change", "", r.move},
		{"stage change", "", r.move},
	}
	if len(old) > 0 {
		m := old[r.rand.IntN(len(old))]
		faults = append(faults,
			fault{"old holder killed", "old-1 crashes", m.crash},
			fault{"old holder stopped", "old-1 pauses 200ms", func() {
				m.mu.Lock()
				h := m.holder
				m.mu.Unlock()
				h.Signal(syscall.SIGSTOP)
				time.Sleep(pause(250)) // within the delay that is allowed for
				h.Signal(syscall.SIGCONT)
			}})
	} else {
		// What acknowledges comes back with it; old clients' libraries do not all survive it.
		faults = append(faults, fault{"server killed", "", func() { r.server.Kill(); r.server.Start() }})
	}
	f := faults[r.rand.IntN(len(faults))]
	at := time.Since(r.began)
	r.note("fault: %s", f.name)
	f.do()
	r.mu.Lock()
	r.injected = append(r.injected, injection{at, f.name, f.sim})
	r.mu.Unlock()
}

// move changes the stage to a neighbour, where it may be changed. While old clients live, Modern would be
// a stage that nobody should run.
func (r *soaking) move() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	view, err := r.store.Show(ctx)
	if err != nil {
		r.note("stage: %v", err)
		return
	}
	to := stages.Legacy
	if view.Record.Stage == stages.Legacy {
		to = stages.Bridge
	} else if view.Record.Stage == stages.Modern || r.old == "" && r.rand.IntN(2) == 0 {
		to = stages.Modern + stages.Bridge - view.Record.Stage // bridge <-> modern
	}
	blockers, err := r.store.Move(ctx, view.Record.Epoch, to, true)
	r.note("stage %v -> %v: %v %v", view.Record.Stage, to, blockers, err)
	if err != nil && !errors.Is(err, stages.ErrConflict) && ctx.Err() == nil && errors.Is(err, lockmigrate.ErrStage) {
		r.violate("stage %v -> %v: %v", view.Record.Stage, to, err)
	}
}

// leave writes down what is needed to look at the round again.
func (r *soaking) leave(parent string) string {
	dir := filepath.Join(parent, fmt.Sprintf("seed-%d", r.seed))
	require.NoError(r.t, os.MkdirAll(dir, 0o755))
	write := func(name, text string) {
		require.NoError(r.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	var plan strings.Builder
	fmt.Fprintf(&plan, "seed %d\nold members %q\nturns %v\nagain: go test ./internal/suites/soak -run TestSoak -seed %d -length 1s\n", r.seed, r.old, r.by, r.seed)
	for _, i := range r.injected {
		fmt.Fprintf(&plan, "at %v %s\n", i.at.Round(time.Millisecond), i.what)
	}
	for _, v := range r.violations {
		fmt.Fprintln(&plan, "violation", v)
	}
	write("plan.txt", plan.String())
	write("log.txt", r.log.String())
	write("scenario.txt", r.scenario())
	return dir
}

// scenario is the same fleet under the same faults in virtual time, for `lockmigrate simulate --scenario`:
// 200 seeds of it, so that what real time did once can be found again and made smaller.
func (r *soaking) scenario() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# From a soak, seed %d: %s\n", r.seed, slices.Concat(r.violations, []string{"no violation"})[0])
	fmt.Fprintf(&b, "run %v\nseed %d\nseeds 200\n", round, r.seed)
	if r.old != "" {
		fmt.Fprintf(&b, "client old-* legacy count=2 lease=%v hold=1ms..6ms think=1ms..10ms\n", lease)
	}
	if r.plant {
		fmt.Fprintf(&b, "client planted legacy lease=100ms hold=5ms..300ms think=5ms..10ms\n")
	}
	fmt.Fprintf(&b, "client go-* bridge count=3 ttl=%v hold=1ms..6ms think=1ms..10ms\n", ttl)
	for _, i := range r.injected {
		if i.sim != "" && i.at < round {
			fmt.Fprintf(&b, "at %v %s\n", i.at.Round(time.Millisecond), i.sim)
		}
	}
	return b.String()
}
