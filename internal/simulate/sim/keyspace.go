package sim

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// keyspace is the keys of one master and who works on them.
type keyspace struct {
	rooms    []room
	byName   map[string]int32
	sets     map[KeySet][]int32 // the rooms of each set
	habits   []habit            // of each client
	channels map[string][]int32
}

// room is one lock: its key, the keys beside it on the server, and who is inside. Commands never touch two locks, so each
// has a store of its own; but for the count of SETNX, which is the server's.
type room struct {
	key, fence string
	store      model.Store
	inside     []int32          // the clients inside, in order of entry
	since      protocol.Instant // two or more are inside
	lastFence  int64
	died       int32   // the client that crashed inside, if nobody was inside since
	watchers   []int32 // clients that hear of the next change of the key
}

// Has tells whether a key is of the set.
func (s KeySet) Has(key string) bool {
	if s.Count == 0 {
		return key == s.Prefix
	}
	n, err := strconv.Atoi(strings.TrimPrefix(key, s.Prefix))
	return err == nil && n >= 0 && n < s.Count && s.key(n) == key
}

// key is the n-th key of the set.
func (s KeySet) key(n int) string {
	if s.Count == 0 {
		return s.Prefix
	}
	return s.Prefix + strconv.Itoa(n)
}

// weights are how often a key of the set is drawn, and all of them together.
func (s KeySet) weights() (each, all uint64) {
	each = uint64(max(s.Weight, 1))
	return each, each * uint64(max(s.Count, 1))
}

// sets are what a client works on.
func (c *Client) sets() []KeySet {
	if len(c.Keys) == 0 {
		return []KeySet{{Prefix: c.Key}}
	}
	return c.Keys
}

// locks tells whether a key is one of the client's.
func (c *Client) locks(key string) bool {
	return slices.ContainsFunc(c.sets(), func(set KeySet) bool { return set.Has(key) })
}

// DrawKey draws the key of a client's turn.
func (c *Client) DrawKey(g *Generator) string {
	sum := uint64(0)
	for _, set := range c.sets() {
		_, all := set.weights()
		sum += all
	}
	at := g.Below(sum)
	for _, set := range c.sets() {
		each, all := set.weights()
		if at < all {
			return set.key(int(at / each))
		}
		at -= all
	}
	return ""
}

// habit is on which of a master's keys a client works, and with which share of its time.
type habit struct {
	picks     []pick
	mine, all uint64 // the weight of its keys on this master, and of all its keys
}

// pick are rooms that are drawn equally often.
type pick struct {
	upTo  uint64 // the weights of the picks before, and of this
	each  uint64
	rooms []int32
}

// pick draws the room of a turn.
func (h *habit) pick(g *Generator) int32 {
	if len(h.picks) == 1 && len(h.picks[0].rooms) == 1 {
		return h.picks[0].rooms[0]
	}
	at, before := g.Below(h.mine), uint64(0)
	for i := range h.picks {
		p := &h.picks[i]
		if at < p.upTo {
			return p.rooms[(at-before)/p.each]
		}
		before = p.upTo
	}
	return h.picks[0].rooms[0]
}

// spread is how long a client is idle that has a part of its keys on this master: so long that its turns here are that
// part of its turns.
func (h *habit) spread(think, hold time.Duration) time.Duration {
	if h.mine == h.all {
		return think
	}
	high, low := bits.Mul64(uint64(max(think+hold, 0)), h.all)
	if high >= h.mine {
		return math.MaxInt64 / 4
	}
	cycle, _ := bits.Div64(high, low, h.mine)
	return time.Duration(min(cycle, math.MaxInt64/4)) - hold
}

// layOut makes the rooms of one master and shows each client to its own.
func (w *World) layOut(fleet *Fleet, master int) {
	if w.byName == nil {
		w.byName, w.sets, w.channels = map[string]int32{}, map[KeySet][]int32{}, map[string][]int32{}
	}
	clear(w.byName)
	clear(w.sets)
	clear(w.channels)
	w.rooms, w.habits = w.rooms[:0], w.habits[:0]
	for i := range fleet.Clients {
		c := &fleet.Clients[i]
		var h habit
		for _, set := range c.sets() {
			each, all := set.weights()
			h.all += all
			if rooms := w.roomsOf(fleet, master, set); len(rooms) > 0 {
				h.mine += each * uint64(len(rooms))
				h.picks = append(h.picks, pick{h.mine, each, rooms})
			}
		}
		w.habits = append(w.habits, h)
		if h.mine > 0 && (c.Queue || c.Scheme == model.Sidecar) && !c.Polls {
			s := model.NewSession(i, &c.Member)
			w.channels[s.Channel()] = append(w.channels[s.Channel()], int32(i))
		}
	}
}

// roomsOf are the rooms of a set's keys on this master.
func (w *World) roomsOf(fleet *Fleet, master int, set KeySet) []int32 {
	set.Weight = 0
	rooms, known := w.sets[set]
	if known {
		return rooms
	}
	for n := range max(set.Count, 1) {
		if key := set.key(n); masterOf(fleet, key) == master {
			rooms = append(rooms, w.open(key))
		}
	}
	w.sets[set] = rooms
	return rooms
}

func masterOf(fleet *Fleet, key string) int {
	if fleet.Masters <= 1 {
		return 0
	}
	return protocol.Slot(key) * fleet.Masters / 16384
}

// open makes a key's room, unless it has one, in the memory of one of an earlier run if there is any.
func (w *World) open(key string) int32 {
	if r, ok := w.byName[key]; ok {
		return r
	}
	n := len(w.rooms)
	if n < cap(w.rooms) {
		w.rooms = w.rooms[:n+1]
	} else {
		w.rooms = append(w.rooms, room{})
	}
	r := &w.rooms[n]
	r.store.Reset()
	r.store.Listening = w.listening
	*r = room{key: key, fence: protocol.FenceKey(key), died: nobody, store: r.store, inside: r.inside[:0], watchers: r.watchers[:0]}
	w.byName[key] = int32(n)
	return int32(n)
}
