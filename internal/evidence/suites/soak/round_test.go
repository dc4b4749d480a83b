package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// The fleets of a round: who shares the keys.
const (
	fleetGo     = "go"     // followers only, in every stage
	fleetTokens = "tokens" // followers in bridge and modern, package modern, SET NX PX of Java and Python
	fleetJava   = "java"   // followers in legacy and bridge, jedis-lock and the article's lock
	fleetPython = "python" // followers in legacy and bridge, redis-py's Lock
	fleetBehind = "behind" // followers in bridge and modern; jedis-lock, redis-py's Lock and a lock of dialect B, each behind a sidecar
)

// soaking is one fleet at work on a site.
type soaking struct {
	t     testing.TB
	site  *site
	set   *keyset
	seed  uint64
	fleet string
	rand  *rand.Rand
	store *stages.Store
	began time.Time

	mu         sync.Mutex
	by         map[string]int    // turns of each member, told by itself
	kinds      map[string]string // of holders of other languages
	turns      holders.Turns
	dead       map[string]time.Time
	injected   []injection
	violations []string
	log        strings.Builder

	processes []*process
	sidecars  []*beside
	ctx       context.Context
	cancel    context.CancelFunc
	working   sync.WaitGroup
	closers   []func()
	result    verdict
	took      time.Duration
}

type injection struct {
	at   time.Duration
	what string
	sim  string // the fault in the simulator's language; empty where it has none
}

// process is a member in all its incarnations.
type process struct {
	r     *soaking
	name  string // of all its incarnations
	kind  holders.Kind
	set   *keyset // of a Go member
	sim   string  // its client in the simulator's language
	start func(id string) *holders.Holder

	mu     sync.Mutex
	n      int
	holder *holders.Holder
	ended  map[*holders.Holder]bool // killed
}

