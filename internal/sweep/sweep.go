// Package sweep clears what a migration leaves on the keys: ghosts, which nobody holds and nothing will
// remove, and tokens without a TTL.
//
// Every change is one compare-and-set script: it acts only while the key holds the very value that was
// looked at. So a client that takes the lock in between keeps it. A sweep that ends in the middle is
// resumed by running it again: what it has cleared is no candidate any more. The journal has a line before
// each change and one after it, with the value, so that every change can be explained and undone.
//
// What it cannot know: a holder that is silent for longer than GhostAfter but works still. Legacy clients
// take such a value over all the same.
package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/census"
	"github.com/lockmigrate/lockmigrate/internal/endpoint"
)

// Options of a sweep.
type Options struct {
	Match      []string
	GhostAfter time.Duration
	TTL        time.Duration // given to ghosts instead of removing them, and to tokens; 0: ghosts are removed
	Tokens     bool          // tokens without TTL too
	Execute    bool
	Rate       int // changes in a second; 0 for no limit
	ScanRate   int // keys looked at in a second; 0 for no limit
	Limit      int // changes in all; 0 for no limit

	Journal func(Entry) error // told before and after each change
	Emit    func(Entry) error // told of each candidate with what came of it
	// Progress is told of the census now and then; done is the share of this server's keys, negative if not known.
	Progress func(scanned int64, done float64, changed int64)
}

// Action is what is done to a key.
type Action string

// The actions.
const (
	Remove Action = "remove"
	Expire Action = "expire"
)

// Result is what came of it.
type Result string

// The results.
const (
	Planned Result = "planned" // dry, or about to be done
	Done    Result = "done"
	Changed Result = "changed-meanwhile" // the key holds something else by now: left alone
	Refused Result = "refused"           // the server said no
	Unsure  Result = "unsure"            // no reply came: it may have been done
)

// Entry is one key of a sweep.
type Entry struct {
	At        time.Time `json:"at"` // the server's clock as of the look
	Server    string    `json:"server"`
	DB        int       `json:"db"`
	Key       string    `json:"key"`
	KeyBytes  []byte    `json:"key_base64,omitempty"` // where the key is no UTF-8
	Format    string    `json:"format"`
	State     string    `json:"state"`
	Value     string    `json:"value,omitempty"`
	ValueRaw  []byte    `json:"value_base64,omitempty"`
	Fields    []string  `json:"fields,omitempty"` // of a hash: names and values in turn
	ExpiredMS int64     `json:"expired_ms_ago,omitempty"`
	Action    Action    `json:"action"`
	TTLMS     int64     `json:"ttl_ms,omitempty"`
	Result    Result    `json:"result"`
	Note      string    `json:"note,omitempty"`
}

// Summary is what a sweep came to.
type Summary struct {
	Scanned    int64            `json:"scanned"`
	Candidates int64            `json:"candidates"`
	ByResult   map[Result]int64 `json:"by_result"`
	ByFormat   map[string]int64 `json:"by_format"`
	Seconds    float64          `json:"seconds"`
	Complete   bool             `json:"complete"`
	Executed   bool             `json:"executed"`
}

// errLimit ends a census when enough is changed.
var errLimit = errors.New("the limit of changes is reached")

// Sweeper is one run.
type Sweeper struct {
	opts    Options
	end     *endpoint.Endpoint
	summary Summary
	changed int64
	next    time.Time // of the next change, where there is a rate
}

// New returns a sweep that has done nothing.
func New(end *endpoint.Endpoint, opts Options) *Sweeper {
	return &Sweeper{opts: opts, end: end, summary: Summary{ByResult: map[Result]int64{}, ByFormat: map[string]int64{}, Executed: opts.Execute}}
}

// Run sweeps every master. The summary speaks of what was done even where it ends with an error.
func (s *Sweeper) Run(ctx context.Context) (Summary, error) {
	began := time.Now()
	err := s.run(ctx)
	s.summary.Seconds = time.Since(began).Seconds()
	s.summary.Complete = err == nil
	if errors.Is(err, errLimit) {
		err = nil
	}
	return s.summary, err
}

func (s *Sweeper) run(ctx context.Context) error {
	masters, err := s.end.Masters(ctx)
	if err != nil {
		return err
	}
	for _, addr := range masters {
		if err := s.server(ctx, addr); err != nil {
			return err
		}
	}
	return nil
}

// server sweeps one master: the census finds, batches of candidates are looked at again and cleared.
func (s *Sweeper) server(ctx context.Context, addr string) error {
	conn, err := s.end.DialAddr(ctx, addr)
	if err != nil {
		return err
	}
	b := &batch{s: s, addr: addr, conn: conn}
	defer func() { _ = b.conn.Close() }()
	raw, err := s.end.DialRaw(ctx, addr)
	if err != nil {
		return err
	}
	opts := census.Options{Match: s.opts.Match, Confidence: census.High, GhostAfter: s.opts.GhostAfter, Rate: s.opts.ScanRate}
	opts.Emit = func(r *census.Row) error {
		if s.wanted(r.Finding) {
			b.keys = append(b.keys, string(r.Key))
			b.now = r.Now
		}
		if len(b.keys) >= batchSize {
			return b.clear(ctx)
		}
		return nil
	}
	opts.Progress = func(p census.Progress) {
		if s.opts.Progress != nil {
			s.opts.Progress(s.summary.Scanned+p.Scanned, p.Done, s.changed)
		}
	}
	taken := census.New(opts)
	err = taken.Scan(ctx, raw)
	s.summary.Scanned += taken.Summary().Scanned
	if err == nil {
		err = b.clear(ctx)
	}
	if err != nil && !errors.Is(err, errLimit) {
		return endpoint.Explain(err)
	}
	return err
}

// wanted tells whether a finding is to be cleared.
func (s *Sweeper) wanted(f census.Finding) bool {
	return f.State == census.Ghost || s.opts.Tokens && f.Format == census.TokenNoTTL
}

// pace waits for the next change that the rate allows.
func (s *Sweeper) pace(ctx context.Context) error {
	if s.opts.Rate <= 0 {
		return nil
	}
	now := time.Now()
	if s.next.Before(now) {
		s.next = now
	}
	wait := s.next.Sub(now)
	s.next = s.next.Add(time.Second / time.Duration(s.opts.Rate))
	if wait < time.Millisecond {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
