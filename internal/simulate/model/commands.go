package model

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Operation executes one command.
type Operation func(*call) protocol.Reply

// operations is the whole command set, with the names that people know: what is not here is an unknown command.
var operations = [...]struct {
	name string
	run  Operation
}{
	protocol.SetNX:      {"SETNX", setNX},
	protocol.Get:        {"GET", get},
	protocol.GetSet:     {"GETSET", getSet},
	protocol.Del:        {"DEL", del},
	protocol.Watch:      {"WATCH", watchKey},
	protocol.Unwatch:    {"UNWATCH", unwatch},
	protocol.Commit:     {"MULTI SET EXEC", commit},
	protocol.CompareDel: {"compare_del", compareDel},
	protocol.CompareSet: {"compare_set", compareSet},

	protocol.BridgeTake:   {"bridge_acquire", bridgeTake},
	protocol.BridgeSettle: {"bridge_settle", bridgeSettle},
	protocol.BridgeExtend: {"bridge_renew", bridgeExtend},
	protocol.BridgeDrop:   {"bridge_release", bridgeDrop},

	settlePutting: {"bridge_settle, putting back", bridgeSettle},
	Copying:       {"SET PX", copying},

	protocol.SidecarTake: {"sidecar_take", sidecarTake},
	protocol.SidecarGet:  {"sidecar_get", sidecarGet},
	protocol.SidecarDel:  {"sidecar_del", sidecarDel},
	protocol.SidecarKeep: {"sidecar_keep", sidecarKeep},

	protocol.SetToken:     {"SET NX PX", setToken},
	protocol.Take:         {"modern_take", take},
	protocol.Extend:       {"modern_extend", extend},
	protocol.Queue:        {"modern_queue", enqueue},
	protocol.QueueRelease: {"modern_release", queueRelease},

	protocol.RedissonTake:    {"modern_redisson_take", redissonTake},
	protocol.RedissonExtend:  {"modern_redisson_extend", redissonExtend},
	protocol.RedissonRelease: {"modern_redisson_release", redissonRelease},
}

func init() { // it runs another of them
	operations[protocol.SidecarRun].name, operations[protocol.SidecarRun].run = "sidecar_run", sidecarRun
}

const wrongType = "WRONGTYPE Operation against a key holding the wrong kind of value"

func setNX(c *call) protocol.Reply {
	if c.late() {
		return fault(refusal)
	}
	there := c.find(c.command.Key) >= 0
	if c.guarded() && !there {
		return integer(0)
	}
	c.SetNX++
	if there {
		return integer(0)
	}
	c.write(c.command.Key, c.command.Value, 0)
	return integer(1)
}

func get(c *call) protocol.Reply { return c.read(c.command.Key) }

// getSet clears the TTL, as SET does.
func getSet(c *call) protocol.Reply {
	if c.late() {
		return fault(refusal)
	}
	if c.guarded() {
		return fault(heldByBridge)
	}
	old := c.read(c.command.Key)
	if old.Kind == protocol.Fault {
		return old
	}
	c.write(c.command.Key, c.command.Value, 0)
	return old
}

func del(c *call) protocol.Reply {
	if c.remove(c.command.Key) {
		return integer(1)
	}
	return integer(0)
}

func watchKey(c *call) protocol.Reply {
	lived := c.find(c.command.Key) >= 0
	c.watches = append(c.watches, watch{conn: c.conn, key: c.command.Key, lived: lived})
	return text("OK")
}

func unwatch(c *call) protocol.Reply {
	c.forget()
	return text("OK")
}

// commit is MULTI, SET, EXEC: the SET runs unless a watched key was touched, or has expired, since
// WATCH.
func commit(c *call) protocol.Reply {
	dirty := false
	for i := range c.watches {
		w := &c.watches[i]
		if w.conn == c.conn && (w.lived && c.find(w.key) < 0 || w.dirty) {
			dirty = true
		}
	}
	c.forget()
	if dirty {
		return protocol.Reply{Kind: protocol.Nil}
	}
	if c.late() {
		return fault(refusal)
	}
	if c.guarded() {
		return fault(heldByBridge)
	}
	c.write(c.command.Key, c.command.Value, 0)
	return text("OK")
}

func compareDel(c *call) protocol.Reply {
	if !c.holds(c.command.Key, c.command.Value) {
		return integer(0)
	}
	c.remove(c.command.Key)
	return integer(1)
}

// compareSet keeps the TTL that the key has, in whole milliseconds, at least one.
func compareSet(c *call) protocol.Reply {
	if c.late() {
		return fault(refusal)
	}
	if !c.holds(c.command.Key, c.command.Old) {
		return integer(0)
	}
	ttl := int64(keepTTL)
	if c.pttl(c.command.Key) == 0 {
		ttl = 1
	}
	c.write(c.command.Key, c.command.Value, ttl)
	return integer(1)
}

// read is GET.
func (c *call) read(key string) protocol.Reply {
	i := c.find(key)
	switch {
	case i < 0:
		return protocol.Reply{Kind: protocol.Nil}
	case c.entries[i].Kind != String:
		return fault(wrongType)
	default:
		return text(c.entries[i].Value)
	}
}

// holds tells whether a key is a string with the given value.
func (c *call) holds(key, value string) bool {
	i := c.find(key)
	return i >= 0 && c.entries[i].Kind == String && c.entries[i].Value == value
}

// pttl is PTTL: -2 without a key, -1 without a TTL.
func (c *call) pttl(key string) int64 {
	switch i := c.find(key); {
	case i < 0:
		return -2
	case c.entries[i].ExpireMS == 0:
		return -1
	default:
		return c.entries[i].ExpireMS - c.ms
	}
}

// expire is PEXPIRE.
func (c *call) expire(key string, ttl time.Duration) {
	i := c.find(key)
	switch {
	case i < 0:
	case ttl < time.Millisecond:
		c.remove(key)
	default:
		c.touch(key)
		c.entries[i].ExpireMS = c.ms + ttl.Milliseconds()
	}
}

// forget drops the connection's watches.
func (c *call) forget() {
	c.watches = slices.DeleteFunc(c.watches, func(w watch) bool { return w.conn == c.conn })
}

func integer(n int64) protocol.Reply { return protocol.Reply{Kind: protocol.Integer, Int: n} }
func text(s string) protocol.Reply   { return protocol.Reply{Kind: protocol.Text, Text: s} }
func fault(s string) protocol.Reply  { return protocol.Reply{Kind: protocol.Fault, Text: s} }

// SayCommand writes a command as a person would.
func SayCommand(c *protocol.Command) string {
	return strings.TrimRight(operations[c.Op].name+" "+c.Key+" "+c.Value, " ")
}

// SayReply writes a reply as a person would.
func SayReply(r *protocol.Reply) string {
	switch r.Kind {
	case protocol.Nil:
		return "nothing"
	case protocol.Integer:
		return strconv.FormatInt(r.Int, 10)
	case protocol.Fault:
		return "error " + r.Text
	case protocol.Silence:
		return "no reply"
	default:
		return r.Text
	}
}
