package topology

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Servers are the masters that together hold all keys.
type Servers interface {
	// Locate returns the address of the master that serves a key, as far as is known. Any master will do
	// for the empty key.
	Locate(ctx context.Context, key string) (string, error)
	// DialAddr connects to a server, outside of any pool.
	DialAddr(ctx context.Context, addr string) (redis.Conn, error)
	// Address translates an address that a server tells into one that clients can reach.
	Address(told string) string
	// Moved takes a redirection into the table.
	Moved(slot int, addr string)
	// Stale has the table asked for again, before anybody who waits for it is told an address again.
	Stale(addr string)
	// Patience is for how long a command that has certainly not run is tried again.
	Patience() time.Duration
	// Gone has a function told of each master that is none any more, until stop is called: connections to it lead
	// nowhere, though they may be open. It is called without any lock of the Servers.
	Gone(tell func(addr string)) (stop func())
}

// NotRun says that a command has certainly not run, and why.
type NotRun struct{ Err error }

func (e *NotRun) Error() string { return e.Err.Error() }
func (e *NotRun) Unwrap() error { return e.Err }

// Refusal is what an error reply means for the way of a command.
type Refusal uint8

const (
	Answer  Refusal = iota // it is the command's reply
	Moved                  // another server serves the slot
	Ask                    // another server has the key already, or would create it
	Later                  // nobody serves it right now
	Demoted                // this server is no master any more
)

// Read reads an error reply. Slot and addr are set for Moved and Ask; the address has no host where the
// server has none to tell, which means the host that was asked.
func Read(reply string) (r Refusal, slot int, addr string) {
	// Before Redis 7 the refusal of a script's command comes last: the second form is one that the script has caught and returned.
	if strings.HasPrefix(reply, "ERR Error running script") || strings.HasPrefix(reply, "@user_script:") {
		if at := strings.LastIndex(reply, ": -"); at >= 0 {
			reply = reply[at+3:]
		}
	}
	word, rest, _ := strings.Cut(reply, " ")
	switch word {
	case "MOVED", "ASK":
		number, where, _ := strings.Cut(rest, " ")
		where, _, _ = strings.Cut(where, " ")
		n, err := strconv.Atoi(number)
		host, port, err2 := splitAddr(where)
		if err != nil || err2 != nil || n < 0 || n >= slots {
			return Answer, 0, ""
		}
		if word == "MOVED" {
			return Moved, n, net.JoinHostPort(host, port)
		}
		return Ask, n, net.JoinHostPort(host, port)
	case "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "MISCONF":
		return Later, 0, ""
	case "READONLY":
		return Demoted, 0, ""
	}
	return Answer, 0, ""
}

// splitAddr takes "host:port", where the host may be an IPv6 address without brackets, or empty.
func splitAddr(text string) (host, port string, err error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return "", "", errors.New("no port")
	}
	host, port = strings.TrimSuffix(strings.TrimPrefix(text[:at], "["), "]"), text[at+1:]
	if strings.ContainsAny(host, "[]") {
		return "", "", errors.New("a bracket within the host")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", errors.New("no port")
	}
	return host, port, nil
}

// maxHops bounds redirections in a row: more than any resharding causes, and no loop of two servers that
// each name the other goes on for ever.
const maxHops = 16

// Redirects is the way of one command to its server.
type Redirects struct {
	servers Servers
	key     string
	until   time.Time
	addr    string // where the last attempt went
	next    string // where a redirection leads; empty: ask the table
	asking  bool
	hops    int
	pause   time.Duration
}

// Begin starts the way of a command on a key.
func Begin(servers Servers, key string) Redirects {
	return Redirects{servers: servers, key: key, until: time.Now().Add(servers.Patience())}
}

// Next returns where the command goes, and whether ASKING goes before it.
func (c *Redirects) Next(ctx context.Context) (addr string, asking bool, err error) {
	if c.next != "" {
		c.addr, asking = c.next, c.asking
		c.next, c.asking = "", false
		return c.addr, asking, nil
	}
	c.addr, err = c.servers.Locate(ctx, c.key)
	return c.addr, false, err
}

// Refused takes an error reply. Again tells that the command has not run and goes on its way after a
// pause; otherwise the reply is its answer.
func (c *Redirects) Refused(reply string) (again bool, pause time.Duration) {
	refusal, slot, addr := Read(reply)
	switch refusal {
	case Moved, Ask:
		c.hops++
		if c.hops > maxHops {
			return c.later()
		}
		host, port, _ := net.SplitHostPort(addr)
		if host == "?" { // the server prefers names and the node has none: the table has its IP address
			c.servers.Stale(c.addr)
			return c.later()
		}
		if host == "" {
			host, _, _ = net.SplitHostPort(c.addr)
			addr = net.JoinHostPort(host, port)
		}
		addr = c.servers.Address(addr)
		c.next, c.asking = addr, refusal == Ask
		if refusal == Moved {
			c.servers.Moved(slot, addr)
		}
		return true, 0
	case Later, Demoted:
		c.servers.Stale(c.addr)
		return c.later()
	}
	return false, 0
}

// Unreachable takes a failure to connect, or to learn where to.
func (c *Redirects) Unreachable() (again bool, pause time.Duration) {
	c.servers.Stale(c.addr)
	return c.later()
}

// later is a pause that doubles up to a fifth of a second, as long as there is patience.
func (c *Redirects) later() (again bool, pause time.Duration) {
	c.next, c.hops = "", 0
	c.pause = min(max(2*c.pause, 5*time.Millisecond), 200*time.Millisecond)
	pause = c.pause - rand.N(c.pause/2)
	return time.Now().Add(pause).Before(c.until), pause
}

// Sleep pauses unless ctx ends first, and tells whether it did not.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// notServed is the error for a slot that no server has.
func notServed(key string) error {
	return fmt.Errorf("no server of the cluster serves the slot of %.40q", key)
}
