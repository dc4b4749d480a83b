package model

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// setToken is SET key value NX PX ttl.
func setToken(c *call) protocol.Reply {
	if c.find(c.command.Key) >= 0 {
		return protocol.Reply{Kind: protocol.Nil}
	}
	c.write(c.command.Key, c.command.Value, c.command.TTL.Milliseconds())
	return text("OK")
}

// take is modern_take.lua.
func take(c *call) protocol.Reply {
	key := c.command.Key
	if c.find(key) < 0 {
		c.write(key, c.command.Value, c.command.TTL.Milliseconds())
		return integers(1, c.nextFence(), 0)
	}
	if c.holds(key, c.command.Value) {
		c.expire(key, c.command.TTL)
		return integers(1, c.nextFence(), 0)
	}
	return integers(0, c.pttl(key), 0)
}

// extend is modern_extend.lua.
func extend(c *call) protocol.Reply {
	if i := c.find(c.command.Key); i < 0 || c.entries[i].Kind != String {
		return integer(0)
	} else if found := c.entries[i].Value; found != c.command.Value {
		return protocol.Reply{Kind: protocol.Integer, Text: found}
	}
	c.expire(c.command.Key, c.command.TTL)
	if c.command.Fence != "" && c.command.FenceTTL > 0 {
		c.expire(c.command.Fence, c.command.FenceTTL)
	}
	return integer(1)
}

// nextFence is next_fence of fence.lua: never the same twice, never less than the server's
// clock in microseconds.
func (c *call) nextFence() int64 {
	if c.command.Fence == "" || c.command.FenceTTL == 0 {
		return 0
	}
	last := int64(0)
	if i := c.find(c.command.Fence); i >= 0 {
		last, _ = strconv.ParseInt(c.entries[i].Value, 10, 64)
	}
	if last < 0 || last > mostFence {
		last = 0
	}
	n := c.after(last)
	c.write(c.command.Fence, strconv.FormatInt(n, 10), c.command.FenceTTL.Milliseconds())
	return n
}

// mostFence is the largest count that the scripts believe; what is above it is no counter of theirs.
const mostFence = 9e15

// after is after of fence.lua.
func (c *call) after(last int64) int64 { return max(last+1, int64(c.now)/1000) }

func integers(a, b, d int64) protocol.Reply {
	return protocol.Reply{Kind: protocol.Integer, Int: a, Int2: b, Int3: d}
}

// enqueue is modern_queue.lua.
func enqueue(c *call) protocol.Reply {
	cmd := c.command
	value := c.read(cmd.Key)
	if value.Kind == protocol.Fault {
		return value
	}
	me := cmd.TokenEntry()
	if value.Kind == protocol.Text && value.Text == cmd.Value {
		c.expire(cmd.Key, cmd.TTL)
		c.unqueue(me)
		return integers(1, c.nextFence(), 0)
	}
	left := int64(0)
	if value.Kind == protocol.Nil {
		left = c.shared()
	}
	free := value.Kind == protocol.Nil && left == 0
	if head := c.head(); free && (head == "" || head == me) {
		c.unqueue(me)
		c.write(cmd.Key, cmd.Value, cmd.TTL.Milliseconds())
		return integers(1, c.nextFence(), 0)
	}
	if c.place(me) < 0 {
		c.enter(me)
	}
	c.expire(cmd.Queue, cmd.QueueTTL)
	if free {
		if given, _ := c.grant(cmd.Value, true); !given {
			c.unqueue(me)
			c.write(cmd.Key, cmd.Value, cmd.TTL.Milliseconds())
			return integers(1, c.nextFence(), 0)
		}
	}
	at := c.place(me)
	if left == 0 {
		left = c.pttl(cmd.Key)
	}
	return integers(-int64(at), left, c.waiters()[at].N)
}

// shared is shared of modern_share.lua: for how many more milliseconds the key is left to others.
func (c *call) shared() int64 {
	began, ok := c.run()
	if c.command.Share < time.Millisecond {
		began, ok = c.gapEnds()
	}
	if !ok {
		return 0
	}
	return max(0, began-c.ms)
}

// gapEnds is when the bridge's present gap ends.
func (c *call) gapEnds() (ends int64, ok bool) {
	i := c.find(c.command.Yield)
	if c.command.Yield == "" || i < 0 || c.entries[i].Kind != String {
		return 0, false
	}
	m := gapInState.FindStringSubmatch(c.entries[i].Value)
	if m == nil {
		return 0, false
	}
	ends, err := strconv.ParseInt(m[1], 10, 64)
	return ends, err == nil
}

var gapInState = regexp.MustCompile(`^1 .* (\d+)$`)

// run is run of modern_share.lua: what the share's state says.
func (c *call) run() (began int64, ok bool) {
	i := c.find(c.shareKey())
	if i < 0 || c.entries[i].Kind != String || len(c.entries[i].Value) >= 16 {
		return 0, false
	}
	began, err := strconv.ParseInt(c.entries[i].Value, 10, 64)
	return began, err == nil && began >= 0
}

