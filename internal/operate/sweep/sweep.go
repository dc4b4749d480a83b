// Package sweep clears what a migration leaves on the keys: ghosts, which nobody holds and nothing will
// remove, and tokens without a TTL.
//
// A key is changed only when all of these hold; every other key is left, and the summary says why:
//
//   - The value is certainly a lock: an expiry of a known dialect, a Redisson hash, or, where Tokens asks for
//     it, a token, a bridge value or a reentrant hash with a random owner. A hash of the application with
//     one number in it is none.
//   - An expiry is over for longer than GhostAfter by the server's clock AND by this host's. Where the two
//     clocks differ by more than MostApart, nothing is swept: one of them is wrong, and a live lock would
//     look dead by it.
//   - The key still holds the very value that was looked at: each change is one compare-and-set script. So a
//     client that takes the lock in between keeps it.
//
// A sweep that ends in the middle is resumed by running it again: what it has cleared is no candidate any
// more. The journal has a line before each change and one after it, with the value, so that every change can
// be explained and undone.
//
// What it cannot know: a holder that is silent for longer than GhostAfter but works still. Legacy clients
// take such a value over too. And a timestamp of the application under a lock's pattern reads as an expiry.
//
// Least rights: see SECURITY.md.
package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// Options of a sweep.
type Options struct {
	Match      []string
	GhostAfter time.Duration
	TTL        time.Duration // given to ghosts instead of removing them, and to tokens; 0: ghosts are removed
	Tokens     bool          // tokens without TTL too
	Execute    bool
	Rate       int // changes in a second; 0 for no limit

	Now      func() time.Time  // this host's clock; nil for the usual one
	Journal  func(Entry) error // told before and after each change
	Emit     func(Entry) error // told of each candidate with what came of it
	Progress func(Progress)    // told now and then, nil for nobody
}

// Progress is where a sweep stands: the census of the present server, and the changes on all.
type Progress struct {
	census.Progress
	Changed int64
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
	Left    Result = "left"              // no candidate, though it may be in the way: Note says why
)

// MostApart is how far this host's clock and a server's may differ. Clocks that a time service disciplines
// agree within milliseconds; a minute is a clock that nobody sets.
const MostApart = time.Minute

// shownLeft is how many keys that were left are told of one by one.
const shownLeft = 20

// ClockError says that a server was not swept because one of the clocks is wrong.
type ClockError struct {
	Server string
	Ahead  time.Duration // this host's clock less the server's
}

func (e *ClockError) Error() string {
	which := "ahead of"
	if e.Ahead < 0 {
		which = "behind"
	}
	return fmt.Sprintf("this host's clock is %v %s the clock of %s: one of them is wrong, and a live lock may look dead by it", e.Ahead.Abs().Round(time.Second), which, e.Server)
}

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
	Unread     int64            `json:"unread"` // keys that this user may not read: they are not judged
	Why        string           `json:"why_unread,omitempty"`
	Left       map[string]int64 `json:"left"` // keys that were not swept though they may be in the way, by the reason
	Seconds    float64          `json:"seconds"`
	Complete   bool             `json:"complete"`
	Executed   bool             `json:"executed"`
}

// Sweeper is one run.
type Sweeper struct {
	opts    Options
	end     *endpoint.Endpoint
	summary Summary
	changed int64
	at      census.Progress
	left    int
	began   time.Time // with this server
	next    time.Time // of the next change, where there is a rate
}

// New returns a sweep that has done nothing.
func New(end *endpoint.Endpoint, opts Options) *Sweeper {
	return &Sweeper{opts: opts, end: end, summary: Summary{ByResult: map[Result]int64{}, ByFormat: map[string]int64{}, Left: map[string]int64{}, Executed: opts.Execute}}
}

// Run sweeps every master. The summary speaks of what was done even where it ends with an error.
func (s *Sweeper) Run(ctx context.Context) (Summary, error) {
	began := time.Now()
	err := s.run(ctx)
	s.summary.Seconds = time.Since(began).Seconds()
	s.summary.Complete = err == nil && s.summary.Unread == 0
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
	return s.end.StillMasters(ctx, masters)
}

// server sweeps one master: the census finds, batches of candidates are looked at again and cleared.
func (s *Sweeper) server(ctx context.Context, addr string) error {
	conn, err := s.end.DialAddr(ctx, addr)
	if err != nil {
		return err
	}
	s.began, s.at = time.Now(), census.Progress{}
	b := &batch{s: s, addr: addr, conn: conn}
	defer func() { _ = b.conn.Close() }()
	if err := b.readClocks(ctx, 5); err != nil {
		return err
	}
	raw, err := s.end.DialRaw(ctx, addr)
	if err != nil {
		return err
	}
	opts := census.Options{Match: s.opts.Match, Confidence: census.High, GhostAfter: s.opts.GhostAfter}
	opts.Emit = func(r *census.Row) error {
		switch {
		case s.wanted(&r.Look, r.Finding):
			b.add(&r.Look)
		case r.State == census.Expired && r.HasExpiry:
			return s.leave(b.entry(&r.Look, r.Finding), fmt.Sprintf("expired for less than --ghost-after %v", s.opts.GhostAfter))
		}
		if len(b.keys) >= batchSize {
			return b.clear(ctx)
		}
		return nil
	}
	opts.Progress = func(p census.Progress) {
		s.at = p
		s.tell()
	}
	taken := census.New(opts)
	err = taken.Scan(ctx, raw)
	s.summary.Scanned += taken.Summary().Scanned
	if n := taken.Summary().Unread; n > 0 {
		s.summary.Unread += n
		s.summary.Why = "this user has no right to the key, or it was moving between nodes"
	}
	if err == nil {
		err = b.clear(ctx)
	}
	return endpoint.Explain(err)
}

// tell says where the sweep stands: after each page of the census, and, as a page of ghosts takes long, after each change.
func (s *Sweeper) tell() {
	if s.opts.Progress != nil {
		p := s.at
		p.Elapsed = time.Since(s.began)
		s.opts.Progress(Progress{p, s.changed})
	}
}

// wanted tells a lock that nobody holds, or that nothing will end. One with a TTL the server ends.
func (s *Sweeper) wanted(k *census.Look, f census.Finding) bool {
	return k.TTL == census.NoTTL && (f.State == census.Ghost || f.Format == census.TokenNoTTL)
}

// doubt says why a finding is not swept; it is empty for what certainly is a lock that nobody needs.
func (s *Sweeper) doubt(f census.Finding) string {
	switch f.Format {
	case census.Redisson:
		return ""
	case census.HashUID:
		if f.Confidence < census.High {
			return "a hash that no lock is known to write: it may be the application's"
		}
	case census.TokenNoTTL:
		if f.Confidence < census.High {
			return "a flag or a number without TTL: it may be the application's"
		}
	case census.Bridge:
	default:
		return "" // an expiry
	}
	if !s.opts.Tokens {
		return "without TTL, but no expiry: --tokens gives it one"
	}
	return ""
}

// leave counts a key that is not swept, and tells of the first of them.
func (s *Sweeper) leave(e Entry, why string) error {
	s.summary.Left[why]++
	s.left++
	if s.left > shownLeft || s.opts.Emit == nil {
		return nil
	}
	e.Result, e.Note = Left, why
	return s.opts.Emit(e)
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
	return lifetime.Sleep(ctx, wait)
}
