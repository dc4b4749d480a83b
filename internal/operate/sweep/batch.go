package sweep

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

const (
	batchSize    = 100
	replyTimeout = 30 * time.Second
)

// batch is candidates of one server that wait to be judged by both clocks.
type batch struct {
	s    *Sweeper
	addr string
	conn redis.Conn
	keys []census.Look
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

// add keeps a key. What the census has of it is valid only now.
func (b *batch) add(k *census.Look) {
	kept := census.Look{Key: bytes.Clone(k.Key), Type: k.Type, TTL: k.TTL, Value: bytes.Clone(k.Value)}
	for _, f := range k.Fields {
		kept.Fields = append(kept.Fields, census.Field{Name: bytes.Clone(f.Name), Value: bytes.Clone(f.Value)})
	}
	b.keys = append(b.keys, kept)
}

// entry is a key as it is told of.
func (b *batch) entry(k *census.Look, f census.Finding) Entry {
	e := Entry{At: b.now.Time(), Server: b.addr, DB: b.s.end.DB, Key: string(k.Key), Format: string(f.Format), State: string(f.State), Value: string(k.Value), Result: Planned}
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
		e.ExpiredMS = b.now.Sub(f.Expires).Milliseconds()
	}
	return e
}

// clear judges the candidates once more, and acts on those that still are. What a script changes is the very value that the census has seen.
func (b *batch) clear(ctx context.Context) error {
	keys := b.keys
	b.keys = b.keys[:0]
	if len(keys) == 0 {
		return nil
	}
	if err := b.readClocks(ctx, 1); err != nil { // again: a clock may be set while a long sweep runs
		return err
	}
	for i := range keys {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e, doubt := b.judge(&keys[i])
		if doubt != "" {
			if err := b.s.leave(e, doubt); err != nil {
				return err
			}
			continue
		}
		if e.Action == "" {
			continue
		}
		b.s.summary.Candidates++
		b.s.summary.ByFormat[e.Format]++
		var failed error
		if b.s.opts.Execute {
			if failed = b.act(ctx, &keys[i], &e); failed != nil && e.Result == Planned {
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

// judge classifies a key again, by the earlier of the two clocks. A doubt says why it is left though it may be in the way; without one, and
// without an action, it is no candidate any more.
func (b *batch) judge(k *census.Look) (e Entry, doubt string) {
	judge := census.Judge{Now: b.now, GhostAfter: b.s.opts.GhostAfter, Chosen: len(b.s.opts.Match) > 0}
	finding := judge.Classify(k)
	e = b.entry(k, finding)
	switch {
	case finding.State == census.Expired:
		return e, "expired for longer than --ghost-after by the server's clock only"
	case !b.s.wanted(k, finding):
		return e, ""
	}
	if doubt = b.s.doubt(finding); doubt == "" {
		b.s.choose(&e, finding)
	}
	return e, doubt
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
func (b *batch) act(ctx context.Context, k *census.Look, e *Entry) error {
	if err := b.s.pace(ctx); err != nil {
		return err
	}
	if err := b.s.opts.Journal(*e); err != nil {
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
	n, err := redis.Int64(wire.Eval(b.conn, replyTimeout, script, values))
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
