package driver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"
)

// link is one connection's life.
//
// The calls stand in one ring, in the order in which they came, which is that of the replies:
//
//	head           next            tail
//	| sent, no reply | to be written |
type link struct {
	server *server
	conn   redis.Conn
	procs  int // processors of this process

	mu               sync.Mutex
	ring             []*call // its length is a power of two
	head, next, tail uint32
	writing          bool   // somebody writes: nothing that is sent may be reused if it is not answered
	asleep           bool   // the writer waits for wake
	roused           uint32 // next, when the writer was woken
	retired          bool   // nothing new, and it is over with the last reply
	crowd            uint32 // the most calls that stood in the ring at once lately
	most, counted    uint32 // the same since the last count began, and how many calls came since
	bytes            int    // of the calls in the ring, estimated
	waiting          int    // callers without a place
	tick             uint32
	heard            uint32 // the tick of the last reply
	ticking          bool
	timer            *time.Timer
	err              error // why the link is over

	// encoded is how far the commands have been handed to redigo, in the ring's numbers. A reply to a later
	// one would be an answer to nothing, and its call may still be in the writer's hands.
	encoded atomic.Uint32

	wake  chan struct{} // of the writer; capacity 1
	room  chan struct{} // a baton among the callers without a place; capacity 1
	over  chan struct{} // closed with err
	spare func() bool   // ends the watch over a retired link; guarded by mu
	batch []*call       // of the one who is writing
}

// ownBytes are unanswered at most where a caller writes itself. Its write never blocks: the send buffers of systems in use have as
// many or more.
const ownBytes = 8192

// ticks is how finely the watchdog divides the reply timeout.
const ticks = 4

func newLink(s *server) *link {
	return &link{
		server: s, procs: runtime.GOMAXPROCS(0), ring: make([]*call, 64),
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), over: make(chan struct{}),
	}
}

func (k *link) start(conn redis.Conn) {
	k.conn = conn
	k.mu.Lock()
	k.timer = time.AfterFunc(k.server.owner.opts.Ping, k.look)
	k.mu.Unlock()
	k.server.owner.background.Fork(k.read)
	k.server.owner.background.Fork(k.write)
}

// submit gives a call its place. It returns false when the link is over, and an error when ctx ended
// before there was room or nothing new is taken.
func (k *link) submit(ctx context.Context, c *call) (bool, error) {
	k.mu.Lock()
	if k.full() && !c.batched { // a batch bounds itself
		if err := k.waitForRoom(ctx); err != nil { // unlocks and locks
			k.mu.Unlock()
			return false, err
		}
	}
	if k.err != nil || k.retired {
		k.mu.Unlock()
		return false, nil
	}
	if c.request.AnswerLast {
		// The server writes to its clients in the reverse of the order in which it first had something for
		// them. With an answer to write already when the command publishes, we are the last.
		k.pushOrphan("PING")
	}
	if c.asking {
		// Nothing may come between the two: on another command for a slot that is being moved, it would let a
		// key come into being on both servers.
		k.pushOrphan("ASKING")
	}
	k.push(c)
	k.watch()
	k.count()
	worth := k.head == k.next || k.tail-k.next >= k.share() // the server has nothing to do, or will have soon
	if worth && !c.batched {
		k.flush()
		return true, nil
	}
	k.rouse()
	k.mu.Unlock()
	return true, nil
}

// share is how many calls make a write: a quarter of the crowd.
func (k *link) share() uint32 { return max(k.crowd/4, 1) }

// few tells that there are so few callers that it counts who runs when. Among many, a write is never short of commands.
func (k *link) few() bool { return k.crowd <= 8 }

// flush writes what is queued if that cannot block, and leaves it to the writer otherwise. Called with mu held, which it gives up.
func (k *link) flush() {
	if k.next == k.tail || k.err != nil {
		k.mu.Unlock()
		return
	}
	if k.writing || k.bytes > ownBytes {
		k.rouse()
		k.mu.Unlock()
		return
	}
	k.send()
}

// count keeps crowd. Called with mu held.
func (k *link) count() {
	k.most = max(k.most, k.tail-k.head)
	k.crowd = max(k.crowd, k.most)
	if k.counted++; k.counted > 4*k.crowd+16 {
		k.crowd, k.most, k.counted = k.most, 0, 0
	}
}

