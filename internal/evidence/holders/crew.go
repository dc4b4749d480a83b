package holders

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Crew is holders that take turns on one key until they are stopped, and come and go, with a referee's book on the server: a hash in which
// everyone who is inside has a field. The book knows nothing of the lock.
type Crew struct {
	T      testing.TB
	Key    string
	Record *redistest.Server // if set: as Fleet.Record, of this server
	Hold   time.Duration     // of a turn; 0: 2 ms

	heard func(*Holder, Event) // if set, is told of each event once it is counted; holders speak side by side

	mu     sync.Mutex
	turns  map[*Holder]int
	ended  map[*Holder]bool
	book   *record
	report Report
}

// Referee is the hash in which everyone who is inside has a field.
func (c *Crew) Referee() string { return c.Key + ":referee" }

// Enlist sets a holder to work.
func (c *Crew) Enlist(h *Holder) *Holder {
	c.mu.Lock()
	if c.turns == nil {
		c.turns, c.ended = map[*Holder]int{}, map[*Holder]bool{}
	}
	if c.Record != nil && c.book == nil {
		c.book = &record{monitor: c.Record.Monitor(), key: c.Key, referee: c.Referee(), turns: Turns{}}
	}
	c.mu.Unlock()
	h.Send("turns %s %s %d %d", c.Key, c.Referee(), 1_000_000, cmp.Or(c.Hold, 2*time.Millisecond).Milliseconds())
	go func() {
		for e := range h.Events() {
			c.mu.Lock()
			switch e.Event {
			case "turn":
				c.turns[h]++
				c.report.Turns++
				c.report.Inside = max(c.report.Inside, e.Inside)
				if e.Inside > 1 {
					c.report.Overlaps++
				}
				c.book.note(h.ID, e)
			case "error", "garbage":
				c.report.Errors = append(c.report.Errors, e)
			case "done":
				c.ended[h] = true
			}
			c.mu.Unlock()
			if c.heard != nil {
				c.heard(h, e)
			}
		}
	}()
	return h
}

// Count returns the turns of some holders, of all where none is named.
func (c *Crew) Count(of ...*Holder) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range of {
		n += c.turns[h]
	}
	if len(of) == 0 {
		for _, turns := range c.turns {
			n += turns
		}
	}
	return n
}

// Progress waits until each has taken n more turns.
func (c *Crew) Progress(n int, all ...*Holder) {
	c.T.Helper()
	for _, h := range all {
		want := c.Count(h) + n
		redistest.Await(c.T, fmt.Sprintf("%d more turns of %v", n, h), func() bool { return c.Count(h) >= want })
	}
}

// More waits for n more turns, whoever takes them. At stage legacy everybody polls, and chance may keep a member out for many seconds.
func (c *Crew) More(n int) {
	c.T.Helper()
	want := c.Count() + n
	redistest.Await(c.T, fmt.Sprintf("%d more turns", n), func() bool { return c.Count() >= want })
}

// Stop ends the work of some holders, and waits for their last turns.
func (c *Crew) Stop(all ...*Holder) {
	c.T.Helper()
	for _, h := range all {
		h.Send("stop")
	}
	for _, h := range all {
		redistest.Await(c.T, "the end of a holder", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.ended[h]
		})
	}
}

// Found returns what the crew has come to, without its members' turns. It is called once, when all have stopped.
func (c *Crew) Found() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.report(c.T, &c.report)
	return c.report
}