// newSoaking prepares a fleet; muster lets it begin.
func newSoaking(t testing.TB, site *site, name, fleet string, seed uint64) *soaking {
	r := &soaking{
		t: t, site: site, set: site.keyset("soak:" + name), seed: seed, fleet: fleet, rand: rand.New(rand.NewPCG(seed, 8)), began: time.Now(),
		by: map[string]int{}, kinds: map[string]string{}, turns: holders.Turns{}, dead: map[string]time.Time{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// fleets are those that this run can have, old ones twice: they are what it is for.
func fleets() []string {
	all := []string{fleetGo, fleetTokens}
	if redistest.Wanted(redistest.Java) {
		all = append(all, fleetJava, fleetJava)
	}
	if redistest.Wanted(redistest.Python) {
		all = append(all, fleetPython, fleetPython)
	}
	if redistest.Wanted(redistest.Java) && redistest.Wanted(redistest.Python) {
		all = append(all, fleetBehind, fleetBehind)
	}
	return all
}

func (r *soaking) namespace() string {
	return strings.NewReplacer(":", "-", "{", "", "}", "").Replace(r.set.keys[0])
}

func (r *soaking) hasOld() bool { return r.fleet == fleetJava || r.fleet == fleetPython }

// muster starts the members.
func (r *soaking) muster(withRedisson bool) {
	r.t.Helper()
	if r.fleet == fleetBehind {
		r.set = r.site.linked(&keyset{keys: []string{"{" + r.set.keys[0] + "}:1", "{" + r.set.keys[0] + "}:2"}}) // what is behind a sidecar sees one server
	}
	pool, err := r.site.pool()
	require.NoError(r.t, err)
	r.closers = append(r.closers, func() { _ = pool.Close() })
	r.store = &stages.Store{Pool: pool, Namespace: r.namespace(), ReplyTimeout: 5 * time.Second}
	require.NoError(r.t, r.store.Init(r.t.Context(), stages.Record{
		Namespace: r.namespace(), Stage: stages.Bridge, Patterns: r.set.keys, Dialect: dialectOf(r.fleet).Name, Shortest: lease,
	}))
	url := r.site.url(r.set, 0)
	r.process("go-1", follower, r.set, url)
	if r.site.topology == onSingle {
		r.process("go-far", follower, r.set, r.site.far.URL())
	}
	r.process("go-process", follower, r.set, url)
	last := len(r.set.keys) - 1
	switch r.fleet {
	case fleetTokens:
		r.process("token", token, r.set, url)
		if redistest.Wanted(redistest.Java) {
			r.foreign("java-set-nx-px", holders.SetNXPX, "setnxpx", r.set, 0, holders.Arg("poll", 10*time.Millisecond))
		}
		if redistest.Wanted(redistest.Python) {
			r.foreign("python-set-nx-px", holders.PySetNXPX, "setnxpx", r.set, last, holders.Arg("poll", 10*time.Millisecond))
		}
	case fleetJava:
		r.foreign("jedis-lock", holders.JedisLock, "old", r.set, 0)
		r.foreign("article", holders.Article, "old", r.set, min(1, last))
		if r.site.topology != onSingle {
			r.foreign("article-ha", holders.ArticleHA, "old", r.set, last, r.site.knowing()...)
		}
	case fleetPython:
		r.foreign("redis-py-1", holders.RedisPy, "old", r.set, 0)
		r.foreign("redis-py-2", holders.RedisPy, "old", r.set, min(1, last))
	}
	if r.fleet == fleetBehind {
		r.behind("jedis-lock", "jedis-ms", holders.JedisLock, 0)
		r.behind("redis-py", "redispy-float", holders.RedisPy, last)
		r.behind("jedis-uuid", "jedis-uuid", holders.JedisUUID, 0)
	}
	if withRedisson && r.fleet != fleetBehind && redistest.Wanted(redistest.Java) {
		own := r.site.keyset(r.set.keys[0] + ":redisson")
		r.process("go-redisson-process", redissons, own, r.site.url(own, 0))
		r.foreign("redisson", holders.Redisson, "redisson", own, 0, r.site.knowing()...)
	}
}

// process starts a Go member in a process of its own. One turn of sixty lives by its renewals.
func (r *soaking) process(name, kind string, set *keyset, url string, options ...holders.Option) {
	all := append([]holders.Option{
		holders.Arg("namespace", r.namespace()), holders.Arg("dialect", dialectOf(r.fleet).Name), holders.Arg("book", r.site.book.Addr),
		holders.Arg("long", 2*ttl), holders.Arg("rarely", 60),
	}, append(r.site.knowing(), options...)...)
	r.enlist(&process{name: name, sim: schemeOf(name), set: set, start: func(id string) *holders.Holder {
		h := holders.StartGo(r.t, kind, url, append(all, holders.Arg("id", id))...)
		h.Send("turns %s %s %d %d", strings.Join(set.keys, ","), "book:*", 1_000_000, 12)
		return h
	}})
}

// foreign starts a Java or Python holder of one key.
func (r *soaking) foreign(name string, kind holders.Kind, judged string, set *keyset, i int, options ...holders.Option) {
	r.foreignAt(r.site.url(set, i), name, kind, judged, set, i, options...)
}

func (r *soaking) foreignAt(url, name string, kind holders.Kind, judged string, set *keyset, i int, options ...holders.Option) {
	sim := "legacy"
	if judged != "old" {
		sim = "modern"
	}
	r.enlist(&process{name: name, kind: kind, sim: sim, start: func(id string) *holders.Holder {
		r.mu.Lock()
		r.kinds[id] = judged
		r.mu.Unlock()
		all := append([]holders.Option{
			holders.Arg("id", id), holders.Arg("lease", lease), holders.Arg("wait", 10*time.Second), holders.Arg("book", r.site.book.Addr),
		}, options...)
		h := holders.Start(r.t, kind, url, all...)
		h.Send("turns %s %s %d %d", set.keys[i], "book:"+set.keys[i], 1_000_000, 12)
		return h
	}})
}

func (r *soaking) enlist(m *process) {
	m.r, m.ended = r, map[*holders.Holder]bool{}
	r.processes = append(r.processes, m)
	r.mu.Lock()
	r.by[m.name] = 0
	r.mu.Unlock()
	m.begin()
}

// begin starts an incarnation of the member; each has a name of its own.
func (m *process) begin() {
	m.mu.Lock()
	m.n++
	id := fmt.Sprintf("%s-%d", m.name, m.n)
	m.mu.Unlock()
	h := m.start(id)
	m.mu.Lock()
	m.holder = h
	m.mu.Unlock()
	m.r.working.Go(func() {
		for e := range h.Events() {
			switch {
			case e.Event == "done" && !m.ours():
				h.Send("quit")
			case e.Event == "busy":
				m.answer(h, "acquire "+e.Key)
			case e.Event == "acquired":
				m.answer(h, "release "+e.Key)
			}
			m.r.heard(m.name, id, e)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.ended[h] && m.r.ctx.Err() == nil {
			m.r.violate("%s has ended by itself: %s", id, h.LastWords())
		}
	})
}

func (m *process) ours() bool { return m.kind.Name == "" }

// answer gives a holder a command, unless it is one that was told to quit, or killed.
func (m *process) answer(h *holders.Holder, command string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended[h] {
		h.Send("%s", command)
	}
}

func (m *process) send(command string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holder.Send("%s", command)
}

// kill ends the process, inside or not, and starts another. Its name in the book goes with it.
func (m *process) kill() {
	m.mu.Lock()
	h := m.holder
	m.ended[h] = true
	m.mu.Unlock()
	now := time.Now()
	m.r.mu.Lock()
	m.r.dead[h.ID] = now
	m.r.mu.Unlock()
	h.Kill()
	for _, key := range m.r.site.allKeys() {
		m.r.site.book.Do("HDEL", "book:"+key, h.ID)
	}
	m.begin()
}

// stop holds the process up for a while.
func (m *process) stop(d time.Duration) {
	m.mu.Lock()
	h := m.holder
	m.mu.Unlock()
	h.Signal(syscall.SIGSTOP)
	time.Sleep(d) // the subject
	h.Signal(syscall.SIGCONT)
}

// heard takes what a member says.
func (r *soaking) heard(name, id string, e holders.Event) {
	r.mu.Lock()
	r.turns.Note(id, e)
	if e.Event == "turn" || e.Event == "released" {
		r.by[name]++
	}
	r.mu.Unlock()
	switch e.Event {
	case "error", "busy":
		r.note("%s: %s: %s %s", id, e.Op, e.Class, e.Message)
		if e.Op == "referee" {
			r.violate("%s cannot write into the book: %s", id, e.Message)
		}
	case "garbage":
		r.violate("%s says %q", id, e.Message)
	}
}

func (r *soaking) counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.by)
}

// patience is for how long somebody may wait, on a machine with other work, before it counts as hanging.
const patience = 3 * time.Minute

// without returns who has had no turn beyond a count, as soon as everybody has or patience is over, and who was the last.
func (r *soaking) without(before map[string]int, names ...string) (behind, last []string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // polling
		now := r.counts()
		behind = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return now[name] > before[name] })
		if len(behind) == 0 || time.Now().After(deadline) {
			return behind, last
		}
		last = behind
	}
}

