package observe

import (
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// use is what one client does on one family of keys.
type use struct {
	n                 int64 // commands, by which families are put in order
	tries, acquired   int64
	left, crashed     int64
	hold, wait, think samples
	ttl               bounds
	idle              protocol.Instant // since when it wants nothing; 0 while it works or waits
	leads             map[bool]*leads  // by whether a TTL in the command tells the lease
	lease             lease            // as it was solved last
}

// leads are those that tell a client's clock and lease together; nil for none.
func (c *client) leads(family string) *leads {
	if u := c.uses[family]; u != nil {
		return u.leads[false]
	}
	return nil
}

// mostUses is how many families are remembered of one client.
const mostUses = 64

// use returns a client's use of a family. What is beyond the most that are remembered goes to one that nobody reads.
func (o *Observer) use(c *client, family string) *use {
	u := c.uses[family]
	if u == nil {
		u = &use{leads: map[bool]*leads{}}
		if len(c.uses) >= mostUses || o.uses >= 2*maxClients {
			o.unused++
			return u
		}
		o.uses++
		c.uses[strings.Clone(family)] = u
	}
	return u
}

// lives takes in a TTL that a client gives its locks; 0 is none.
func (u *use) lives(c *client, ttl time.Duration) {
	if ttl > 0 {
		c.ttl = ttl
		u.ttl.reach(ttl)
	}
}

// works notes that a client uses a key.
func (o *Observer) works(c *client, lk *lock) *use {
	lk.user(c)
	if at, known := slices.BinarySearch(c.databases, lk.id.DB); !known {
		c.databases = slices.Insert(c.databases, at, lk.id.DB)
	}
	if c.first == 0 {
		c.first = o.last
	}
	u := o.use(c, lk.family)
	u.n++
	return u
}

// tries notes that a client wants a lock.
func (o *Observer) tries(c *client, lk *lock) *use {
	u := o.works(c, lk)
	c.tries++
	u.tries++
	return u
}

// begins notes the first try of a turn.
func (u *use) begins(a *attempt, at protocol.Instant) {
	if u.idle != 0 {
		u.think.add(at.Sub(u.idle))
	}
	a.first, u.idle = at, 0
}

// gone tells that a client which has not looked for so long has given up: the next try begins another turn.
func (c *client) gone(silence time.Duration) bool {
	limit := time.Minute
	if c.poll.n >= 5 {
		limit = min(limit, max(2*time.Second, 10*c.poll.sum/time.Duration(c.poll.n)))
	}
	return silence > limit
}

// finished takes in a hold that its holder ended itself, by a release, or by a try to release that came too late.
func (o *Observer) finished(lk *lock, h *hold, at protocol.Instant) {
	u := o.use(h.c, lk.family)
	u.hold.add(at.Sub(h.began))
	u.idle = at
}

// crashed tells what has become of a hold that nobody has ended: its lease ended, and for one more lease nothing came from its
// client. Until then nobody knows.
func (o *Observer) crashed(lk *lock, h *hold) bool {
	lease, known := o.leaseOf(h, lk)
	return known && !h.form.forever && o.last.Sub(max(h.at.Add(lease), h.lostAt)) > lease
}

// asks is a client of ours that runs the script which asks for a lock: a try. Other commands show its outcome. The script says what
// the client is: a waiter in stage bridge takes a free key by a plain SET too, as a client in stage modern does.
func (o *Observer) asks(c *client, l *traffic.Command) {
	names := o.script.names()
	if len(names) == 0 || o.script.again || o.unwanted(names[0]) {
		return
	}
	id := traffic.Key{DB: l.DB, Name: names[0]}
	lk := o.lock(id)
	if lk == nil {
		return
	}
	c.votes[vote{kindOf(o.script.name), ours}]++
	for _, h := range slices.Clone(lk.past) {
		if o.same(h.c, c) { // it was told of its loss
			o.gaveUp(lk, h, l.At)
		}
	}
	u, a := o.tries(c, lk), c.attempt(id)
	if a.last == 0 || c.gone(l.At.Sub(a.last)) {
		u.begins(a, l.At)
	}
	a.last, a.failed = l.At, true
}

// user is a client that was seen on a key.
type user struct {
	c        *client
	acquired int64
}

// mostUsers is how many connections are remembered of one key. From half of them on a connection is counted as one of its row that is
// remembered already: clients that connect for each lock leave room for others.
const mostUsers = 256

// user returns what is known of a client on a key.
func (lk *lock) user(c *client) *user {
	i := slices.IndexFunc(lk.users, func(u user) bool { return u.c == c })
	if i < 0 && len(lk.users) >= mostUsers/2 {
		i = slices.IndexFunc(lk.users, func(u user) bool { return c.o.same(u.c, c) && u.c.leading() == c.leading() })
	}
	switch {
	case i >= 0:
		return &lk.users[i]
	case len(lk.users) == mostUsers:
		c.o.family(lk.family).beyond++
		return &user{}
	}
	lk.users = append(lk.users, user{c: c})
	return &lk.users[len(lk.users)-1]
}
