package driver

import (
	"errors"
	"sync"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// call is one command on its way. It is used again and again, together with the room for its arguments
// and the channel that its caller waits on.
//
// Its owner is the caller, until submitted and again once done has delivered; in between the link,
// which writes only raw and err, before done.
type call struct {
	home    *calls
	request wire.Request
	batched bool // more are to follow: leave it to the writer
	misled  bool // it was sent to the wrong server, and once more over another connection
	asking  bool // ASKING goes before it
	orphan  bool // nobody waits for its reply
	last    bool // of those that were written together; transmit sets it

	// push sets these.
	link  *link    // where it was submitted last
	at    progress // guarded by the link's mu
	tick  uint32
	bytes int // size

	raw  any
	err  error
	done chan struct{} // receives once for each submission; capacity 1
}

// progress is where a call stands with its link.
type progress uint8

const (
	queued        progress = iota
	sent                   // taken by the writer: it may run from now on
	answered               // or the link broke
	withdrawn              // its caller left before it was sent
	abandonedCall          // its caller left after, and may come back for the reply
)

// calls are those of a Shared that nobody has. They are not the package's: a call's channel belongs to the testing/synctest bubble in
// which it was made, as the Shared does.
type calls struct{ idle sync.Pool }

func (p *calls) get() *call {
	if c, ok := p.idle.Get().(*call); ok {
		return c
	}
	return &call{home: p, done: make(chan struct{}, 1)}
}

// free gives a call back that nobody else has.
func (c *call) free() {
	c.request.Clear()
	c.batched, c.misled, c.asking, c.orphan = false, false, false, false
	c.link, c.raw, c.err = nil, nil, nil
	c.home.idle.Put(c)
}

// errBeforeItsTurn is what a call gets that stood in the queue when the connection broke.
var errBeforeItsTurn = errors.New("the connection broke before the command was sent")

// unrun tells that a call has certainly not run, and may be sent once more.
func (c *call) unrun() bool {
	return c.err != nil && (c.err == errBeforeItsTurn || c.forgotten())
}

// forgotten tells that the server does not know the script.
func (c *call) forgotten() bool {
	return c.request.Script != nil && c.request.Name == "EVALSHA" && wire.IsNoScript(c.err)
}

// elsewhere tells that the server has said that it is the wrong one.
func (c *call) elsewhere() bool {
	refused, ok := c.err.(redis.Error)
	return ok && topology.Elsewhere(string(refused))
}

// renew makes it ready to be submitted again.
func (c *call) renew() {
	if c.forgotten() {
		c.request.ByText()
	}
	c.raw, c.err = nil, nil
}

// size is how many bytes it takes on the wire, or somewhat more.
func (c *call) size() int {
	const count, text, number = 6, 11, 27 // what stands before and after an argument below 1 MB; a number's digits with it
	n := count + text + len(c.request.Name)
	for _, a := range c.request.Args() {
		switch a := a.(type) {
		case string:
			n += text + len(a)
		case []byte:
			n += text + len(a)
		default:
			n += number
		}
	}
	return n
}
