package census

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// SweepOptions say which keys to clear, and how.
type SweepOptions struct {
	Match      []string
	GhostAfter time.Duration
	TTL        time.Duration // given to ghosts instead of removing them, and to tokens; 0: ghosts are removed
	Tokens     bool          // tokens without TTL too
	Execute    bool
	Rate       int // changes in a second; 0 for no limit

	Now      func() time.Time       // this host's clock; nil for the usual one
	Journal  func(SweepEntry) error // told before and after each change
	Emit     func(SweepEntry) error // told of each candidate with what came of it
	Progress func(SweepProgress)    // told now and then, nil for nobody
}

// SweepProgress is where a sweep stands: the census of the present server, and the changes on all.
type SweepProgress struct {
	Progress
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

// SweepEntry is one key of a sweep.
type SweepEntry struct {
	At        time.Time `json:"at"` // the server's clock as of the look
	Server    string    `json:"server"`
	DB        int       `json:"db"`
	Key       string    `json:"key"`
	KeyBytes  []byte    `json:"key_base64,omitempty"` // where the key is no UTF-8
	Format    Format    `json:"format"`
	State     State     `json:"state"`
	Value     string    `json:"value,omitempty"`
	ValueRaw  []byte    `json:"value_base64,omitempty"`
	Fields    []string  `json:"fields,omitempty"` // of a hash: names and values in turn
	ExpiredMS int64     `json:"expired_ms_ago,omitempty"`
	Action    Action    `json:"action"`
	TTLMS     int64     `json:"ttl_ms,omitempty"`
	Result    Result    `json:"result"`
	Note      string    `json:"note,omitempty"`
}

// Swept is what a sweep came to.
type Swept struct {
	Scanned    int64            `json:"scanned"`
	Candidates int64            `json:"candidates"`
	ByResult   map[Result]int64 `json:"by_result"`
	ByFormat   map[Format]int64 `json:"by_format"`
	Unread     int64            `json:"unread"` // keys that this user may not read: they are not judged
	Why        string           `json:"why_unread,omitempty"`
	Left       map[string]int64 `json:"left"` // keys that were not swept though they may be in the way, by the reason
	Seconds    float64          `json:"seconds"`
	Complete   bool             `json:"complete"`
	Executed   bool             `json:"executed"`
}

// sweeper is one run.
type sweeper struct {
	opts    SweepOptions
	end     *endpoint.Endpoint
	swept   Swept
	changed int64
	rate    rate // of changes

	// Of the present server.
	addr  string
	conn  redis.Conn
	began time.Time
	at    Progress
	now   protocol.Instant // the earlier of the two clocks
	keys  []Look           // candidates that wait to be judged by both clocks
}

// sweepBatch is how many candidates are judged at once.
const sweepBatch = 100

// Sweep clears what a migration leaves on the keys of every master: ghosts, which nobody holds and nothing will remove, and tokens without a
// TTL. What it returns speaks of what was done even beside an error.
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
func Sweep(ctx context.Context, end *endpoint.Endpoint, opts SweepOptions) (Swept, error) {
	s := &sweeper{opts: opts, end: end, rate: rate{most: opts.Rate}, swept: Swept{ByResult: map[Result]int64{}, ByFormat: map[Format]int64{}, Left: map[string]int64{}, Executed: opts.Execute}}
	began := time.Now()
	err := s.all(ctx)
	s.swept.Seconds = time.Since(began).Seconds()
	s.swept.Complete = err == nil && s.swept.Unread == 0
	return s.swept, err
}

func (s *sweeper) all(ctx context.Context) error {
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

// server sweeps one master: the census finds, batches of candidates are judged again and cleared.
func (s *sweeper) server(ctx context.Context, addr string) (err error) {
	if s.conn, err = s.end.DialAddr(ctx, addr); err != nil {
		return err
	}
	defer s.conn.Close()
	s.addr, s.began, s.at = addr, time.Now(), Progress{}
	if err := s.readClocks(ctx, 5); err != nil {
		return err
	}
	raw, err := s.end.DialRaw(ctx, addr)
	if err != nil {
		return err
	}
	taken := New(Options{
		Match: s.opts.Match, Confidence: High, GhostAfter: s.opts.GhostAfter,
		Emit: func(r *Row) error { return s.found(ctx, r) },
		Progress: func(p Progress) {
			s.at = p
			s.tell()
		},
	})
	err = taken.Scan(ctx, raw)
	s.swept.Scanned += taken.summary.Scanned
	if n := taken.summary.Unread; n > 0 {
		s.swept.Unread += n
		s.swept.Why = "this user has no right to the key, or it was moving between nodes"
	}
	if err == nil {
		err = s.clear(ctx)
	}
	return endpoint.Explain(err)
}

// found takes in what the census has found.
func (s *sweeper) found(ctx context.Context, r *Row) error {
	switch {
	case unneeded(&r.Look, r.Finding): // what the census has of it is valid only now
		kept := Look{Key: bytes.Clone(r.Key), Type: r.Type, TTL: r.TTL, Value: bytes.Clone(r.Value)}
		for _, f := range r.Fields {
			kept.Fields = append(kept.Fields, Field{Name: bytes.Clone(f.Name), Value: bytes.Clone(f.Value)})
		}
		s.keys = append(s.keys, kept)
	case r.State == Expired && r.HasExpiry:
		return s.leave(s.entry(&r.Look, r.Finding), fmt.Sprintf("expired for less than --ghost-after %v", s.opts.GhostAfter))
	}
	if len(s.keys) >= sweepBatch {
		return s.clear(ctx)
	}
	return nil
}

// tell says where the sweep stands: after each page of the census, and, as a page of ghosts takes long, after each change.
func (s *sweeper) tell() {
	if s.opts.Progress != nil {
		p := s.at
		p.Elapsed = time.Since(s.began)
		s.opts.Progress(SweepProgress{p, s.changed})
	}
}

// unneeded tells a lock that nobody holds, or that nothing will end. One with a TTL the server ends.
func unneeded(k *Look, f Finding) bool {
	return k.TTL == NoTTL && (f.State == Ghost || f.Format == TokenNoTTL)
}

// doubt says why a finding is not swept; it is empty for what certainly is a lock that nobody needs.
func (s *sweeper) doubt(f Finding) string {
	switch {
	case f.Format == HashUID && f.Confidence < High:
		return "a hash that no lock is known to write: it may be the application's"
	case f.Format == TokenNoTTL && f.Confidence < High:
		return "a flag or a number without TTL: it may be the application's"
	case !s.opts.Tokens && (f.Format == HashUID || f.Format == TokenNoTTL || f.Format == Bridge):
		return "without TTL, but no expiry: --tokens gives it one"
	}
	return "" // an expiry, or Redisson's
}

// leave counts a key that is not swept, and tells of the first of them.
func (s *sweeper) leave(e SweepEntry, why string) error {
	const most = 20
	told := int64(0)
	for _, n := range s.swept.Left {
		told += n
	}
	s.swept.Left[why]++
	if told >= most || s.opts.Emit == nil {
		return nil
	}
	e.Result, e.Note = Left, why
	return s.opts.Emit(e)
}

// readClocks reads both clocks. What is judged by the earlier one is over by both.
func (s *sweeper) readClocks(ctx context.Context, times int) error {
	clocks, err := endpoint.CompareClocks(ctx, s.conn, times, s.opts.Now)
	if err != nil {
		return endpoint.Explain(err)
	}
	if clocks.Ahead.Abs() > MostApart+clocks.Trip {
		return &ClockError{s.addr, clocks.Ahead}
	}
	host := time.Now()
	if s.opts.Now != nil {
		host = s.opts.Now()
	}
	s.now = protocol.InstantOf(host.Add(-max(0, clocks.Ahead)))
	return nil
}

// entry is a key as it is told of.
func (s *sweeper) entry(k *Look, f Finding) SweepEntry {
	e := SweepEntry{At: s.now.Time(), Server: s.addr, DB: s.end.DB, Key: string(k.Key), Format: f.Format, State: f.State, Value: string(k.Value), Result: Planned}
	if !utf8.Valid(k.Key) {
		e.KeyBytes = k.Key
	}
	if !utf8.Valid(k.Value) {
		e.ValueRaw = k.Value
	}
	for _, field := range k.Fields {
		e.Fields = append(e.Fields, string(field.Name), string(field.Value))
	}
	if f.HasExpiry {
		e.ExpiredMS = s.now.Sub(f.Expires).Milliseconds()
	}
	return e
}

// clear judges the candidates once more, and acts on those that still are. What a script changes is the very value that the census has seen.
func (s *sweeper) clear(ctx context.Context) error {
	keys := s.keys
	s.keys = s.keys[:0]
	if len(keys) == 0 {
		return nil
	}
	if err := s.readClocks(ctx, 1); err != nil { // again: a clock may be set while a long sweep runs
		return err
	}
	for i := range keys {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e, doubt := s.judge(&keys[i])
		if doubt != "" {
			if err := s.leave(e, doubt); err != nil {
				return err
			}
			continue
		}
		if e.Action == "" {
			continue
		}
		s.swept.Candidates++
		s.swept.ByFormat[e.Format]++
		var failed error
		if s.opts.Execute {
			if failed = s.act(ctx, &keys[i], &e); failed != nil && e.Result == Planned {
				return failed
			}
		}
		s.swept.ByResult[e.Result]++
		s.tell()
		if s.opts.Emit != nil {
			failed = cmp.Or(failed, s.opts.Emit(e))
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// judge classifies a key again, by the earlier of the two clocks. A doubt says why it is left though it may be in the way; without one, and
// without an action, it is no candidate any more. Only an expiry that is over may be removed, all else gets a TTL.
func (s *sweeper) judge(k *Look) (e SweepEntry, doubt string) {
	judge := Judge{Now: s.now, GhostAfter: s.opts.GhostAfter, Chosen: len(s.opts.Match) > 0}
	f := judge.Classify(k)
	e = s.entry(k, f)
	switch {
	case f.State == Expired:
		return e, "expired for longer than --ghost-after by the server's clock only"
	case !unneeded(k, f):
		return e, ""
	}
	if doubt = s.doubt(f); doubt != "" {
		return e, doubt
	}
	if e.Action = Expire; f.State == Ghost && f.HasExpiry && s.opts.TTL == 0 {
		e.Action = Remove
		return e, ""
	}
	e.TTLMS = cmp.Or(s.opts.TTL, time.Hour).Milliseconds()
	return e, ""
}

// act changes one key, with a line in the journal before and after.
func (s *sweeper) act(ctx context.Context, k *Look, e *SweepEntry) error {
	if err := s.rate.take(ctx, 1); err != nil {
		return err
	}
	if err := s.opts.Journal(*e); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	script, values := scripts.CompareDel, scripts.Values{"key": string(k.Key), "value": string(k.Value)}
	if e.Action == Expire {
		contents := redis.Args{}.AddFlat(e.Fields)
		if len(contents) == 0 {
			contents = append(contents, string(k.Value))
		}
		script, values = scripts.SweepExpire, scripts.Values{"key": string(k.Key), "ttl": e.TTLMS, "contents": []any(contents)}
	}
	n, err := redis.Int64(wire.Eval(s.conn, replyTimeout, script, values))
	var refused redis.Error
	switch {
	case err == nil && n == 1:
		e.Result = Done
		s.changed++
	case err == nil:
		e.Result = Changed
	case errors.As(err, &refused):
		e.Result, e.Note = Refused, err.Error()
	default:
		e.Result, e.Note = Unsure, err.Error()
	}
	if jerr := s.opts.Journal(*e); jerr != nil {
		return fmt.Errorf("write the journal: %w", jerr)
	}
	if e.Result == Unsure {
		return err
	}
	return nil
}