// everyWaiterResumes waits until every member, of every language, has had a turn from now on.
func (r *soaking) everyWaiterResumes(after string) {
	r.t.Helper()
	began, before := time.Now(), r.counts()
	behind, last := r.without(before, slices.Sorted(maps.Keys(before))...)
	r.t.Logf("fleet %s: turns %v after %s, the last were %v", r.fleet, time.Since(began).Round(time.Millisecond), after, last)
	if len(behind) > 0 {
		r.violate("no turn of %v within %v after %s", behind, patience, after)
	}
}

// hush ends everybody's turns.
func (r *soaking) hush() {
	for _, m := range r.processes {
		if !m.ours() { // it says that it is done, and is told to quit
			m.mu.Lock()
			m.ended[m.holder] = true
			m.mu.Unlock()
		}
		m.send("stop")
	}
}

// everybodyGoesOn waits, once the faults are over, for a turn of each Go member, with no competition: the
// old scheme is not fair, and somebody who starves does not hang.
func (r *soaking) everybodyGoesOn() {
	r.hush()
	for _, m := range r.processes {
		if !m.ours() {
			continue
		}
		before := r.counts()
		m.send("acquire " + m.set.keys[0])
		if behind, _ := r.without(before, m.name); len(behind) > 0 {
			r.violate("%s hangs: no turn since the faults are over (%v)", m.name, before)
		}
	}
}

// finish ends the fleet, which has been hushed, and judges what it did.
func (r *soaking) finish() {
	r.t.Helper()
	r.took = time.Since(r.began)
	r.cancel()
	for _, m := range r.processes {
		if m.ours() {
			m.mu.Lock()
			m.holder.Send("quit")
			m.ended[m.holder] = true
			m.mu.Unlock()
		}
	}
	r.working.Wait()
	for _, c := range r.closers {
		c()
	}
	r.result = r.judge(r.stays())
	for _, v := range r.result.violations {
		r.violate("%s", v)
	}
}

func (r *soaking) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("%v: %s", time.Since(r.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
	r.violations = append(r.violations, text)
	fmt.Fprintln(&r.log, "VIOLATION", text)
}

func (r *soaking) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.log, "%v %s\n", time.Since(r.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
}
