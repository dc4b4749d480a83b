package observe

import (
	"maps"
	"net"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Peer is what CLIENT LIST says about a connection.
type Peer struct {
	Name, User, Lib string
}

// client is one connection.
type client struct {
	o      *Observer
	addr   string
	votes  map[vote]int64
	first  protocol.Instant // of its commands that use a lock
	last   protocol.Instant // of all
	before protocol.Instant // of its command before

	attempts    map[traffic.Key]*attempt
	uses        map[string]*use // by family
	databases   []int           // of its keys, rising
	poll        samples
	acquired    int64
	released    int64
	tries       int64
	getRelease  int64 // releases that looked before they deleted
	blindDelete int64
	textTwice   int64 // takeovers with a float that it had sent before
	textAnew    int64 // and with one that it made anew
	watched     traffic.Key
	ttl         time.Duration // of the last lock that it set one for
	sidecar     string        // the name of its sidecar, empty for none
	member      bool          // it sends commands of the old scheme by the scripts that check a member's bound
	digest      []string      // its last script, where that was an EVALSHA

	sent       map[string]int64  // what it sent to locks, by command: SETNX, GETSET, SET NX, SET GET, SET, SETEX
	wins       int64             // acquisitions by SETNX or SET NX without a TTL
	expired    int64             // those that an EXPIRE followed
	failures   int64             // tries that found the key taken
	readAfter  int64             // failed tries after which it read the value
	blindSets  int64             // SETs of an expiry on a key that it had just read
	blindNames bool              // it writes seconds on keys that are named as blind setters name them
	timeToken  *protocol.Dialect // of the times that it wrote by SET NX with a TTL
	pause      samples           // from the GET to the GETSET or SET of a takeover
	clock      clock             // as it was solved last
}

// sighting is what a GET found.
type sighting struct {
	at           protocol.Instant // 0: there was none
	value        string
	known, there bool
}

// recent tells that there was one not long before.
func (s *sighting) recent(now protocol.Instant) bool { return s.at != 0 && now.Sub(s.at) < time.Minute }

// vote is what one command makes a client look like.
type vote struct{ kind, dialect string }

// attempt is one client wanting one key.
type attempt struct {
	first, last protocol.Instant // of the tries
	failed      bool             // the last try did
	pending     bool             // its outcome is not known yet
	noTTL       bool             // the last try was without a TTL
	wrote       string           // the last try's or takeover's value
	read        sighting         // by the last GET, since the last try
	left        bool             // a GET before the release told that the key was lost
	looked      bool             // a GET came after the last try
	waiting     bool             // nothing came after that GET, which found a value
	before      protocol.Instant // of its connection's command before the last try
}

// hold is one client having one key.
type hold struct {
	c          *client
	at         protocol.Instant // acquired, or renewed last
	began      protocol.Instant // acquired
	ttl        time.Duration    // 0: none was seen
	value      string
	form       form
	how        string
	ended      protocol.Instant // 0 while it may believe to hold
	bySetNX    bool             // taken by SETNX, or SET NX without a TTL
	expiring   bool             // an EXPIRE followed
	lost       string           // what took the key away, while it may believe to hold
	lostAt     protocol.Instant
	successors []*hold
}

// lock is one key that locks use.
type lock struct {
	id     traffic.Key
	family string
	holder *hold           // whose acquisition was the last, if it has not ended
	past   []*hold         // lost the key, but may not know
	unit   string          // the dialect that wrote last
	odd    map[string]bool // dialects and values on it that others misread
	users  []user
}

const maxPast, mostOdd = 16, 64

// client finds the client of a line; nil when there are too many.
func (o *Observer) client(l *traffic.Command) *client {
	c := o.clients[l.Addr]
	if c == nil && len(o.clients) >= maxClients && o.counts.Crowded%1000 == 0 {
		// Clients that have used no lock need not be remembered.
		maps.DeleteFunc(o.clients, func(_ string, c *client) bool { return len(c.votes) == 0 && c.acquired == 0 && c.released == 0 })
	}
	if c == nil && len(o.clients) >= maxClients {
		o.counts.Crowded++
	} else if c == nil {
		addr := strings.Clone(l.Addr)
		c = &client{o: o, addr: addr, votes: map[vote]int64{}, sent: map[string]int64{}, attempts: map[traffic.Key]*attempt{}, uses: map[string]*use{}}
		o.clients[addr] = c
	}
	return c
}

// rowName is the name of the row that a connection belongs to.
func (o *Observer) rowName(c *client) string {
	switch name := o.names[c.addr].Name; {
	case o.opts.Group == ByHost:
		return hostOf(c.addr)
	case o.opts.Group == ByName && name != "":
		return name
	case o.opts.Group == ByName && c.sidecar != "":
		return "sidecar:" + c.sidecar
	}
	return c.addr
}

// same tells whether two connections are one party under the grouping.
func (o *Observer) same(a, b *client) bool {
	return a == b || o.opts.Group != ByAddr && o.rowName(a) == o.rowName(b)
}

func (c *client) attempt(id traffic.Key) *attempt {
	a := c.attempts[id]
	if a == nil {
		if len(c.attempts) > 256 { // keys with an id in their name: forget the attempts that are over
			clear(c.attempts)
		}
		a = &attempt{}
		c.attempts[traffic.Key{DB: id.DB, Name: strings.Clone(id.Name)}] = a
	}
	return a
}

// hostOf returns the host of an address: what is the same for all connections of one machine.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "unix" {
		return host
	}
	return addr
}
