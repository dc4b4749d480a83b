package protocol

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
)

// The keys that may stand beside a lock's key, by how their names end. This table is the only place that
// knows them: the locks make the names, and every tool reads them back with Owner.
const (
	guardEnding  = ":guard"
	fenceEnding  = ":fence"
	recordEnding = ":sidecar"
	yieldEnding  = ":yield"
	queueEnding  = ":queue"
	shareEnding  = ":share"
)

var companionRoles = map[string]string{
	guardEnding:  "the guard",
	fenceEnding:  "the fencing counter",
	recordEnding: "the record of sidecars",
	yieldEnding:  "the state of the gaps for old clients",
	queueEnding:  "the queue",
	shareEnding:  "the pause for polling clients",
}

// GuardKey returns the name of a bridge lock's guard.
func GuardKey(key string) string { return Beside(key, guardEnding) }

// SidecarKey returns the name of the record of what sidecars hold.
func SidecarKey(key string) string { return Beside(key, recordEnding) }

// FenceKey returns the name of a lock's fencing counter, the same in every stage.
func FenceKey(key string) string { return Beside(key, fenceEnding) }

// YieldKey returns the name of the key with the state of the gaps that bridge holders leave for old clients.
func YieldKey(key string) string { return Beside(key, yieldEnding) }

// QueueKey returns the name of the queue of those who wait for a lock, in the stages bridge and modern.
func QueueKey(key string) string { return Beside(key, queueEnding) }

// ShareKey returns the name of the key that says when modern clients last left polling clients a pause.
func ShareKey(key string) string { return Beside(key, shareEnding) }

// Owner tells a key that stands beside a lock's key: the lock's key, and what the companion is to it
// ("the guard"). It is the inverse of the functions above.
func Owner(name []byte) (key, role string, ok bool) {
	end := len(name)
	for end > 0 && name[end-1] == ':' {
		end--
	}
	begin := bytes.LastIndexByte(name[:end], ':')
	if begin < 0 {
		return "", "", false
	}
	role, ok = companionRoles[string(name[begin:end])] // most keys end here, without an allocation
	if !ok {
		return "", "", false
	}
	base := string(name[:begin])
	switch len(name) - end {
	case 0:
		key = strings.TrimSuffix(strings.TrimPrefix(base, "{"), "}")
	case 1:
		key = base
	default:
		_, key, _ = strings.Cut(base, "}")
	}
	return key, role, Beside(key, string(name[begin:end])) == string(name)
}

// RedissonChannel returns the name of the channel on which Redisson's RLock announces a release: the name becomes a
// hash tag, unless it has a brace already.
func RedissonChannel(name string) string {
	const prefix = "redisson_lock__channel:"
	if strings.Contains(name, "{") {
		return prefix + name
	}
	return prefix + "{" + name + "}"
}

// Companions are the keys beside a bridge lock's key.
type Companions struct{ Guard, Fence, Yield, Queue string }

// CompanionsOf names them all, with one allocation in the usual case.
func CompanionsOf(key string) Companions {
	if key == "" || strings.ContainsAny(key, "{}") {
		return Companions{GuardKey(key), FenceKey(key), YieldKey(key), QueueKey(key)}
	}
	all := "{" + key + "}" + guardEnding + "{" + key + "}" + fenceEnding + "{" + key + "}" + yieldEnding + "{" + key + "}" + queueEnding
	guard := len(key) + len("{}"+guardEnding)
	fence := guard + len(key) + len("{}"+fenceEnding)
	yield := fence + len(key) + len("{}"+yieldEnding)
	return Companions{all[:guard], all[guard:fence], all[fence:yield], all[yield:]}
}

// Beside returns the name of a key that accompanies another and lies in the same cluster slot.
//
//	orders          {orders}:guard             a key without a hash tag becomes the tag
//	{7}orders       {7}orders:guard:           one with a tag keeps it
//	a}b, {}a        {n}a}b:guard::             one that cannot become a tag; n is the smallest number of its slot
//
// The colons at the end keep "orders" and "{orders}" from sharing one.
func Beside(key, suffix string) string {
	switch {
	case hashTag(key) != key:
		return key + suffix + ":"
	case key != "" && !strings.Contains(key, "}"):
		return "{" + key + "}" + suffix
	default:
		return "{" + strconv.Itoa(int(slotNumbers()[Slot(key)])) + "}" + key + suffix + "::"
	}
}

const slots = 16384

// slotNumbers returns for each slot the smallest number whose decimal text lies in it. It returns a pointer: the
// array itself, returned by value, would be a part of the stack of each caller.
var slotNumbers = sync.OnceValue(func() *[slots]int32 {
	numbers := new([slots]int32)
	for n, missing := 0, slots; missing > 0; n++ {
		slot := Slot(strconv.Itoa(n))
		if n == 0 || numbers[slot] == 0 && slot != Slot("0") {
			numbers[slot] = int32(n)
			missing--
		}
	}
	return numbers
})

// hashTag returns the part of a key that a cluster hashes: what stands between the first opening brace
// and the next closing one, if that is not empty; else the whole key.
func hashTag(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	end := strings.IndexByte(key[open+1:], '}')
	if end <= 0 {
		return key
	}
	return key[open+1 : open+1+end]
}

// Slot returns the cluster slot of a key: CRC-16 (XMODEM) of its hash tag, modulo 16,384.
func Slot(key string) int {
	var crc uint16
	for _, b := range []byte(hashTag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}
