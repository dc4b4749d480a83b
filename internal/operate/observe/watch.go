package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Limits bound what a watch may cost the server.
type Limits struct {
	For      time.Duration // of the window; 0 until the context ends
	Commands int64         // seen; 0 for no limit
	Load     float64       // share of a core that the server's main thread may use; 0: 0.9
}

// Cost is what a watch did cost.
type Cost struct {
	Commands    int64   `json:"commands"`
	Bytes       int64   `json:"bytes"`
	BufferPeak  int64   `json:"buffer_peak_bytes"` // the server's output buffer for us
	CPUBefore   float64 `json:"server_cpu_before"` // share of a core
	CPUDuring   float64 `json:"server_cpu_during"`
	ReadsOfOurs int64   `json:"reads"` // GET, PTTL ... that we sent to learn the state of keys

	// Why the load, or the buffer, is not known: then its figure is 0, and the limit on it was not kept. Empty while it is known.
	LoadUnknown   string `json:"load_unknown,omitempty"`
	BufferUnknown string `json:"buffer_unknown,omitempty"`
}

// watch is a live observation of one master. Its methods are safe for concurrent use.
type watch struct {
	addr string

	limits Limits
	ctx    context.Context // of the window; what ends it is its cause
	cancel context.CancelCauseFunc
	stream *traffic.Monitor
	probe  *prober
	guard  *guard
	group  sync.WaitGroup

	mu        sync.Mutex
	obs       *Observer
	command   traffic.Command
	commands  int64 // that came
	bytes     int64
	strangers bool // addresses came that CLIENT LIST has not been asked about
	cluster   bool
	slots     []*topology.Table // of its cluster, at the last looks; empty where that is not known
	givers    map[string]bool   // nodes that give it a slot, by address
	clients   map[string]Peer   // that CLIENT LIST has shown last: an address may have been another's before
	err       error
	broke     bool // the connection, before the window was over
}

// Stopped is why a watch ended before its time.
type Stopped struct{ Why string }

func (s *Stopped) Error() string { return s.Why }

// errOver ends a window as planned.
var errOver = errors.New("the window is over")

// newWatch connects to one master and watches it until a limit is reached or ctx ends; wait tells.
func newWatch(ctx context.Context, end *endpoint.Endpoint, addr string, opts Options, limits Limits) (*watch, error) {
	limits.Load = cmp.Or(limits.Load, 0.9)
	w := &watch{addr: addr, limits: limits, givers: map[string]bool{}, cluster: end.Kind == endpoint.Cluster}
	var err error
	if w.guard, err = newGuard(ctx, end, addr, limits); err != nil {
		return nil, err
	}
	if w.probe, err = newProber(ctx, end, addr); err != nil {
		w.guard.close()
		return nil, err
	}
	others := opts.Ignore
	opts.Ignore = func(a string) bool { return a == w.probe.addr || a == w.guard.addr || others(a) }
	opts.Wonder = w.probe.wonder
	w.probe.match = opts.Match
	w.obs = New(opts)
	w.obs.server = addr
	w.stream, err = traffic.OpenMonitor(ctx, end, addr, func(ask func(...string) (string, error)) {
		w.guard.field, w.guard.value, _ = identity(ask)
	})
	if err != nil {
		w.guard.close()
		w.probe.close()
		return nil, endpoint.Explain(err)
	}
	ctx, w.cancel = context.WithCancelCause(ctx)
	w.ctx = ctx
	w.keep(w.askSlots(ctx))
	w.rename(ctx)
	w.group.Go(func() { w.read(ctx) })
	w.group.Go(func() { w.probe.run(ctx, end.DB) })
	w.group.Go(func() { w.watchOver(ctx) })
	return w, nil
}

// wait waits for the end and returns why it was not as planned: a *Stopped, the context's cause, or what
// broke the connection.
func (w *watch) wait() error {
	w.group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.obs.Finish()
	return w.err
}

// ending tells that the window is over, or that a limit ended it.
func (w *watch) ending() bool { return w.ctx.Err() != nil }

// lost tells that the connection broke before the window was over.
func (w *watch) lost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broke
}

// costs says what the watch did cost so far.
func (w *watch) costs() Cost {
	cost := w.guard.costs()
	w.mu.Lock()
	defer w.mu.Unlock()
	cost.Commands, cost.Bytes, cost.ReadsOfOurs = w.commands, w.bytes, w.probe.sent.Load()
	return cost
}

// read takes in the stream.
func (w *watch) read(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = w.stream.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer w.stream.Close()
	if w.limits.For > 0 {
		timer := time.AfterFunc(w.limits.For, func() { w.cancel(errOver) })
		defer timer.Stop()
	}
	var err error
	for err == nil {
		if err = w.stream.Next(&w.command); err == nil || errors.Is(err, traffic.ErrUnread) {
			err = w.take(ctx, err != nil)
		}
	}
	w.finish(ctx, err)
}

func (w *watch) finish(ctx context.Context, err error) {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var stopped *Stopped
	switch {
	case errors.Is(err, errOver):
	case errors.As(err, &stopped), errors.Is(err, context.Canceled):
		w.err = err
	case errors.Is(err, io.EOF):
		w.broke = true
		w.err = &Stopped{"the server closed the connection: its client-output-buffer-limit may have been reached"}
	default:
		w.broke = true
		w.err = endpoint.Explain(err)
	}
	w.cancel(errOver)
}

// take takes in one command.
func (w *watch) take(ctx context.Context, unread bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.command
	w.bytes = w.stream.Bytes
	w.commands++
	_, known := w.obs.names[c.Addr]
	w.strangers = w.strangers || !known && !c.InScript()
	switch {
	case unread:
		w.obs.Garbled()
	case c.Addr == w.probe.addr:
		return w.probe.take(ctx, w.obs, c)
	case w.given(c):
		w.obs.Keys.Apply(c)
	default:
		w.obs.Take(c)
	}
	if w.limits.Commands > 0 && w.commands >= w.limits.Commands {
		return &Stopped{fmt.Sprintf("the limit of %d commands is reached", w.limits.Commands)}
	}
	return nil
}

// watchOver looks after the server's load, and asks for names, until the window ends.
func (w *watch) watchOver(ctx context.Context) {
	defer w.guard.close()
	for n := 0; ; n++ {
		if why := w.guard.look(ctx); why != "" {
			w.cancel(&Stopped{why})
			return
		}
		if lifetime.Sleep(ctx, 500*time.Millisecond) != nil {
			return
		}
		// A report may hold the reader up: that must not hold up these looks.
		strangers, table := false, w.askSlots(ctx)
		if w.mu.TryLock() {
			strangers = w.strangers
			w.keep(table)
			w.mu.Unlock()
		}
		if strangers && n%4 == 0 {
			w.rename(ctx)
		}
	}
}

// rename asks CLIENT LIST who is connected.
func (w *watch) rename(ctx context.Context) {
	peers := w.guard.peers(ctx)
	if !w.mu.TryLock() {
		return // the next time, then
	}
	defer w.mu.Unlock()
	if peers != nil {
		w.clients = peers
	}
	for addr, p := range peers {
		delete(w.givers, addr)
		w.obs.Name(addr, p)
	}
	w.strangers = false
}
