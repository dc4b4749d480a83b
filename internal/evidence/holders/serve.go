package holders

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// Held is a lock that a Taker holds.
type Held struct {
	Release func(context.Context) error
	Lock    lockmigrate.Lock // it knows its deadline, and tells of a loss; nil: there is no more than a release
}

// Taker is a Go lock as the line protocol of the holders needs it.
type Taker interface {
	// Acquire takes the lock. An error that matches ErrBusy says that another holds it; turns try again then, and count no error.
	Acquire(ctx context.Context, key string) (Held, error)
}

// TakerOf makes a Taker of a Locker's Acquire.
func TakerOf(acquire func(context.Context, string) (lockmigrate.Lock, error)) Taker {
	return taker(acquire)
}

// Of is the Taker of a new Locker, or why there is none.
func Of(locker lockmigrate.Locker, err error) (Taker, error) {
	if err != nil {
		return nil, err
	}
	return TakerOf(locker.Acquire), nil
}

type taker func(context.Context, string) (lockmigrate.Lock, error)

func (t taker) Acquire(ctx context.Context, key string) (Held, error) {
	lock, err := t(ctx, key)
	if err != nil {
		return Held{}, err
	}
	return Held{lock.Release, lock}, nil
}

// Trier is a Taker that has one attempt without a wait, the command `try`, and tells by ErrBusy what is no error of the lock.
type Trier interface {
	TryAcquire(ctx context.Context, key string) (Held, error)
}

// Clocked is a Taker whose wall clock can be moved, the command `clock`.
type Clocked interface {
	Clock(offset time.Duration)
}

// ErrBusy says that the lock was not had within the wait.
var ErrBusy = errors.New("busy")

// Maker makes a Taker from a pool and the holder's name=value arguments.
type Maker func(pool *redis.Pool, args map[string]string) (Taker, error)

const serveAs = "LOCKMIGRATE_GO_HOLDER"

// ServeIfAsked makes a test binary a holder process when StartGo has started it as one; TestMain calls
// it first. It does not return then.
func ServeIfAsked(makers map[string]Maker) {
	if kind := os.Getenv(serveAs); kind != "" {
		exit(serve(kind, makers[kind], os.Args[1], os.Args[2:]))
	}
}

// Serve makes this process the holder that its command line names, KIND URL [name=value ...]: the main function of a
// program that holds locks of other modules. The url is among the makers' arguments. It does not return.
func Serve(makers map[string]Maker) {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "go holder: want KIND redis://[:password@]host:port/db [name=value ...]")
		os.Exit(2)
	}
	exit(serve(os.Args[1], makers[os.Args[1]], os.Args[2], os.Args[3:]))
}

// exit ends the process, and says on stderr why: nobody can ask it afterwards.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go holder:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "go holder: the input has ended, or said quit")
	os.Exit(0)
}

// StartGo starts the test binary itself as a holder of the named kind: a process that can be killed.
func StartGo(t testing.TB, kind, url string, options ...Option) *Holder {
	t.Helper()
	cmd := exec.Command(os.Args[0], url)
	cmd.Env = append(os.Environ(), serveAs+"="+kind, "GOTRACEBACK=all") // its last words are all that is left of it
	return start(t, Kind{Name: kind, module: "go"}, cmd, options)
}

// StartProgram starts a program whose main function is Serve: a holder of another build.
func StartProgram(t testing.TB, program, kind, url string, options ...Option) *Holder {
	t.Helper()
	return start(t, Kind{Name: kind, module: "go"}, exec.Command(program, kind, url), options)
}

// Millis reads a holder's argument in milliseconds.
func Millis(args map[string]string, name string, otherwise time.Duration) time.Duration {
	if n, err := strconv.Atoi(args[name]); err == nil {
		return time.Duration(n) * time.Millisecond
	}
	return otherwise
}

// server is one holder process in Go.
type server struct {
	taker   Taker
	id      string
	referee *redis.Pool
	held    map[string]Held
	out     sync.Mutex
	working context.Context // of those who take turns, until stop
	stop    context.CancelFunc
	turning sync.WaitGroup
	taken   atomic.Int64
	long    time.Duration // how long one turn of so many is
	rarely  int           // 0: none
	pause   time.Duration // between two turns, on average
	beat    *pulse
}