// pause is pause of modern_share.lua: whether the hand-overs stop for a while now.
func (c *call) pause() bool {
	share := c.command.Share.Milliseconds()
	if share == 0 || c.find(c.command.Queue) < 0 {
		return false
	}
	began, ok := c.run()
	if !ok {
		c.write(c.shareKey(), strconv.FormatInt(c.ms, 10), 7*share)
		return false
	}
	if c.ms-began < 4*share {
		return false
	}
	c.write(c.shareKey(), strconv.FormatInt(c.ms+share, 10), 7*share)
	return true
}

func (c *call) shareKey() string { return protocol.ShareKey(c.command.Key) }

// queueRelease is modern_release.lua.
func queueRelease(c *call) protocol.Reply {
	cmd := c.command
	if cmd.Channel != "" {
		c.leaveQueue(cmd.TokenEntry())
	}
	if !c.holds(cmd.Key, cmd.Value) {
		return integer(0)
	}
	if !c.pause() {
		if given, _ := c.grant("", false); given {
			return integer(2)
		}
	}
	c.remove(cmd.Key)
	c.callFirst()
	return integer(1)
}

// leaveQueue takes a waiter out, and tells the one who is first now.
func (c *call) leaveQueue(me string) {
	wasHead := c.head() == me
	c.unqueue(me)
	if wasHead {
		c.callFirst()
	}
}

// callFirst tells the first waiter who hears it that it is.
func (c *call) callFirst() {
	for i, w := range c.waiters() {
		e, ok := protocol.ParseEntry(w.Name)
		if i == 10 || ok && c.publish(e.Channel, "head "+e.Token) > 0 {
			return
		}
	}
}

// grant gives the key to the first waiter that still listens and still may have it, and tells whether there was one.
// Own is the token of a caller that stands in the queue: it is not passed over, and is given nothing. Free tells that
// nobody has the key: a bridge client may have to settle then, so it is told to look.
func (c *call) grant(own string, free bool) (given, withGuard bool) {
	cmd := c.command
	for {
		waiters := c.waiters()
		if len(waiters) == 0 {
			return false, false
		}
		head := waiters[0]
		e, ok := protocol.ParseEntry(head.Name)
		if ok && own != "" && e.Token == own {
			c.unqueue(head.Name)
			return false, false
		}
		late := e.Until != 0 && c.ms > int64(e.Until)/int64(time.Millisecond)
		if !ok || late || e.Channel != protocol.Polls && (c.Listening == nil || c.Listening(e.Channel) == 0) {
			c.unqueue(head.Name)
			continue
		}
		owner, guarded := c.text(cmd.Guard)
		if e.Guarded && (cmd.Guard == "" || guarded && (cmd.Op != protocol.BridgeDrop || owner != cmd.Value)) {
			return false, false
		}
		c.unqueue(head.Name)
		if e.Guarded && free {
			c.publish(e.Channel, "head "+e.Token)
		} else {
			c.publish(e.Channel, grantMessage(e.Token, head.N, c.nextFence()))
		}
		c.write(cmd.Key, e.Token, e.Claim.Milliseconds())
		if e.Guarded {
			c.write(cmd.Guard, e.Token, e.Claim.Milliseconds())
		}
		return true, e.Guarded
	}
}

func grantMessage(token string, ticket, fence int64) string {
	return fmt.Sprintf("%d %d %s", ticket, fence, token)
}

// publish returns how many listen at this server. Others may hear as well, at a replica.
func (c *call) publish(channel, message string) int {
	if c.Listening == nil {
		return 0
	}
	c.Published = append(c.Published, Message{channel, message})
	return c.Listening(channel)
}

// waiters returns the queue in its order.
func (c *call) waiters() []Field {
	if i := c.find(c.command.Queue); i >= 0 && c.entries[i].Kind == SortedSet {
		return c.entries[i].Fields
	}
	return nil
}

func (c *call) head() string {
	if w := c.waiters(); len(w) > 0 {
		return w[0].Name
	}
	return ""
}

func (c *call) place(name string) int { return named(c.waiters(), name) }

// named is where a field of a hash or a member of a sorted set is, or -1.
func named(fields []Field, name string) int {
	return slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })
}

// enter appends a waiter with the next ticket.
func (c *call) enter(name string) {
	waiters := c.waiters()
	last := int64(0)
	if len(waiters) > 0 {
		last = waiters[len(waiters)-1].N
	}
	longer := append(slices.Clone(waiters), Field{name, c.after(last)})
	if i := c.find(c.command.Queue); i >= 0 {
		c.entries[i].Fields = longer
		return
	}
	c.Put(Entry{Key: c.command.Queue, Kind: SortedSet, Fields: longer})
}

// unqueue removes a waiter; an empty queue is no key.
func (c *call) unqueue(name string) {
	at := c.place(name)
	if at < 0 {
		return
	}
	i := c.find(c.command.Queue)
	c.entries[i].Fields = slices.Delete(slices.Clone(c.entries[i].Fields), at, at+1)
	if len(c.entries[i].Fields) == 0 {
		c.remove(c.command.Queue)
	}
}

// rename has one waiter's entry take the place of another.
func (c *call) rename(from, to string) {
	at, i := c.place(from), c.find(c.command.Queue)
	fields := slices.Clone(c.entries[i].Fields)
	fields[at].Name = to
	c.entries[i].Fields = fields
}

// leave removes entries of ours.
func (c *call) leave(entries ...string) {
	for _, entry := range entries {
		if c.command.Queue != "" && entry != "" {
			c.unqueue(entry)
		}
	}
}
