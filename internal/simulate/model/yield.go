package model

import (
	"strconv"
	"strings"
	"time"
)

// gaps is bridge_yield.lua: when a key is left free for old clients. All times are in milliseconds.
type gaps struct {
	c                                                                    *call
	gap                                                                  int64
	mode, at, credit, owed, waiting, count, noted, due, step, seen, ends int64
}

const (
	keptFor   = 45000 // for how long the state is remembered
	uncounted = -1
	unknown   = -2
)

func (c *call) yieldsOn() bool { return c.command.Yield != "" && c.command.Gap >= time.Millisecond }

// fields are the state's, in its order; the last is when a gap ends, for modern_queue.lua.
func (g *gaps) fields() [11]*int64 {
	return [...]*int64{&g.mode, &g.at, &g.credit, &g.owed, &g.waiting, &g.count, &g.noted, &g.due, &g.step, &g.seen, &g.ends}
}

// recall reads the state; nil where there is none that is believed. It takes eleven whole numbers as the script's patterns do:
// the mode has one digit, and a sign stands only before those that may be negative.
func (c *call) recall() *gaps {
	i := c.find(c.command.Yield)
	if i < 0 || c.entries[i].Kind != String || len(c.entries[i].Value) > 140 {
		return nil
	}
	g := &gaps{c: c, gap: c.command.Gap.Milliseconds()}
	rest, more := c.entries[i].Value, true
	for n, field := range g.fields() {
		var word string
		word, rest, more = strings.Cut(rest, " ")
		digits := word
		if field == &g.credit || field == &g.owed || field == &g.count || field == &g.seen {
			digits = strings.TrimPrefix(word, "-")
		}
		if digits == "" || digits[0] < '0' || digits[0] > '9' || n == 0 && len(digits) > 1 || more != (n < 10) {
			return nil
		}
		var err error
		if *field, err = strconv.ParseInt(word, 10, 64); err != nil {
			return nil
		}
	}
	if g.at > c.ms || g.noted > c.ms {
		return nil
	}
	return g
}

func (g *gaps) remember(ms int64) {
	if g.ends = 0; g.mode == 1 {
		g.ends = g.at + g.gap
	}
	text := make([]byte, 0, 96)
	for n, field := range g.fields() {
		if n > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, *field, 10)
	}
	g.c.write(g.c.command.Yield, string(text), ms)
}

// stated is how often the server has run SETNX, -1 where it does not say.
func (g *gaps) stated() int64 {
	if g.c.NoStats {
		return -1
	}
	return g.c.SetNX
}

func (g *gaps) earn(held, queued int64) {
	g.credit = min(g.credit+min(held, 500*g.gap/(6*(100*queued+100+g.waiting))), 2*g.gap)
}

// needed tells whether old clients are likely to wait.
func (g *gaps) needed() bool {
	since := g.c.ms - g.noted
	if g.count != uncounted && 4*since < 3*g.gap {
		return g.waiting > 0
	}
	n := g.stated()
	known := n >= 0 && g.count != unknown
	if known && (g.count == uncounted || since > 25*g.gap) {
		g.count, g.noted, g.waiting = n, g.c.ms, 0
		return false
	}
	g.noted = g.c.ms
	if !known {
		g.count, g.waiting = unknown, 100
		return true
	}
	more := n - g.count
	if more < 0 {
		more = 1
	}
	g.count = n
	if more > 0 {
		g.waiting = max(1, min(400, (g.waiting+500*g.gap*more/(6*since))/2))
		return true
	}
	g.waiting, g.step = 0, min(2*g.step, 2*g.gap)
	g.due = g.c.ms + g.step
	if g.c.ms-g.at < 30000 {
		return false
	}
	g.waiting = 100
	return true
}

// yields is for a release: whether a gap begins now.
func (c *call) yields(queued int64) bool {
	held := c.command.Held.Milliseconds()
	queued += int64(c.command.Behind)
	g := c.recall()
	if g == nil && 32*held < c.command.Gap.Milliseconds() && queued == 0 {
		return false
	}
	lasts := int64(keptFor)
	if g == nil {
		gap := c.command.Gap.Milliseconds()
		if queued == 0 {
			lasts = gap
		}
		g = &gaps{c: c, gap: gap, at: c.ms, count: uncounted, noted: c.ms, due: c.ms, step: gap}
		if held >= keptFor {
			g.credit, g.waiting, g.count = gap, 100, unknown
		}
	}
	g.earn(max(held, 1), queued)
	if g.mode == 0 && g.seen > 0 {
		g.owed = max(g.owed, -100*max(1, g.seen/max(held, 1)))
	}
	g.seen = 0
	g.owed = min(g.owed+g.waiting/(queued+1), 300)
	g.mode = 0
	if c.ms >= g.due && g.needed() && 2*g.credit >= g.gap && g.owed >= 0 {
		g.mode, g.at, g.seen = 1, c.ms, -1
		if g.count != unknown {
			g.seen = g.stated()
		}
	}
	g.remember(lasts)
	return g.mode == 1
}

// spell counts turns of old clients since g.at, when sent SETNX have come since: of 8 gaps or a second at most. It returns how long that was.
func (g *gaps) spell(sent int64) int64 {
	lasted := min(g.c.ms-g.at, max(8*g.gap, 1000))
	more := max(0, min(lasted, sent-6*g.waiting*(g.c.ms-g.at)/(500*g.gap)))
	g.owed -= 100 * more
	if g.count >= 0 {
		g.count += more
	}
	return lasted
}

// oldTurn notes that an old client has the key.
func (g *gaps) oldTurn() {
	if g.mode == 2 {
		return
	}
	n := g.stated()
	if g.count >= 0 && n == g.count {
		g.count, g.waiting = unknown, 100
	}
	if g.mode == 1 {
		g.credit = max(g.credit-(g.c.ms-g.at), -2*g.gap)
		if g.seen >= 0 && n > g.seen {
			g.spell(n - g.seen - 1)
		}
	}
	g.mode, g.at, g.owed, g.due, g.step, g.seen = 2, g.c.ms, g.owed-100, 0, g.gap, n
	g.remember(keptFor)
}

// keepsOff is for one who finds the key free: for how long it has to leave the key to old clients.
func (g *gaps) keepsOff(queued int64) int64 {
	switch {
	case g.mode == 1 && g.at+g.gap > g.c.ms:
		return g.at + g.gap - g.c.ms
	case g.mode == 1:
		if g.count == unknown && g.step >= 16*g.gap {
			g.count = uncounted
		}
		g.credit, g.owed, g.step, g.seen = 0, 0, min(2*g.step, 16*g.gap), 0
		g.due = g.c.ms + g.step
	case g.mode == 2:
		n := int64(-1)
		if g.seen >= 0 {
			n = g.stated()
		}
		g.earn(g.c.ms-g.at, queued)
		lasted := int64(-1)
		if n >= 0 {
			lasted = g.spell(n - g.seen)
		}
		if g.owed >= 100 && g.credit > 0 && (g.count == unknown || n < 0 || n > g.seen) {
			g.mode, g.at, g.seen = 1, g.c.ms, n
			g.remember(keptFor)
			return g.gap
		}
		if g.seen = lasted; lasted < 0 {
			g.seen = g.spell(keptFor)
		}
	}
	g.mode = 0
	g.remember(keptFor)
	return 0
}

// queued is how many waiters a script counts.
func (c *call) queued() int64 { return int64(min(len(c.waiters()), 10)) }