func serve(kind string, maker Maker, url string, words []string) error {
	if maker == nil {
		return fmt.Errorf("no such kind: %s", kind)
	}
	args := arguments(kind, words)
	args["url"] = url
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialURLContext(ctx, url, redis.DialContextFunc(rawconn.DialContext))
	}}
	book := url // a test may put a proxy between the lock and the server, but not between the book and it
	if args["book"] != "" {
		book = args["book"]
		if !strings.Contains(book, "://") {
			book = "redis://" + book // HOST:PORT, as all other holders want it
		}
	}
	referee := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialURLContext(ctx, book) }}
	taker, err := maker(pool, args)
	if err != nil {
		return err
	}
	s := &server{taker: taker, id: args["id"], referee: referee, held: map[string]Held{}, beat: beating()}
	s.working, s.stop = context.WithCancel(context.Background())
	s.long, s.pause = Millis(args, "long", 0), Millis(args, "pause", 0)
	s.rarely, _ = strconv.Atoi(args["rarely"])
	s.say(Event{Event: "ready", Kind: kind, Version: "go", PID: os.Getpid(), ID: s.id})
	s.loop(bufio.NewScanner(os.Stdin))
	s.say(Event{Event: "bye"})
	return nil
}

func arguments(kind string, words []string) map[string]string {
	args := map[string]string{"id": fmt.Sprintf("%s-%d", kind, os.Getpid())}
	for _, w := range words {
		if name, value, found := strings.Cut(w, "="); found {
			args[name] = value
		}
	}
	return args
}

// loop reads commands; turns run beside it so that stop is heard.
func (s *server) loop(in *bufio.Scanner) {
	for in.Scan() {
		words := strings.Fields(in.Text())
		switch {
		case len(words) == 0:
		case words[0] == "acquire" && len(words) == 2:
			s.acquire(words[0], words[1], s.taker.Acquire)
		case words[0] == "try" && len(words) == 2:
			if t, ok := s.taker.(Trier); ok {
				s.acquire(words[0], words[1], t.TryAcquire)
			} else {
				s.say(Event{Event: "unsupported", Op: words[0]})
			}
		case words[0] == "clock" && len(words) == 2:
			s.clock(words[1])
		case words[0] == "release" && len(words) == 2:
			s.release(words[1])
		case words[0] == "turns" && len(words) == 5:
			n, _ := strconv.Atoi(words[3])
			hold, _ := strconv.Atoi(words[4])
			if s.working.Err() != nil {
				s.working, s.stop = context.WithCancel(context.Background())
			}
			working := s.working
			s.turning.Go(func() {
				s.turns(working, strings.Split(words[1], ","), words[2], n, time.Duration(hold)*time.Millisecond)
			})
		case words[0] == "stop":
			s.stop()
		case words[0] == "quit":
			s.stop()
			s.turning.Wait()
			return
		default:
			s.say(Event{Event: "error", Op: "protocol", Class: "usage", Message: in.Text()})
		}
	}
}

func (s *server) clock(word string) {
	offset, err := strconv.ParseInt(word, 10, 64)
	t, ok := s.taker.(Clocked)
	switch {
	case err != nil:
		s.say(Event{Event: "error", Op: "protocol", Class: "usage", Message: "not a number: " + word})
	case !ok:
		s.say(Event{Event: "unsupported", Op: "clock"})
	default:
		t.Clock(time.Duration(offset) * time.Millisecond)
		s.say(Event{Event: "clock", OffsetMS: offset})
	}
}

func (s *server) acquire(op, key string, take func(context.Context, string) (Held, error)) {
	began := time.Now()
	held, err := take(context.Background(), key)
	if _, tells := s.taker.(Trier); tells && err != nil && !errors.Is(err, ErrBusy) {
		s.say(Event{Event: "error", Op: op, Class: fmt.Sprintf("%T", err), Key: key, Message: err.Error()})
		return
	}
	if err != nil {
		s.say(Event{Event: "busy", Key: key, Message: err.Error(), WaitedMS: millis(began)})
		return
	}
	s.held[key] = held
	s.say(Event{Event: "acquired", Key: key, WaitedMS: millis(began)})
}

func (s *server) release(key string) {
	held, ok := s.held[key]
	err := errors.New("not held")
	if ok {
		delete(s.held, key)
		err = held.Release(context.Background())
	}
	if err != nil {
		s.say(Event{Event: "error", Op: "release", Key: key, Message: err.Error()})
		return
	}
	s.say(Event{Event: "released", Key: key})
}

