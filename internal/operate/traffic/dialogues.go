package traffic

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// dialogues pairs the requests and replies of the connections to one server, and tells what ran. It is not safe for concurrent use.
type dialogues struct {
	keys    *Keys
	tell    func(*Command)
	scripts Scripts
	out     *Captured
	open    map[*dialogue]bool
	late    []*dialogue // those with commands that wait for another connection's reply, in the order of their first one
	last    protocol.Instant

	// taken counts commands, written says of a key which of them wrote it last; what is not in it was written before since.
	taken, since uint64
	written      map[Key]write
}

// dialogue is one connection of a client.
type dialogue struct {
	addr              string
	requests, replies respReader
	asked             []request // without a reply so far, the oldest first
	db                int
	queued            [][]string // between MULTI and EXEC
	joined            bool       // it began before it was looked at
	closed            bool       // no more of it is read
	late              []answered
}

// request is a command that was sent, after so many were taken in.
type request struct {
	words []string
	after uint64
}

// write is the last one of a key.
type write struct {
	by string
	n  uint64
}

// answered is a command that ran.
type answered struct {
	line  Command
	reply respValue
	after uint64
}

func newDialogues(keys *Keys, tell func(*Command)) *dialogues {
	return &dialogues{keys: keys, tell: tell, out: &Captured{Unread: map[string]int64{}}, open: map[*dialogue]bool{}, written: map[Key]write{}}
}

// begin takes in a new connection.
func (c *dialogues) begin(addr string, joined bool) *dialogue {
	d := &dialogue{addr: addr, joined: joined}
	d.requests = respReader{requests: true, emit: func(v respValue) { c.asks(d, v) }}
	d.replies = respReader{emit: func(v respValue) { c.answers(d, v) }}
	c.open[d] = true
	c.out.Connections++
	return d
}

// now says when what follows happened.
func (c *dialogues) now(at protocol.Instant) {
	c.last = max(c.last, at/1000*1000)
}

// stop reads no more of a connection, and says why. An empty reason is none that anybody has to know.
func (c *dialogues) stop(d *dialogue, why string) {
	if why != "" && !d.closed {
		c.out.Unread[why]++
	}
	c.close(d)
}

// close is the end of a connection.
func (c *dialogues) close(d *dialogue) {
	d.closed, d.asked, d.queued = true, nil, nil
	delete(c.open, d)
	c.settle()
}

// end takes in what still waits.
func (c *dialogues) end() {
	clear(c.open)
	c.settle()
}

// secret are commands whose arguments are never kept.
var secret = set(`AUTH HELLO ACL CONFIG MIGRATE`)

// mostAsked is how many requests of one connection may be without a reply.
const mostAsked = 100_000

// asks takes in a request.
func (c *dialogues) asks(d *dialogue, v respValue) {
	if len(v.elems) == 0 {
		return
	}
	words := make([]string, 0, len(v.elems))
	for _, e := range v.elems {
		words = append(words, e.text)
	}
	words[0] = strings.ToUpper(words[0])
	if secret[words[0]] {
		words = words[:1]
	}
	switch word := words[0]; {
	case word == "MONITOR" || word == "PSYNC" || word == "SYNC" || strings.HasSuffix(word, "SUBSCRIBE"):
		c.stop(d, "") // what follows are no replies, and no lock's
		return
	case word == "CLIENT" && len(words) > 2 && strings.EqualFold(words[1], "REPLY"):
		c.stop(d, "they switch replies off")
		return
	}
	if len(d.asked) >= mostAsked {
		c.stop(d, "their replies are not in the capture")
		return
	}
	d.asked = append(d.asked, request{words, c.taken})
}

// answers takes in a reply: the oldest request is done.
func (c *dialogues) answers(d *dialogue, v respValue) {
	if v.kind == '>' || len(d.asked) == 0 {
		if v.kind != '>' && !d.joined {
			c.stop(d, "they have more replies than commands")
		}
		return
	}
	words, after := d.asked[0].words, d.asked[0].after
	d.asked = d.asked[1:]
	defer c.settle()
	switch word := words[0]; {
	case v.kind == '-' || v.kind == '!':
		if word == "EXEC" {
			d.queued = nil
		}
		return // refused: it did nothing
	case v.kind == '+' && v.text == "QUEUED":
		d.queued = append(d.queued, words)
		return
	case word == "SELECT" && len(words) == 2:
		d.db, _ = strconv.Atoi(words[1])
	case word == "RESET":
		d.db = 0
	case word == "DISCARD":
		d.queued = nil
	case word == "EXEC":
		for i, q := range d.queued {
			if !v.null && i < len(v.elems) && v.elems[i].kind != '-' {
				c.ran(d, q, v.elems[i], after)
			}
		}
		d.queued = nil
	}
	c.ran(d, words, v, after)
}

