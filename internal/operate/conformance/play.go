package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/link"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// The figures of every case; a record may have others of the old clients.
const (
	ttl          = 1500 * time.Millisecond
	replyTimeout = 400 * time.Millisecond
	namespace    = "kit"
)

var errNotTried = errors.New("not tried")

// play is a case that is played, on servers of its own.
type play struct {
	*kit
	c        *Case
	dir      string
	servers  []*server                     // the first one is the master
	operator *link.Link                    // to the master, for the record
	store    *stages.Store                 // the record's, for the operator
	offset   time.Duration                 // of the server's clock from ours
	rewrite  func(words []string) []string // what the offset makes of commands; nil for none
	failed   bool
	record   stages.Record
	actors   map[string]*actor
	load     *load
}

// actor is somebody who locks.
type actor struct {
	name   string
	client client
	proc   *process // of the implementation; nil for others
	link   *link.Link
	locks  map[string]fleet.Held
	last   fleet.Held // the lock that was acquired last, also after its release
	took   time.Duration
	answer chan string // to the acquisition under way

	mu    sync.Mutex
	calls []call
	hook  func(c call)

	now atomic.Value // its present lock under load
}

// call is a command that an actor has sent.
type call struct {
	name  string            // of the script, or the command
	named map[string]string // a script's keys and arguments
	words []string
	at    time.Time
}

// run plays the steps. It returns the step that did not give what was expected, and what it gave.
func (p *play) run(ctx context.Context) (failed *step, seen string, err error) {
	if p.dir, err = os.MkdirTemp("", "conformance"); err != nil {
		return nil, "", err
	}
	master, err := p.start(ctx)
	if err != nil {
		return nil, "", err
	}
	p.servers = []*server{master}
	if p.operator, err = link.Start(master.socket, true); err != nil {
		return nil, "", err
	}
	pool := dials(p.operator)
	pool.MaxIdle = 0 // another server may take the place
	p.store = &stages.Store{Namespace: namespace, ReplyTimeout: 2 * time.Second, Pool: pool}
	for i := range p.c.steps {
		s := p.c.steps[i]
		verb, args, patience := s.verb, s.args, time.Duration(0)
		if verb == "until" { // a look that is repeated
			patience, _ = time.ParseDuration(args[0])
			verb, args = args[1], args[2:]
		}
		for end := time.Now().Add(patience); ; {
			expanded := make([]string, len(args))
			for i, a := range args {
				expanded[i] = p.expand(a)
			}
			seen, err := p.do(ctx, verb, expanded)
			s.want = p.expand(p.c.steps[i].want)
			if err == nil && matches(s.want, seen) {
				break
			}
			if patience == 0 || time.Now().After(end) || ctx.Err() != nil {
				return &s, seen, err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil, "", nil
}

// end gives processes back and ends servers.
func (p *play) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if p.load != nil {
		_, _ = p.load.halt(ctx)
	}
	for _, a := range p.actors {
		a.link.Heal()
		if a.proc != nil {
			if a.proc.killed {
				_ = signal(a.proc.cmd, sigCont)
			} else {
				_ = a.client.close(ctx)
			}
			a.proc.killed = a.proc.killed || p.failed // what is wrong in it ends with the case
			p.release(a.proc)
		} else if a.client.close != nil {
			_ = a.client.close(ctx)
		}
		a.link.Close()
	}
	if p.operator != nil {
		p.operator.Close()
	}
	for _, s := range p.servers {
		s.kill()
	}
	_ = os.RemoveAll(p.dir)
}

// stderr is the last that the drivers said.
func (p *play) stderr() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p.actors)) {
		if a := p.actors[name]; a.proc != nil && a.proc.said.String() != "" {
			all = append(all, name+": "+a.proc.said.String())
		}
	}
	return strings.Join(all, "\n")
}

var (
	aKey     = regexp.MustCompile(`\{k(\d*)(:\w+)?\}`)
	anExpiry = regexp.MustCompile(`\$([+-][\w.]+)`)
	aToken   = regexp.MustCompile(`\$([a-z]\w*)`)
)

// expand puts names and values in their places: {k} a key and {k:guard} one beside it, $+5s an expiry of an old client, $a what stands on a's key.
func (p *play) expand(text string) string {
	text = aKey.ReplaceAllStringFunc(text, func(m string) string {
		parts := aKey.FindStringSubmatch(m)
		key := namespace + ":k" + parts[1]
		if parts[2] != "" {
			return protocol.Beside(key, parts[2])
		}
		return key
	})
	text = anExpiry.ReplaceAllStringFunc(text, func(m string) string {
		lease, _ := time.ParseDuration(m[1:])
		d := p.dialect()
		value, _ := d.Expiry(protocol.InstantOf(p.now()), lease-time.Duration(d.Extra)*d.Unit.Resolution(), "0f9b5a4e-77aa-4c33-8a51-6d0a2b1c9e7d")
		return value
	})
	return aToken.ReplaceAllStringFunc(text, func(m string) string {
		if a := p.actors[m[1:]]; a != nil {
			if l, ok := a.last.(told); ok {
				return l.Token()
			}
		}
		return m
	})
}