func (k *link) full() bool {
	return int(k.tail-k.head) >= k.server.owner.opts.Bound && k.err == nil && !k.retired
}

// waitForRoom waits until there is a place. Called, and returning, with mu held.
func (k *link) waitForRoom(ctx context.Context) error {
	k.waiting++
	defer func() {
		k.waiting--
		k.offerRoom() // there may be more than one place; and one who leaves must not keep the baton
	}()
	for k.full() {
		k.mu.Unlock()
		select {
		case <-k.room:
		case <-k.over:
		case <-ctx.Done():
			k.mu.Lock()
			return context.Cause(ctx)
		}
		k.mu.Lock()
	}
	return nil
}

// offerRoom wakes one of the callers without a place, if there is one. Called with mu held.
func (k *link) offerRoom() {
	if k.waiting > 0 && !k.full() {
		signal(k.room)
	}
}

func (k *link) push(c *call) {
	if int(k.tail-k.head) == len(k.ring) {
		grown := make([]*call, 2*len(k.ring))
		for i := k.head; i != k.tail; i++ {
			grown[i&uint32(len(grown)-1)] = *k.slot(i)
		}
		k.ring = grown
	}
	c.link, c.at, c.tick, c.bytes = k, queued, k.tick, c.size()
	k.bytes += c.bytes
	*k.slot(k.tail) = c
	k.tail++
}

// pushOrphan places a command whose reply nobody waits for.
func (k *link) pushOrphan(name string) {
	c := k.server.owner.calls.get()
	c.request.Name, c.orphan = name, true
	k.push(c)
}

func (k *link) slot(i uint32) **call { return &k.ring[i&uint32(len(k.ring)-1)] }

// rouse wakes the writer if it sleeps. Called with mu held.
func (k *link) rouse() {
	if k.asleep {
		k.asleep, k.roused = false, k.next
		signal(k.wake)
	}
}

