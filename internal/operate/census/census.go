package census

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Options say which keys to look at and which findings to report.
type Options struct {
	Match      []string      // glob patterns: a key must match one of them; none means every key
	All        bool          // report also keys that are no locks
	Confidence Confidence    // the least confidence to report; keys chosen by Match are reported whatever it is
	GhostAfter time.Duration // how long past its expiry a value counts as a ghost
	Rate       int           // most keys to look at in a second; 0 for no limit

	// Emit takes a row as it is found. The row is reused: it is valid only until Emit returns.
	Emit func(*Row) error
	// Progress is told after every page, if it is set.
	Progress func(Progress)
}

// chosen tells that the operator has named the locks: a pattern that matches everything names nothing.
func (o *Options) chosen() bool {
	return len(o.Match) > 0 && !slices.ContainsFunc(o.Match, func(p string) bool { return strings.Trim(p, "*") == "" })
}

// Row is one reported key, as it was looked at.
type Row struct {
	Look
	Now protocol.Instant // the server's clock when the key was read
	Finding
}

// Progress is where a census stands.
type Progress struct {
	Scanned int64
	Locks   int64
	Done    float64 // how much of this server's keys, from 0 to 1; negative if it is not known
	Elapsed time.Duration
}

// Summary is what a census found.
type Summary struct {
	Scanned  int64            `json:"scanned"` // distinct keys looked at, as far as the census remembers them
	Locks    int64            `json:"locks"`   // findings of at least the wanted confidence, and all keys chosen by Match
	ByFormat map[Format]int64 `json:"by_format"`
	ByState  map[State]int64  `json:"by_state"`
	Possible int64            `json:"possible"` // findings below it
	Unread   int64            `json:"unread"`   // keys that this user may not read, or that were moving between nodes
	Lacks    []string         `json:"lacks"`    // what was refused and gone without, as the server said it: each kind once
	Skipped  int64            `json:"-"`        // keys whose name is too long to be looked at
	Elapsed  time.Duration    `json:"-"`
	Clock    time.Time        `json:"-"`        // the server's at the end
	Offset   time.Duration    `json:"-"`        // by how much this host's clock is behind the server's
	Complete bool             `json:"complete"` // every key of the servers was looked at

	ClusterNode bool `json:"-"` // the last server has other keys beside it, on the other nodes of its cluster
}

// Census counts the locks of one or several servers.
type Census struct {
	opts    Options
	summary Summary
	started time.Time
	rate    rate // of keys that servers go through
	seed    maphash.Seed
	few     map[uint64]bool // what was seen while that were few
	seen    []uint64
}

// New returns a census that has looked at nothing.
func New(opts Options) *Census {
	return &Census{
		opts:    opts,
		summary: Summary{ByFormat: map[Format]int64{}, ByState: map[State]int64{}, Complete: true},
		started: time.Now(),
		rate:    rate{most: opts.Rate},
		seed:    maphash.MakeSeed(),
		few:     map[uint64]bool{},
	}
}

// remembered is how many keys the census can remember, to count a key once that SCAN returns twice, as it may
// while a table grows or shrinks. A slot is overwritten by later keys, so that memory stays flat: up to a few
// hundred thousand keys a duplicate is found nearly always, and beyond that mostly when it comes soon. The slots
// take 8 MiB: a few keys, which is what most looks find, are in a map, and are found always.
const remembered = 1 << 20

// again tells that a key has been seen.
func (c *Census) again(key []byte) bool {
	h := maphash.Bytes(c.seed, key)
	if c.seen == nil {
		if c.few[h] {
			return true
		}
		if c.few[h] = true; len(c.few) < 4096 {
			return false
		}
		c.seen = make([]uint64, remembered)
		for h := range c.few {
			c.seen[h&(remembered-1)] = h
		}
		c.few = nil
		return false
	}
	slot := &c.seen[h&(remembered-1)]
	if *slot == h && h != 0 {
		return true
	}
	*slot = h
	return false
}

// Summary returns what was found so far.
func (c *Census) Summary() Summary {
	c.summary.Elapsed = time.Since(c.started)
	return c.summary
}

// All looks at all keys of every master. An error has its explanation, and the master's address where there are several.
func (c *Census) All(ctx context.Context, end *endpoint.Endpoint) error {
	err := c.all(ctx, end)
	c.summary.Complete = c.summary.Complete && err == nil
	return err
}

func (c *Census) all(ctx context.Context, end *endpoint.Endpoint) error {
	masters, err := end.Masters(ctx)
	if err != nil {
		return err
	}
	for _, addr := range masters {
		conn, err := end.DialRaw(ctx, addr)
		if err == nil {
			err = endpoint.Explain(c.Scan(ctx, conn))
		}
		switch {
		case err != nil && len(masters) > 1:
			return fmt.Errorf("%s: %w", addr, err)
		case err != nil:
			return err
		}
	}
	return end.StillMasters(ctx, masters)
}

// Scan looks at all keys of the server behind conn, which it closes. It may be called again for the next
// server of a cluster.
func (c *Census) Scan(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	// Whatever read or write is under way ends with the context.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	s := newScanner(c, conn)
	err := s.begin(ctx)
	if err == nil {
		err = s.run(ctx)
	}
	s.end()
	c.summary.Clock = s.serverNow().Time()
	c.summary.Offset = -s.ahead
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil {
		return nil
	}
	c.summary.Complete = false
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer within %v: %w", replyTimeout, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}

// record counts a finding and reports it where it is wanted.
func (c *Census) record(row *Row) error {
	switch {
	case row.Beside:
		if !c.opts.All {
			return nil
		}
	case c.opts.chosen() || row.Confidence >= c.opts.Confidence && row.Confidence > None:
		c.summary.Locks++
		c.summary.ByFormat[row.Format]++
		c.summary.ByState[row.State]++
	default:
		if row.Confidence > None {
			c.summary.Possible++
		}
		if !c.opts.All {
			return nil
		}
	}
	return c.opts.Emit(row)
}

func (c *Census) progress(done float64) {
	if c.opts.Progress != nil {
		c.opts.Progress(Progress{c.summary.Scanned, c.summary.Locks, done, time.Since(c.started)})
	}
}

// serverNow is the server's clock: compared once, carried on by this host's monotonic clock.
func (s *scanner) serverNow() protocol.Instant {
	return protocol.InstantOf(s.began.Add(time.Since(s.began) - s.ahead))
}