// matches tells whether something is as expected: one of several texts, of which A..B and >N are numbers, !T any other text, and T* what begins so.
func matches(want, seen string) bool {
	for w := range strings.SplitSeq(want, " | ") {
		n, err := strconv.ParseInt(seen, 10, 64)
		low, high, between := strings.Cut(w, "..")
		if above, ok := strings.CutPrefix(w, ">"); ok {
			low, high, between = above, "9223372036854775807", true
			n--
		}
		if between && err == nil {
			from, e1 := strconv.ParseInt(low, 10, 64)
			to, e2 := strconv.ParseInt(high, 10, 64)
			if e1 == nil && e2 == nil && from <= n && n <= to {
				return true
			}
		}
		other, not := strings.CutPrefix(w, "!")
		start, open := strings.CutSuffix(w, "*")
		if w == seen || not && other != seen || open && strings.HasPrefix(seen, start) {
			return true
		}
	}
	return false
}

// acquire asks for a lock.
func (a *actor) acquire(ctx context.Context, args []string) string {
	wait, _ := time.ParseDuration(options(args)["wait"])
	began := time.Now()
	lock, err := a.client.acquire(ctx, args[0], wait)
	a.took = time.Since(began)
	if err == nil {
		a.locks[args[0]], a.last = lock, lock
	}
	return word(err)
}

// note keeps a command that an actor sends, before the server has it.
func (a *actor) note(words []string) {
	c := call{name: words[0], words: words, at: time.Now()}
	if (words[0] == "EVALSHA" || words[0] == "EVAL") && len(words) > 2 {
		c.name = strings.TrimSuffix(scripts.NameOf(words[1]), ".lua")
		n, _ := strconv.Atoi(words[2])
		if s := scripts.Of(words[1]); s != nil && len(words) >= 3+n {
			c.named = s.Read(words[3+n:])
			for i, key := range s.Keys[:min(n, len(s.Keys))] {
				c.named[key.Name] = words[3+i]
			}
		}
	}
	a.mu.Lock()
	a.calls = append(a.calls, c)
	hook := a.hook
	a.mu.Unlock()
	if hook != nil {
		hook(c)
	}
}

// onNext calls f once, with the next command of a name, before the server has it.
func (a *actor) onNext(name string, f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hook = func(c call) {
		if c.name == name {
			a.mu.Lock()
			a.hook = nil
			a.mu.Unlock()
			f()
		}
	}
}

// sent returns all commands so far.
func (a *actor) sent() []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// boxed is for an atomic.Value, which wants one type.
type boxed struct{ fleet.Held }

// load is turns on one key in the background, before a referee who asks no server.
type load struct {
	key     string
	referee *fleet.Referee
	workers map[*actor]*fleet.Worker

	mu       sync.Mutex
	overlaps []string
}

// begin has actors take turns until the load is halted.
func (p *play) begin(ctx context.Context, key string, names []string) {
	l := &load{key: key, referee: fleet.NewReferee(), workers: map[*actor]*fleet.Worker{}}
	p.load = l
	l.referee.Entered = func(w *fleet.Worker, beside []*fleet.Worker) {
		believes := func(w *fleet.Worker) bool { return alive(ctx, p.actors[w.Name].now.Load().(boxed).Held) }
		for _, other := range beside {
			// Who knows that his lock is lost works no more. That goes for the one who enters too: a process that is stopped between the grant and
			// its answer says "ok" late, and "lost" with it. Beliefs only end, so two that both last yet lasted at once.
			if believes(w) && believes(other) {
				l.mu.Lock()
				l.overlaps = append(l.overlaps, w.Name+" beside "+other.Name)
				l.mu.Unlock()
			}
		}
	}
	for _, name := range names {
		l.start(ctx, p.actors[name])
	}
}

// start lets an actor work.
func (l *load) start(ctx context.Context, a *actor) {
	w := &fleet.Worker{
		Name: a.name, Key: func() string { return l.key },
		Hold:  func() time.Duration { return time.Millisecond + rand.N(4*time.Millisecond) },
		Think: func() time.Duration { return rand.N(5 * time.Millisecond) },
	}
	w.Take = func(ctx context.Context, key string) (fleet.Held, error) {
		for { // nothing cancels a request
			lock, err := a.client.acquire(context.WithoutCancel(ctx), key, 3*time.Second)
			switch {
			case err == nil:
				a.now.Store(boxed{lock})
				return lock, nil
			case ctx.Err() != nil || WordOf(err) != "refused":
				return nil, err
			}
		}
	}
	l.workers[a] = w
	w.Start(ctx, l.referee, 0)
}

// rest ends an actor's work behind its present turn.
func (l *load) rest(ctx context.Context, a *actor) error {
	l.workers[a].Stop()
	return l.workers[a].Wait(ctx)
}

// halt ends the turns, and returns what the referee saw.
func (l *load) halt(ctx context.Context) (string, error) {
	for _, w := range l.workers {
		w.Stop()
	}
	for _, w := range l.workers {
		if err := w.Wait(ctx); err != nil {
			return "", err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.overlaps); n > 0 {
		return fmt.Sprintf("%d overlaps, the first: %s", n, l.overlaps[0]), nil
	}
	return "no overlap", nil
}
