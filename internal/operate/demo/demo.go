// Package demo tells the story of a migration on a real or embedded server, with a fleet that really locks
// and a referee that really looks.
//
// A story is a list of acts. Each act changes the fleet while it works, and says whether it promises that
// the members exclude each other; the referee's count of overlaps is kept for every act apart.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
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

// Broken tells that members overlapped in an act that promises they do not.
func (r *Result) Broken() bool {
	return slices.ContainsFunc(r.Acts, func(a ActResult) bool { return a.Promises && a.Overlaps > 0 })
}

// act is one scene of the story. begin changes the fleet and returns; what it starts goes on.
type act struct {
	name, title string
	stage       stages.Stage
	promises    bool
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
	fleet   *fleet
	closers []func()
	last    []func() // after the closers

	telling sync.Mutex
	events  []Event

	mu    sync.Mutex
	act   string
	began time.Time

	java      []*member     // at work
	golang    []*member     // at work
	javas     int           // so far
	store     *stages.Store // of the namespace; nil before there is one
	moved     *stages.Store // of the move to another server
	elsewhere string        // that server's URL
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
	s.fleet = &fleet{ctx: playing, key: s.key(), entered: s.entered, crashed: s.crashed}
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
	s.fleet.running.Wait()
	<-watched
	slices.Reverse(s.closers) // a Locker before its halves
	for _, closes := range append(s.closers, s.last...) {
		closes()
	}
	if cleanErr := s.clean(ctx); err == nil {
		err = cleanErr
	}
	result.Members, result.Timeline, result.Seconds = s.fleet.records(), s.events, time.Since(s.began).Seconds()
	turns, overlaps := s.fleet.count()
	result.Overlaps = overlaps
	for _, a := range result.Acts {
		turns, overlaps = turns-a.Turns, overlaps-a.Overlaps
	}
	if n := len(result.Acts); n > 0 { // what came after the last count is the last act's
		result.Acts[n-1].Turns += turns
		result.Acts[n-1].Overlaps += overlaps
	}
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
	turns, overlaps := s.fleet.count()
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
	pause(ctx, s.opts.Act)
	turnsNow, overlapsNow := s.fleet.count()
	for turnsNow == turns && !s.fleet.fails() && limited.Err() == nil { // one who has just retired may have left a place in the queue
		pause(limited, 10*time.Millisecond)
		turnsNow, overlapsNow = s.fleet.count()
	}
	return ActResult{
		Name: a.name, Title: a.title, Stage: a.stage.String(), Promises: a.promises, Seconds: time.Since(began).Seconds(),
		Turns: turnsNow - turns, Overlaps: overlapsNow - overlaps,
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
			turns, overlaps := s.fleet.count()
			s.mu.Lock()
			name := s.act
			s.mu.Unlock()
			members := 0
			for _, r := range s.fleet.records() {
				if !r.Crashed {
					members++
				}
			}
			s.fleet.mu.Lock()
			inside := strings.Join(s.fleet.inside, ", ")
			s.fleet.mu.Unlock()
			s.opts.Watch(Situation{time.Since(s.began), name, members, inside, turns, overlaps})
		}
	}()
	return done
}

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