// turns takes turns on one of the keys at a time. A * in the referee's name stands for the key.
func (s *server) turns(working context.Context, keys []string, referee string, n int, hold time.Duration) {
	done := Event{Event: "done"}
	defer func() { s.say(done) }()
	for done.Turns < n && working.Err() == nil {
		if s.pause > 0 {
			time.Sleep(rand.N(2 * s.pause))
		}
		key, began := keys[rand.IntN(len(keys))], time.Now()
		held, err := s.taker.Acquire(working, key)
		if errors.Is(err, ErrBusy) || err != nil && working.Err() != nil { // a key may be stuck: who is stopped does not wait on
			continue
		}
		if err != nil {
			done.Errors++
			failed := Event{Event: "error", Op: "acquire", Key: key, Message: err.Error(), Began: began.UnixMicro()}
			failed.ended(err)
			s.say(failed)
			time.Sleep(20 * time.Millisecond) // as the other holders pause after an exception
			continue
		}
		done.Turns++
		turn := Event{Event: "turn", Key: key, N: int(s.taken.Add(1)), WaitedMS: millis(began), Began: time.Now().UnixMicro()}
		work := hold
		if turn.Long = s.rarely > 0 && rand.IntN(s.rarely) == 0; turn.Long {
			work = s.long
		}
		if err = s.critical(held.Lock, strings.ReplaceAll(referee, "*", key), &turn, work); err != nil {
			done.Errors++
			s.say(Event{Event: "error", Op: "referee", Key: key, Message: err.Error()})
		}
		err = held.Release(context.Background())
		turn.ended(err)
		if err != nil {
			done.Errors++
			failed := turn
			failed.Event, failed.Op, failed.Message = "error", "release", err.Error()
			s.say(failed)
		}
		if turn.Inside > 1 {
			done.Overlaps++
		}
		s.say(turn)
	}
}

// ended notes the end of a turn, and what its lock said of itself.
func (e *Event) ended(err error) {
	var lock *lockmigrate.Error
	e.Ended = time.Now().UnixMicro()
	if e.Lost = errors.Is(err, lockmigrate.ErrLost); e.Lost && errors.As(err, &lock) {
		e.Late = lock.Reason == lockmigrate.ReasonDeadline || e.Until > 0 && e.Ended >= e.Until
	}
}

// critical enters the referee's book, leaves it when the work is done or the holder was told of a loss, and notes how many were inside and until
// when the lock was certain. Who has been told before does not enter.
func (s *server) critical(lock lockmigrate.Lock, referee string, turn *Event, work time.Duration) error {
	told := context.Background()
	if lock != nil {
		told, turn.Stage = lock.Context(), lock.Stage().String()
		turn.Until = lock.Expiry().UnixMicro()
	}
	if told.Err() != nil {
		return nil
	}
	conn := s.referee.Get()
	defer conn.Close()
	if _, err := conn.Do("HSET", referee, s.id, turn.N); err != nil {
		return err
	}
	entered := *turn
	entered.Event = "entered"
	s.say(entered)
	var err error
	if turn.Inside, err = redis.Int(conn.Do("HLEN", referee)); err != nil {
		return err
	}
	over := time.NewTimer(work)
	defer over.Stop()
	select {
	case <-over.C:
	case <-told.Done():
	}
	if lock != nil {
		turn.leaves(lock, s.beat)
	}
	if _, err = conn.Do("HDEL", referee, s.id); err == nil {
		_, err = conn.Do("INCR", referee+":turns")
	}
	return err
}

// leaves notes the end of the work. A context whose deadline is over is waited for: after a stop its timer may be due, and has not fired yet.
func (e *Event) leaves(lock lockmigrate.Lock, beat *pulse) {
	e.Left, e.Until = time.Now().UnixMicro(), lock.Expiry().UnixMicro()
	if e.Left >= e.Until {
		select {
		case <-lock.Context().Done():
		case <-time.After(time.Second):
		}
	}
	if now := time.Now(); lock.Context().Err() != nil {
		e.Told, e.Due = now.UnixMicro(), beat.since(now).UnixMicro()
	}
}

// pulse knows when its process did not run: stopped, or starved of the processor. A timer that was due
// meanwhile could not fire.
type pulse struct {
	mu   sync.Mutex
	last time.Time
	gaps [][2]time.Time // the latest
}

func beating() *pulse {
	const every = 2 * time.Millisecond
	b := &pulse{last: time.Now()}
	go func() {
		for {
			time.Sleep(every)
			b.mu.Lock()
			now := time.Now()
			if now.Sub(b.last) > 3*every {
				b.gaps = append(b.gaps[max(0, len(b.gaps)-50):], [2]time.Time{b.last, now})
			}
			b.last = now
			b.mu.Unlock()
		}
	}()
	return b
}

// since returns when a timer that was seen to fire now may have been due: the beginning of the gaps that
// ended just now, or now itself.
func (b *pulse) since(now time.Time) time.Time {
	const just = 100 * time.Millisecond
	b.mu.Lock()
	defer b.mu.Unlock()
	due := now
	if b.last.Before(due) {
		due = b.last
	}
	for i := len(b.gaps) - 1; i >= 0 && due.Sub(b.gaps[i][1]) < just; i-- {
		due = b.gaps[i][0]
	}
	return due
}

func (s *server) say(e Event) {
	line, err := json.Marshal(e)
	if err != nil {
		line = []byte(`{"event":"garbage"}`)
	}
	s.out.Lock()
	defer s.out.Unlock()
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		fmt.Fprintf(os.Stderr, "go holder: say %s: %v\n", e.Event, err)
	}
}

func millis(since time.Time) float64 { return float64(time.Since(since)) / float64(time.Millisecond) }