// ran takes in a command that the server has run. Replies may come in another order than the commands ran in: a client that was
// given a lock comes after the one that gave it back, also where its reply came first.
func (c *dialogues) ran(d *dialogue, words []string, v respValue, after uint64) {
	c.out.Commands++
	a := answered{Command{At: c.last, DB: d.db, Addr: d.addr, Words: words}, v, after}
	switch {
	case len(d.late) > 0:
		d.late = append(d.late, a)
	case c.follows(d, &a):
		d.late = append(d.late, a)
		c.late = append(c.late, d)
	default:
		c.take(&a)
	}
}

// longestLate is how long a command waits for the reply to another one.
const longestLate = time.Second

// settle takes in those that need not wait any more.
func (c *dialogues) settle() {
	for moved := len(c.late) > 0; moved; {
		moved = false
		c.late = slices.DeleteFunc(c.late, func(d *dialogue) bool {
			for len(d.late) > 0 && !c.follows(d, &d.late[0]) {
				a := d.late[0]
				d.late, moved = d.late[1:], true
				c.take(&a)
			}
			return len(d.late) == 0
		})
	}
}

// follows tells that a command which took a key came after one of another connection that gives it back and has no reply so far.
func (c *dialogues) follows(d *dialogue, a *answered) bool {
	if c.last.Sub(a.line.At) > longestLate || !took(a) {
		return false
	}
	key := a.line.Words[1]
	if RunsScript(a.line.Words[0]) {
		key = a.line.Words[3]
	}
	if _, _, there := c.keys.Value(Key{a.line.DB, key}, a.line.At); !there {
		return false
	}
	for other := range c.open {
		if other == d || other.db != a.line.DB {
			continue
		}
		asked := slices.ContainsFunc(other.asked, func(r request) bool { return frees(r.words, key) })
		ran := slices.ContainsFunc(other.late, func(r answered) bool { return frees(r.line.Words, key) }) // and waits behind another one
		if asked || ran {
			return true
		}
	}
	return false
}

var releases = set(`DEL UNLINK GETDEL EVAL EVALSHA FCALL EXEC`)

// taking are the scripts of ours that may take a key. They give none back.
var taking = []*scripts.Script{scripts.BridgeAcquire, scripts.ModernTake, scripts.ModernQueue, scripts.RedissonTake, scripts.GatedWrite, scripts.SidecarTake}

// frees tells that a command may give a key back.
func frees(words []string, key string) bool {
	return releases[words[0]] && slices.Contains(words[1:], key) && !(RunsScript(words[0]) && slices.Contains(taking, scripts.Of(words[1])))
}

// took tells that a command found its key free and took it.
func took(a *answered) bool {
	n, _ := a.reply.integer()
	switch w := a.line.Words; w[0] {
	case "SETNX":
		return len(w) == 3 && n == 1
	case "SET":
		return len(w) > 3 && !a.reply.null
	case "EVAL", "EVALSHA", "FCALL":
		return len(w) > 3 && slices.Contains(taking, scripts.Of(w[1])) && !a.reply.null
	}
	return false
}

// take tells a command. What its reply tells of the key is learnt first, so that nothing has to be guessed.
func (c *dialogues) take(a *answered) {
	l := &a.line
	c.taken++
	switch {
	case len(l.Words) < 2:
	case !c.older(a):
		c.learn(l, a.reply)
	case l.Words[0] != "GET":
		return // it had found nothing to delete when another took the key
	}
	c.scripts.Attribute(l)
	c.writes(l)
	c.tell(l)
	if RunsScript(l.Words[0]) && len(l.Words) > 2 {
		c.script(l, a.reply)
	}
}

// older tells a GET, or a DEL that found nothing, which may have run before another connection's write that is taken in already: what it found
// says nothing of now.
func (c *dialogues) older(a *answered) bool {
	w := a.line.Words
	last, known := c.written[Key{a.line.DB, w[1]}]
	if !known {
		last.n = c.since
	}
	deleted, number := a.reply.integer()
	finds := w[0] == "GET" || (w[0] == "DEL" || w[0] == "UNLINK") && len(w) == 2 && number && deleted == 0
	return finds && last.n > a.after && last.by != a.line.Addr
}

// mostWritten is of how many keys it is known when they were written last.
const mostWritten = 10_000

// writes notes what a command may have written.
func (c *dialogues) writes(l *Command) {
	if len(c.written) >= mostWritten {
		clear(c.written)
		c.since = c.taken
	}
	var keys []string
	switch w := l.Words; {
	case RunsScript(w[0]):
		keys = l.Script.Keys()
	case w[0] == "DEL" || w[0] == "UNLINK":
		keys = w[1:]
	case w[0] != "GET" && len(w) > 1: // another read than GET may count for a write: less is learnt
		keys = w[1:2]
	}
	for _, key := range keys {
		c.written[Key{l.DB, key}] = write{l.Addr, c.taken}
	}
}
