package sim

import (
	"math"
	"math/bits"
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
	sets     map[string]roomRange // of each set's rooms, by its prefix
	habits   []habit              // of each client
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
	number, ok := strings.CutPrefix(key, s.Prefix)
	n, err := strconv.Atoi(number)
	return ok && err == nil && n >= 0 && n < s.Count && strconv.Itoa(n) == number
}

type roomRange struct{ first, count int32 }

// habit is on which of a master's keys a client works, and with which share of its time.
type habit struct {
	picks     []pick
	mine, all uint64 // the weight of its keys on this master, and of all its keys
}

// pick is a run of rooms that are drawn equally often.
type pick struct {
	upTo  uint64 // the weights of the picks before, and of this
	each  uint64
	room  int32
	count int32
}

// pick draws the room of a turn.
func (h *habit) pick(g *Generator) int32 {
	if len(h.picks) == 1 && h.picks[0].count == 1 {
		return h.picks[0].room
	}
	at, before := g.Below(h.mine), uint64(0)
	for i := range h.picks {
		p := &h.picks[i]
		if at < p.upTo {
			return p.room + int32((at-before)/p.each)
		}
		before = p.upTo
	}
	return h.picks[0].room
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
		w.byName, w.sets, w.channels = map[string]int32{}, map[string]roomRange{}, map[string][]int32{}
	}
	clear(w.byName)
	clear(w.sets)
	clear(w.channels)
	w.rooms, w.habits = w.rooms[:0], w.habits[:0]
	for i := range fleet.Clients { // the keys of sets first: a client may have one of them for its only key
		for _, set := range fleet.Clients[i].Keys {
			w.roomsOf(fleet, master, set)
		}
	}
	for i := range fleet.Clients {
		c := &fleet.Clients[i]
		w.habits = append(w.habits, habit{})
		h := &w.habits[i]
		if len(c.Keys) == 0 {
			h.all = 1
			w.give(h, w.rooming(fleet, master, c.Key), 1)
		}
		for _, set := range c.Keys {
			each := uint64(max(set.Weight, 1))
			h.all += each * uint64(set.Count)
			w.give(h, w.roomsOf(fleet, master, set), each)
		}
		if h.mine > 0 && (c.Queue || c.Scheme == model.Sidecar) && !c.Polls {
			s := model.NewSession(i, &c.Member)
			w.channels[s.Channel()] = append(w.channels[s.Channel()], int32(i))
		}
	}
}

// give adds rooms to what a client works on.
func (w *World) give(h *habit, s roomRange, each uint64) {
	if s.count > 0 {
		h.mine += each * uint64(s.count)
		h.picks = append(h.picks, pick{upTo: h.mine, each: each, room: s.first, count: s.count})
	}
}

// rooming is the room of one key, or none if it is on another master.
func (w *World) rooming(fleet *Fleet, master int, key string) roomRange {
	if r, ok := w.byName[key]; ok {
		return roomRange{r, 1}
	}
	if masterOf(fleet, key) != master {
		return roomRange{}
	}
	return roomRange{w.open(key), 1}
}

// roomsOf are the rooms of a set's keys on this master.
func (w *World) roomsOf(fleet *Fleet, master int, set KeySet) roomRange {
	if s, ok := w.sets[set.Prefix]; ok {
		return s
	}
	s := roomRange{first: int32(len(w.rooms))}
	for n := range set.Count {
		if key := set.Prefix + strconv.Itoa(n); masterOf(fleet, key) == master {
			w.open(key)
		}
	}
	s.count = int32(len(w.rooms)) - s.first
	w.sets[set.Prefix] = s
	return s
}

func masterOf(fleet *Fleet, key string) int {
	if fleet.Masters <= 1 {
		return 0
	}
	return protocol.Slot(key) * fleet.Masters / 16384
}

// open makes a key's room, in the memory of one of an earlier run if there is any.
func (w *World) open(key string) int32 {
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

// roomOf finds the room of a key, or of the lock that a key belongs to; -1 is none on this master.
func (w *World) roomOf(key string) int32 {
	if r, ok := w.byName[key]; ok {
		return r
	}
	if _, rest, tagged := strings.Cut(key, "{"); tagged {
		if lock, _, closed := strings.Cut(rest, "}"); closed {
			if r, ok := w.byName[lock]; ok {
				return r
			}
		}
	}
	return -1
}
