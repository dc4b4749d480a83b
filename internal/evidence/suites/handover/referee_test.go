package handover

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// referee is told by every worker of every process when it comes in and before it goes, and answers before the worker goes on. It knows nothing of
// locks, servers or stages; but it is the one that kills, stops and continues processes, so it knows who cannot be at work.
type referee struct {
	t        testing.TB
	listener net.Listener
	lateness *redistest.Lateness

	mu      sync.Mutex
	inside  map[string][]*visit
	open    map[*visit]bool // whose release has not been heard of
	members map[string]*process
	changed chan struct{} // closed at the next word of a worker
	count
}

type count struct {
	turns    int
	told     int // turns whose lock was lost, and whose holder was told
	passed   int // holders that others came past while they were stopped: each was told
	late     int // holders that were told after another had come in, within what the machine is late
	overlaps []string
	stages   map[string]int // turns by stage
}

// visit is one stay inside.
type visit struct {
	since   time.Time
	long    bool
	who     *process
	beside  []time.Time   // when others came in
	asleep  bool          // it was stopped, when one of them did
	awake   time.Time     // when it was continued
	told    bool          // before it went out
	longest time.Duration // for which another was at work beside it
}

// process is a member, as its operating system knows it.
type process struct {
	*holders.Holder
	name    string
	dead    bool
	stopped bool
	turns   int
}

func newReferee(t testing.TB) *referee {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &referee{t: t, listener: listener, lateness: redistest.NewLateness(t), inside: map[string][]*visit{}, open: map[*visit]bool{}, members: map[string]*process{}, changed: make(chan struct{})}
	r.stages = map[string]int{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	return r
}

// serve hears one worker: its process's name; then "in KEY STAGE long" (or short), "out told" or "out done", and "released", "lost" or "unknown", each answered.
func (r *referee) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	if !lines.Scan() {
		return
	}
	name, key := lines.Text(), ""
	var v *visit
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		r.mu.Lock()
		p := r.members[name]
		if p == nil || p.dead {
			r.mu.Unlock()
			return
		}
		switch words[0] {
		case "in":
			key = words[1]
			v = r.in(p, key, words[2])
			v.long = words[3] == "long"
		case "out":
			v.told = words[1] == "told"
			r.out(key, v)
		default:
			r.judge(key, v, words[0])
		}
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
		if _, err := fmt.Fprintln(conn, "ok"); err != nil {
			return
		}
	}
}

func (r *referee) in(p *process, key, stage string) *visit {
	v := &visit{who: p, since: time.Now()}
	for _, other := range r.inside[key] {
		other.beside = append(other.beside, time.Now())
		other.asleep = other.asleep || other.who.stopped
	}
	r.inside[key] = append(r.inside[key], v)
	r.open[v] = true
	r.turns++
	p.turns++
	r.stages[stage]++
	return v
}

func (r *referee) out(key string, v *visit) {
	for i, other := range r.inside[key] {
		if other == v {
			r.inside[key] = append(r.inside[key][:i:i], r.inside[key][i+1:]...)
		}
	}
	for _, at := range v.beside { // from when both were at work
		if at.Before(v.awake) {
			at = v.awake
		}
		v.longest = max(v.longest, time.Since(at))
	}
}

// judge is asked when the release has said whether the lock was still held.
func (r *referee) judge(key string, v *visit, release string) {
	delete(r.open, v)
	told := v.told || release == "lost"
	if told {
		r.told++
	}
	switch bound := 50*time.Millisecond + r.lateness.Most(); {
	case len(v.beside) == 0:
	case !told, v.longest > bound:
		r.overlaps = append(r.overlaps, fmt.Sprintf("%s: another came in beside %s, for %v (bound %v); told %v, release %s, stopped %v", key, v.who.name, v.longest, bound, v.told, release, v.asleep))
	case v.asleep:
		r.passed++
	default:
		r.late++
	}
}

// kill ends a process. It is at work no more from before the signal on.
func (r *referee) kill(p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.dead = true
	for key, all := range r.inside {
		for _, v := range all {
			if v.who == p {
				r.out(key, v)
			}
		}
	}
	maps.DeleteFunc(r.open, func(v *visit, _ bool) bool { return v.who == p })
	p.Kill()
}

// stop has a process do nothing until it goes on. It returns when the process has stopped.
func (r *referee) stop(p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Stop()
	p.stopped = true
}

func (r *referee) goOn(p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.stopped = false
	for _, all := range r.inside {
		for _, v := range all {
			if v.who == p {
				v.awake = time.Now()
			}
		}
	}
	p.Signal(syscall.SIGCONT)
}

// await waits until something holds, which is asked after every word of a worker.
func (r *referee) await(what string, holds func() bool) {
	r.t.Helper()
	for end := time.After(2 * time.Minute); ; {
		r.mu.Lock()
		now, changed := holds(), r.changed
		r.mu.Unlock()
		if now {
			return
		}
		select {
		case <-changed:
		case <-end:
			for _, p := range r.members {
				r.t.Logf("%v is %s", p, p.LastWords())
			}
			r.t.Fatalf("no %s within two minutes", what)
		}
	}
}

// busy waits until somebody has just begun a long turn, and returns its member: the moment in which a fault does most harm.
func (r *referee) busy() (busy *process) {
	r.t.Helper()
	r.await("long turn", func() bool {
		for _, all := range r.inside {
			for _, v := range all {
				if v.long && time.Since(v.since) < 100*time.Millisecond {
					busy = v.who
					return true
				}
			}
		}
		return false
	})
	return busy
}
