package wire

import (
	"fmt"
	"strconv"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

func modernRequest(c protocol.Command) (Request, error) {
	var key any = c.Key // boxed once for all its places
	switch c.Op {
	case protocol.SetToken:
		return plain("SET", key, c.Value, "NX", "PX", c.TTL.Milliseconds())
	case protocol.Take:
		counter, fencing := counterOf(key, c)
		return script(scripts.ModernTake, key, counter, c.Value, c.TTL.Milliseconds(), fencing)
	case protocol.Extend:
		counter, fencing := counterOf(key, c)
		return script(scripts.ModernExtend, key, counter, c.Value, c.TTL.Milliseconds(), fencing)
	case protocol.Queue:
		if c.Fence == "" && c.Share == 0 {
			return brief(script(scripts.ModernQueue, key, c.Queue, c.Value, c.TTL.Milliseconds(), Entry(c), c.QueueTTL.Milliseconds()))
		}
		counter, fencing := counterOf(key, c)
		return script(scripts.ModernQueue, key, c.Queue, counter, share(key, c),
			c.Value, c.TTL.Milliseconds(), Entry(c), c.QueueTTL.Milliseconds(), fencing, c.Share.Milliseconds())
	case protocol.QueueRelease:
		return releaseRequest(key, c)
	case protocol.NativeDel:
		if c.Old == "DELIFEQ" {
			return plain("DELIFEQ", c.Key, c.Value)
		}
		return plain("DELEX", c.Key, "IFEQ", c.Value)
	case protocol.RedissonTake:
		return script(scripts.RedissonTake, c.Key, c.TTL.Milliseconds(), c.Value)
	case protocol.RedissonExtend:
		return script(scripts.RedissonExtend, c.Key, c.TTL.Milliseconds(), c.Value)
	case protocol.RedissonRelease:
		return script(scripts.RedissonRelease, c.Key, c.Channel, "0", c.TTL.Milliseconds(), c.Value)
	case protocol.RedissonCount:
		return plain("HGET", c.Key, c.Value)
	case protocol.Unqueue:
		return plain("ZREM", c.Queue, Entry(c))
	case protocol.WaitReplicas:
		return plain("WAIT", c.Count, c.TTL.Milliseconds())
	default:
		return Request{}, fmt.Errorf("wire: no command for op %d", c.Op)
	}
}

func releaseRequest(key any, c protocol.Command) (Request, error) {
	var r Request
	var err error
	if c.Fence == "" && c.Share == 0 && c.Channel == "" {
		r, err = brief(script(scripts.ModernRelease, key, c.Queue, c.Value))
	} else {
		counter, fencing := counterOf(key, c)
		entry := ""
		if c.Channel != "" {
			entry = Entry(c)
		}
		r, err = script(scripts.ModernRelease, key, c.Queue, counter, share(key, c), c.Value, fencing, entry, c.Share.Milliseconds())
	}
	r.AnswerLast = c.Wanted
	return r, err
}

// brief makes a script's call one with two keys, where it says that the others may be left out.
func brief(r Request, err error) (Request, error) {
	r.args[1] = 2
	return r, err
}

// Entry is how a waiter stands in a queue: who it will be, for how long it may own the key before it
// has spoken, and where it listens.
func Entry(c protocol.Command) string {
	return c.Value + " " + strconv.FormatInt(c.Claim.Milliseconds(), 10) + " " + c.Channel
}

// counterOf names the fencing counter, or the lock's own key in its place: every key of a script must be in one slot.
func counterOf(key any, c protocol.Command) (counter any, ttl int64) {
	if c.Fence == "" {
		return key, 0
	}
	return c.Fence, c.FenceTTL.Milliseconds()
}

// share names where the share's state is, or the lock's own key in its place.
func share(key any, c protocol.Command) any {
	if c.Share == 0 {
		return key
	}
	return protocol.ShareKey(c.Key)
}

// fence is counterOf for those who have not boxed the key.
func fence(c protocol.Command) (counter string, ttl int64) {
	if c.Fence == "" {
		return c.Key, 0
	}
	return c.Fence, c.FenceTTL.Milliseconds()
}