// await waits for the reply of a call, or for the end of its caller's patience.
func (k *link) await(ctx context.Context, c *call) progress {
	gone := ctx.Done()
	if gone == nil {
		<-c.done
		return answered
	}
	select {
	case <-c.done:
		return answered
	case <-gone:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch c.at {
	case queued:
		if c.asking { // it stays with its ASKING
			return abandonedCall
		}
		c.at = withdrawn
		return withdrawn
	case sent, abandonedCall:
		c.at = abandonedCall
		return abandonedCall
	default:
		<-c.done // it came just now
		return answered
	}
}

// write is the writer.
func (k *link) write() {
	for {
		// A goroutine that is ready to run gets its command into the same write.
		runtime.Gosched()
		k.mu.Lock()
		if k.err != nil {
			k.mu.Unlock()
			return
		}
		if k.writing || k.next == k.tail {
			k.asleep = true
			k.mu.Unlock()
			select {
			case <-k.wake:
			case <-k.over:
			}
			continue
		}
		if k.few() && k.next != k.roused { // others have written meanwhile: more may join what came after that
			k.roused = k.next
			k.mu.Unlock()
			continue
		}
		k.send()
	}
}

// send writes what is queued, as one batch. Called with mu held; it releases mu.
func (k *link) send() {
	first := k.next
	k.take()
	k.writing = true
	k.mu.Unlock()
	k.transmit(first)
	clear(k.batch)
	k.mu.Lock()
	k.wrote()
}

// take moves what is queued to the batch, and drops what was withdrawn. Called with mu held.
func (k *link) take() {
	k.batch = k.batch[:0]
	to := k.next
	for i := k.next; i != k.tail; i++ {
		c := *k.slot(i)
		*k.slot(i) = nil
		if c.at == withdrawn {
			k.bytes -= c.bytes
			c.free()
			continue
		}
		c.at = sent
		*k.slot(to) = c
		to++
		k.batch = append(k.batch, c)
	}
	k.next, k.tail = to, to
	k.offerRoom()
}

// transmit writes the batch. The first call of it has a number in the ring. Once it is encoded, a call can be
// answered and used again at any moment, so nothing looks at it afterwards.
func (k *link) transmit(first uint32) {
	for i, c := range k.batch {
		c.last = i == len(k.batch)-1
		if err := k.conn.Send(c.request.Name, c.request.Args()...); err != nil {
			k.fail(err)
			return
		}
		k.encoded.Store(first + uint32(i) + 1)
	}
	if err := k.conn.Flush(); err != nil {
		k.fail(err)
	}
}

// wrote ends a write. Called with mu held, which it gives up.
func (k *link) wrote() {
	k.writing = false
	failed := k.err != nil
	if !failed && k.next != k.tail {
		k.rouse()
	}
	k.mu.Unlock()
	if failed {
		k.resolve()
	}
}

// read is the reader: it hands out the replies until the connection ends.
func (k *link) read() {
	for {
		raw, err := redis.ReceiveWithTimeout(k.conn, 0) // the watchdog bounds the wait
		if err != nil {
			if _, refused := err.(redis.Error); !refused {
				k.fail(err)
				return
			}
		}
		k.mu.Lock()
		if k.head == k.next || k.head == k.encoded.Load() {
			k.mu.Unlock()
			k.fail(unasked(raw, err))
			return
		}
		slot := k.slot(k.head)
		c := *slot
		*slot = nil
		k.head++
		k.bytes -= c.bytes
		k.heard = k.tick
		c.at = answered
		k.offerRoom()
		over := k.retired && k.head == k.tail
		yield := c.last && k.few()
		k.mu.Unlock()
		if c.orphan {
			c.free()
		} else {
			c.raw, c.err = raw, err
			c.done <- struct{}{}
		}
		if over {
			k.fail(errRetired)
			return
		}
		if yield { // those who wrote together do so again, before the next ones are woken: else all would meet in one write
			runtime.Gosched()
		}
	}
}

// unasked is the end of a connection on which requests and replies do not match. What the server says to
// nobody is mostly why it hangs up: too many clients, no password.
func unasked(raw any, refused error) error {
	if refused != nil {
		return fmt.Errorf("the server, unasked: %w", refused)
	}
	return fmt.Errorf("a reply that nobody asked for: %T", raw)
}

// fail ends the link. What was sent is resolved when nobody writes any more.
func (k *link) fail(err error) {
	k.mu.Lock()
	if k.err != nil {
		k.mu.Unlock()
		return
	}
	k.err = err
	if k.timer != nil {
		k.timer.Stop()
	}
	close(k.over)
	if k.spare != nil {
		k.spare()
	}
	writing := k.writing
	k.mu.Unlock()
	_ = k.conn.Close() // wakes the reader, and a writer that is stuck
	k.server.broke(k, err)
	if !writing {
		k.resolve()
	}
}

// errRetired is the end of a link that was left.
var errRetired = errors.New("another connection takes its place")

// retire has nothing new sent on the link, and ends it with the last reply. What was not sent goes elsewhere.
func (k *link) retire() {
	k.mu.Lock()
	if k.err != nil || k.retired {
		k.mu.Unlock()
		return
	}
	k.retired = true
	k.spare = context.AfterFunc(k.server.owner.life, func() { k.fail(ErrClosed) }) // its server does not know it any more
	k.dropQueued(errBeforeItsTurn)
	k.offerRoom() // those who wait for a place shall hear of it
	over := k.head == k.tail
	k.mu.Unlock()
	if over {
		k.fail(errRetired)
	}
}

// dropQueued answers what the writer has not taken. Called with mu held.
func (k *link) dropQueued(why error) {
	for i := k.next; i != k.tail; i++ {
		c := *k.slot(i)
		*k.slot(i) = nil
		if c.at == withdrawn || c.orphan {
			c.free()
			continue
		}
		c.at, c.err = answered, why
		c.done <- struct{}{}
	}
	k.tail = k.next
}

// resolve tells every caller that no reply will come. The link is over and nobody writes.
func (k *link) resolve() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for ; k.head != k.tail; k.head++ {
		c := *k.slot(k.head)
		if c.at == withdrawn {
			c.free()
			continue
		}
		c.err = k.err
		if c.at == queued {
			c.err = errBeforeItsTurn
		}
		c.at = answered
		c.done <- struct{}{}
	}
	k.next = k.tail
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
