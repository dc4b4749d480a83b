// Package demo tells the story of a migration on a real or embedded server, with a fleet that really locks
// and a referee that really looks.
//
// A story is a list of acts. Each act changes the fleet while it works; the referee's count of overlaps is kept for every act apart.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a run.
type Options struct {
	Pool  lockmigrate.Pool
	End   *endpoint.Endpoint // the same server, for the sidecar
	Act   time.Duration      // how long each act lasts
	Event func(Event)        // told as it happens; may be nil
	Watch func(Situation)    // told several times a second; may be nil
}

// Millis is a time that JSON has in whole milliseconds.
type Millis time.Duration

// MarshalJSON implements json.Marshaler.
func (m Millis) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(m).Milliseconds(), 10), nil
}

// Event is one line of the timeline.
type Event struct {
	At    Millis `json:"at_ms"` // since the beginning
	Act   string `json:"act"`
	Text  string `json:"text"`
	Alarm bool   `json:"alarm,omitempty"` // something that must not happen
}

// Situation is the present moment.
type Situation struct {
	At       time.Duration
	Act      string
	Members  int
	Inside   string // who holds the lock
	Turns    int
	Overlaps int
}

// ActResult is what the referee counted in one act.
type ActResult struct {
	Name     string  `json:"name"`
	Title    string  `json:"title"`
	Stage    string  `json:"stage"`              // legacy, bridge, modern, both or new
	Promises bool    `json:"promises_exclusion"` // that members exclude each other
	Seconds  float64 `json:"seconds"`
	Turns    int     `json:"turns"`
	Overlaps int     `json:"overlaps"`
}

// Result is what a run came to.
type Result struct {
	Acts     []ActResult `json:"acts"`
	Members  []Record    `json:"members"`
	Overlaps int         `json:"overlaps"`
	Timeline []Event     `json:"timeline"`
	Seconds  float64     `json:"seconds"`
	Complete bool        `json:"complete"` // every act was played to its end
}

// Broken tells that members overlapped.
func (r *Result) Broken() bool {
	return r.Overlaps > 0
}

// act is one scene of the story. begin changes the fleet and returns; what it starts goes on.
type act struct {
	name, title string
	stage       stages.Stage
	begin       func(ctx context.Context, s *stage) error
	// until, where it is set, is what the act waits for, up to longestAct, before it lasts its time.
	until func(s *stage) <-chan struct{}
}

// longestAct bounds the wait for an act's event. On a busy machine the member that is to die inside may have to
// wait for seconds until it gets in.
const longestAct = 20 * time.Second

// stage is where the acts play: the fleet, its server and the timeline.
type stage struct {
	opts    Options
	prefix  string
	playing context.Context // ends with the demo
	referee *fleet.Referee
	closers []func()
	last    []func() // after the closers

	telling sync.Mutex
	events  []Event

	mu       sync.Mutex
	act      string
	began    time.Time
	overlaps int

	workers   []*fleet.Worker              // all
	java      []*fleet.Worker              // at work
	golang    []*fleet.Worker              // at work
	javas     int                          // so far
	victim    atomic.Pointer[fleet.Worker] // dies the next time it is inside, without giving the lock back
	store     *stages.Store                // of the namespace; nil before there is one
	moved     *stages.Store                // of the move to another server
	elsewhere string                       // that server's URL
	crashedAt time.Time
	successor chan struct{} // gets a token when somebody gets in after a crash
}

// Run plays the story. It leaves no key behind, also when ctx ends it early; the result then holds what was
// seen so far.
func Run(ctx context.Context, opts Options) (*Result, error) { return run(ctx, opts, story) }

func run(ctx context.Context, opts Options, story []act) (*Result, error) {
	s := &stage{
		opts: opts, prefix: "lockmigrate-demo:" + rand.Text()[:12] + ":",
		began: time.Now(), successor: make(chan struct{}, 1),
	}
	if err := s.tryServer(ctx); err != nil {
		return nil, err
	}
	playing, stop := context.WithCancel(ctx)
	defer stop()
	s.playing, s.referee = playing, fleet.NewReferee()
	s.referee.Entered = s.entered
	watched := s.watch(playing)

	result := &Result{Complete: true}
	var err error
	for _, a := range story {
		var done ActResult
		if done, err = s.play(playing, a); done.Seconds > 0 {
			result.Acts = append(result.Acts, done)
		}
		if err != nil || ctx.Err() != nil {
			result.Complete = false
			break
		}
	}

	stop()
	for _, w := range s.workers {
		_ = w.Wait(context.WithoutCancel(ctx))
	}
	<-watched
	slices.Reverse(s.closers) // a Locker before its halves
	for _, closes := range append(s.closers, s.last...) {
		closes()
	}
	if cleanErr := s.clean(ctx); err == nil {
		err = cleanErr
	}
	rest := s.referee.Since()
	if n := len(result.Acts); n > 0 { // what came after the last count is the last act's
		result.Acts[n-1].Turns += rest.Turns
		result.Acts[n-1].Overlaps += rest.Overlaps
	}
	result.Members, result.Overlaps, result.Timeline, result.Seconds = s.records(), s.overlaps, s.events, time.Since(s.began).Seconds()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = nothingMoved(result)
	}
	return result, err
}

