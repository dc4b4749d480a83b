package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

const (
	batchSize    = 100
	replyTimeout = 30 * time.Second
)

// batch is candidates of one server that wait to be looked at again.
type batch struct {
	s    *Sweeper
	addr string
	conn redis.Conn
	keys []string
	now  protocol.Instant // the earlier of the two clocks
}

// readClocks reads both clocks. What is judged by the earlier one is over by both.
func (b *batch) readClocks(ctx context.Context, times int) error {
	clocks, err := endpoint.CompareClocks(ctx, b.conn, times, b.s.opts.Now)
	if err != nil {
		return endpoint.Explain(err)
	}
	if clocks.Ahead.Abs() > MostApart+clocks.Trip {
		return &ClockError{b.addr, clocks.Ahead}
	}
	host := time.Now()
	if b.s.opts.Now != nil {
		host = b.s.opts.Now()
	}
	b.now = protocol.InstantOf(host.Add(-max(0, clocks.Ahead)))
	return nil
}

// entry is a key as it is told of.
func (b *batch) entry(key string, f census.Finding) Entry {
	e := Entry{At: b.now.Time(), Server: b.addr, DB: b.s.end.DB, Key: key, Result: Planned}
	e.describe(key, nil, f, b.now)
	return e
}

// clear looks at the candidates once more, with their whole values, and acts on those that still are.
func (b *batch) clear(ctx context.Context) error {
	keys := b.keys
	b.keys = b.keys[:0]
	if len(keys) == 0 {
		return nil
	}
	if err := b.readClocks(ctx, 1); err != nil { // again: a clock may be set while a long sweep runs
		return err
	}
	seen, err := b.look(ctx, keys)
	if err != nil {
		return err
	}
	for i := range seen {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e, doubt, ok := b.judge(keys[i], &seen[i])
		if doubt != "" {
			if err := b.s.leave(e, doubt); err != nil {
				return err
			}
			continue
		}
		if !ok {
			continue
		}
		b.s.summary.Candidates++
		b.s.summary.ByFormat[e.Format]++
		var failed error
		if b.s.opts.Execute {
			if failed = b.act(ctx, &e); failed != nil && e.Result == Planned {
				return failed
			}
		}
		b.s.summary.ByResult[e.Result]++
		b.s.tell()
		if b.s.opts.Emit != nil {
			if err := b.s.opts.Emit(e); err != nil {
				return cmp.Or(failed, err)
			}
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// seen is what a second look found of one key.
type seen struct {
	kind  string
	value []byte   // of a string
	pairs []string // of a hash
	ttl   int64
	ok    bool
}

// look reads keys in two round trips: what they are and their TTL, then what they hold.
func (b *batch) look(ctx context.Context, keys []string) ([]seen, error) {
	all := make([]seen, len(keys))
	for _, k := range keys {
		_ = b.conn.Send("TYPE", k) // an error of Send comes back from Flush
		_ = b.conn.Send("PTTL", k)
	}
	if err := b.conn.Flush(); err != nil {
		return nil, err
	}
	for i := range all {
		kind, err1 := redis.String(redis.ReceiveContext(b.conn, ctx))
		ttl, err2 := redis.Int64(redis.ReceiveContext(b.conn, ctx))
		if err := b.s.refused(cmp.Or(err1, err2)); err != nil {
			return nil, err
		}
		all[i] = seen{kind: kind, ttl: ttl, ok: err1 == nil && err2 == nil && ttl == census.NoTTL && (kind == "string" || kind == "hash")}
	}
	for i, k := range keys {
		if command := map[string]string{"string": "GET", "hash": "HGETALL"}[all[i].kind]; all[i].ok {
			_ = b.conn.Send(command, k)
		}
	}
	if err := b.conn.Flush(); err != nil {
		return nil, err
	}
	for i := range all {
		if !all[i].ok {
			continue
		}
		reply, err := redis.ReceiveContext(b.conn, ctx)
		if err := b.s.refused(err); err != nil {
			return nil, err
		}
		if all[i].kind == "string" {
			all[i].value, err = redis.Bytes(reply, err)
		} else {
			all[i].pairs, err = redis.Strings(reply, err)
		}
		all[i].ok = err == nil
	}
	return all, nil
}

// judge classifies a key again. A doubt says why it is left though it may be in the way.
func (b *batch) judge(key string, k *seen) (e Entry, doubt string, ok bool) {
	if !k.ok || len(k.pairs) > 2*census.MaxFields { // it has grown to something that is no lock
		return Entry{}, "", false
	}
	look := census.Look{Key: []byte(key), Type: k.kind, TTL: k.ttl, Value: k.value[:min(len(k.value), census.Peek)]}
	for i := 0; i+1 < len(k.pairs); i += 2 {
		look.Fields = append(look.Fields, census.Field{Name: []byte(k.pairs[i]), Value: []byte(k.pairs[i+1])})
	}
	judge := census.Judge{Now: b.now, GhostAfter: b.s.opts.GhostAfter, Chosen: len(b.s.opts.Match) > 0}
	finding := judge.Classify(&look)
	e = Entry{At: b.now.Time(), Server: b.addr, DB: b.s.end.DB, Key: key, Fields: k.pairs, Result: Planned}
	e.describe(key, k.value, finding, b.now)
	if !b.s.wanted(finding) {
		if finding.State == census.Expired { // a ghost by the server's clock, but not yet by this host's
			return e, "expired for longer than --ghost-after by the server's clock only", false
		}
		return Entry{}, "", false
	}
	if doubt = b.s.doubt(finding); doubt != "" {
		return e, doubt, false
	}
	b.s.choose(&e, finding)
	return e, "", true
}

// refused counts a key that cannot be read: this user may not, or it is moving to another node. A key of another type by now is no
// candidate any more. Any other refusal would meet every key, and ends the sweep.
func (s *Sweeper) refused(err error) error {
	var refused redis.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch kind, _, _ := strings.Cut(string(refused), " "); kind {
	case "WRONGTYPE":
		return nil
	case "NOPERM", "MOVED", "ASK":
		s.summary.Unread++
		s.summary.Why = string(refused)
		return nil
	}
	return err
}

// choose says what is to be done: only an expiry that is over may be removed, all else gets a TTL.
func (s *Sweeper) choose(e *Entry, f census.Finding) {
	e.Action = Expire
	if f.State == census.Ghost && f.HasExpiry && s.opts.TTL == 0 {
		e.Action = Remove
		return
	}
	e.TTLMS = cmp.Or(s.opts.TTL, time.Hour).Milliseconds()
}

// act changes one key, with a line in the journal before and after.
func (b *batch) act(ctx context.Context, e *Entry) error {
	if err := b.s.pace(ctx); err != nil {
		return err
	}
	if err := b.s.opts.Journal(*e); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	script, values := scripts.CompareDel, scripts.Values{"key": e.key(), "value": e.value()}
	if e.Action == Expire {
		contents := []any{e.value()}
		if len(e.Fields) > 0 {
			contents = contents[:0]
			for _, f := range e.Fields {
				contents = append(contents, f)
			}
		}
		script, values = scripts.SweepExpire, scripts.Values{"key": e.key(), "ttl": e.TTLMS, "contents": contents}
	}
	n, err := redis.Int64(b.eval(ctx, script, values))
	var refused redis.Error
	switch {
	case err == nil && n == 1:
		e.Result = Done
		b.s.changed++
	case err == nil:
		e.Result = Changed
	case errors.As(err, &refused):
		e.Result, e.Note = Refused, err.Error()
	default:
		e.Result, e.Note = Unsure, err.Error()
	}
	if jerr := b.s.opts.Journal(*e); jerr != nil {
		return fmt.Errorf("write the journal: %w", jerr)
	}
	if e.Result == Unsure {
		return err
	}
	return nil
}

// eval runs a script, and says of a refusal which command of it was meant.
func (b *batch) eval(ctx context.Context, s *scripts.Script, values scripts.Values) (any, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return wire.Eval(b.conn, replyTimeout, s, values)
}