// play begins an act and lets it last.
func (s *stage) play(ctx context.Context, a act) (ActResult, error) {
	s.mu.Lock()
	s.act = a.name
	s.mu.Unlock()
	began := time.Now()
	if err := a.begin(ctx, s); err != nil {
		return ActResult{}, err
	}
	limited, cancel := context.WithTimeout(ctx, longestAct)
	defer cancel()
	if a.until != nil {
		select {
		case <-a.until(s):
		case <-limited.Done():
		}
	}
	_ = lifetime.Sleep(ctx, s.opts.Act)
	counted := s.referee.Since()
	for counted.Turns == 0 && !s.fails() && limited.Err() == nil { // one who has just retired may have left a place in the queue
		_ = lifetime.Sleep(limited, 10*time.Millisecond)
		counted = s.referee.Since()
	}
	return ActResult{
		Name: a.name, Title: a.title, Stage: a.stage.String(), Promises: true, Seconds: time.Since(began).Seconds(),
		Turns: counted.Turns, Overlaps: counted.Overlaps,
	}, nil
}

// nothingMoved turns a demo in which nobody ever got the lock into the error that kept them out.
func nothingMoved(r *Result) error {
	for _, a := range r.Acts {
		if a.Turns > 0 {
			continue
		}
		for _, m := range r.Members {
			if m.Err != nil {
				return endpoint.Explain(m.Err)
			}
		}
		return fmt.Errorf("nobody got the lock in the act %q", a.Name)
	}
	return nil
}

// say puts a line on the timeline.
func (s *stage) say(format string, args ...any) { s.event(false, format, args...) }

func (s *stage) event(alarm bool, format string, args ...any) {
	s.telling.Lock() // and not mu: the listener may take its time, and the fleet goes on
	defer s.telling.Unlock()
	s.mu.Lock()
	act := s.act
	s.mu.Unlock()
	e := Event{At: Millis(time.Since(s.began)), Act: act, Text: fmt.Sprintf(format, args...), Alarm: alarm}
	s.events = append(s.events, e)
	if s.opts.Event != nil {
		s.opts.Event(e)
	}
}

// watch tells Watch how things stand, until ctx ends.
func (s *stage) watch(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.opts.Watch == nil {
			return
		}
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			s.mu.Lock()
			now := Situation{At: time.Since(s.began), Act: s.act, Overlaps: s.overlaps}
			s.mu.Unlock()
			for _, r := range s.records() {
				now.Turns += r.Turns
				if !r.Crashed {
					now.Members++
				}
			}
			_, _, inside := s.referee.Records()
			now.Inside = strings.Join(inside, ", ")
			s.opts.Watch(now)
		}
	}()
	return done
}

// Record is what became of a member.
type Record struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Turns   int    `json:"turns"`
	Longest Millis `json:"longest_wait_ms"` // for the lock
	Crashed bool   `json:"crashed"`
	Lost    int    `json:"lost"` // how often its lease was over before its work was
	Errors  int    `json:"errors"`
	Err     error  `json:"-"`               // the last one
	Error   string `json:"error,omitempty"` // its text
}

func (s *stage) records() (all []Record) {
	names, records, _ := s.referee.Records()
	for i, r := range records {
		kind, _, _ := strings.Cut(names[i], "-")
		one := Record{names[i], kind, r.Turns, Millis(r.Longest), r.Died > 0, r.Lost, r.Errors, r.Err, ""}
		if r.Err != nil {
			one.Error = r.Err.Error()
		}
		all = append(all, one)
	}
	return all
}

func (s *stage) fails() bool {
	return slices.ContainsFunc(s.records(), func(r Record) bool { return r.Err != nil })
}

// join sends a service to work.
func (s *stage) join(name string, take fleet.Take) *fleet.Worker {
	w := &fleet.Worker{
		Name: name, Take: take, Key: s.key,
		Hold:  func() time.Duration { return work/4 + mathrand.N(work*3/4) },
		Think: func() time.Duration { return time.Millisecond + mathrand.N(rest) },
	}
	w.Dies = func() bool { return s.dies(w) }
	s.workers = append(s.workers, w)
	w.Start(s.playing, s.referee, 0)
	return w
}

// retire sends services home, behind their present turns.
func retire(ctx context.Context, workers []*fleet.Worker) error {
	for _, w := range workers {
		w.Stop()
	}
	for _, w := range workers {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	replyTimeout   = 3 * time.Second
	releaseTimeout = 500 * time.Millisecond // once the demo is interrupted
)

// key is the lock that everybody wants.
func (s *stage) key() string { return s.prefix + "orders" }

// tryServer writes one key that ends by itself, so that a server that cannot be written is found out before
// the story begins.
func (s *stage) tryServer(ctx context.Context) error {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return endpoint.Explain(err)
	}
	defer conn.Close()
	if _, err := redis.DoContext(conn, ctx, "SET", s.prefix+"probe", "1", "PX", 1000); err != nil {
		return endpoint.Explain(err)
	}
	_, err = redis.DoContext(conn, ctx, "DEL", s.prefix+"probe")
	return endpoint.Explain(err)
}

// clean removes what crashed members left, also when the demo is interrupted, which is then in a hurry.
func (s *stage) clean(demo context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(demo), replyTimeout)
	defer cancel()
	defer context.AfterFunc(demo, func() { time.AfterFunc(releaseTimeout, cancel) })()
	conn, err := s.opts.Pool.GetContext(ctx)
	if err == nil {
		defer conn.Close()
		for _, key := range s.leftovers() { // one by one: in a cluster each has a slot of its own
			if err == nil {
				_, err = redis.DoContext(conn, ctx, "DEL", key)
			}
		}
		if err == nil && s.store != nil {
			if _, err = s.store.Delete(ctx, 0, true); err == nil || errors.Is(err, stages.ErrNoRecord) { // its entry in the list
				err = s.store.Forget(ctx)
			}
		}
	}
	if err != nil {
		return &endpoint.Error{
			What:   fmt.Sprintf("the key %s, or a key beside it, may be left on the server: %v", s.key(), err),
			Advice: "delete it when the server answers again", Cause: err,
		}
	}
	return nil
}
