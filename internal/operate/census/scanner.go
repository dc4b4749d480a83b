package census

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

const (
	firstCount = 100  // of the first SCAN
	leastCount = 10   // what a slow server gets
	mostCount  = 1000 // beyond it SCAN gains nothing and stalls the server's other clients

	// A page that costs the server less than quickPage is made twice as large, one that costs more than
	// slowPage half as large.
	quickPage = 2 * time.Millisecond
	slowPage  = 10 * time.Millisecond

	replyTimeout = 30 * time.Second
)

// scanner goes through the keys of one server.
//
// One write holds the commands of one page: SCAN for the next page, then GETRANGE and PTTL for every key of
// this one, then what is still to be asked about earlier keys that are no strings. SCAN comes first, so that
// the next page's commands are on their way before the replies of this one are read, and neither side waits
// for the other. A page costs one round trip, whatever its keys are.
type scanner struct {
	census *Census
	conn   net.Conn    // that commands are written to
	reply  redis.Conn  // the same, for reading
	writes chan []byte // to the writer goroutine
	failed chan error  // the writer's error

	began     time.Time     // when the clocks were compared
	ahead     time.Duration // this host's less the server's
	roundTrip time.Duration

	count   int // of the next SCAN
	most    int
	looks   []look // keys of other types: what to ask in the next page
	row     Row
	judge   Judge
	behind  float64       // what done said last
	emitted time.Duration // spent in Emit during this page: not the server's fault
}

// page is the keys of one SCAN.
type page struct {
	keys   [][]byte
	cursor string // of the SCAN that goes with the reads of this page; empty for none
	looks  []look // asked in the same write
	sent   time.Time
}

// look is a key that one look did not tell enough about, and what is asked next.
type look struct {
	ask   question
	key   []byte
	kind  string // as TYPE says, empty if it was not asked
	value []byte // askGuard: what the key holds
	ttl   int64
}

type question uint8

const (
	askSize   question = iota // of a key that is no string: TYPE where it matters, and HLEN
	askFields                 // of a small hash: HKEYS
	askValues                 // of one whose fields may be a lock's: HGETALL
	askGuard                  // of a bridge value: GETRANGE of the guard beside it
)

func newScanner(c *Census, conn net.Conn) *scanner {
	s := &scanner{
		census: c, conn: conn, reply: redis.NewConn(patient{conn}, 0, 0), most: c.opts.mostCount(),
		writes: make(chan []byte, 1), failed: make(chan error, 1),
		judge: Judge{GhostAfter: c.opts.GhostAfter, Chosen: c.opts.chosen()},
	}
	s.count = min(firstCount, s.most)
	go s.write()
	return s
}

// write sends what it is given. It has a goroutine of its own, and room for one page beside the one that it
// writes, because a proxy may stop to read from us until we read from it.
func (s *scanner) write() {
	for buf := range s.writes {
		if _, err := s.conn.Write(buf); err != nil {
			if !errors.Is(err, net.ErrClosed) { // else the reader knows why
				s.failed <- err
			}
			_ = s.conn.Close() // wakes the reader
			for range s.writes {
			}
			return
		}
	}
}

func (s *scanner) end() { close(s.writes) }

// patient is a connection that waits so long for what comes next. Redigo would set a deadline for each of millions of replies, and one for a page would
// count the time that rows take to be written.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	_ = p.Conn.SetReadDeadline(time.Now().Add(replyTimeout))
	return p.Conn.Read(b)
}

func (patient) SetReadDeadline(time.Time) error { return nil }

// begin compares the clocks, and asks whether the server is alone.
func (s *scanner) begin(ctx context.Context) error {
	clocks, err := endpoint.CompareClocks(ctx, s.reply, 3, nil)
	if err != nil {
		return err
	}
	s.began, s.ahead, s.roundTrip = time.Now(), clocks.Ahead, clocks.Trip
	// Reading a key counts as using it, and would upset the order of eviction; servers from 7.2 can do without.
	if _, err := redis.DoContext(s.reply, ctx, "CLIENT", "NO-TOUCH", "ON"); fatal(err) {
		return err
	}
	info, err := endpoint.Info(ctx, s.reply, "cluster")
	s.census.summary.ClusterNode = info["cluster_enabled"] == "1"
	if fatal(err) {
		return err
	}
	return nil
}

// fatal tells an error that ends the census from a refusal that it can do without.
func fatal(err error) bool {
	var refused redis.Error
	return err != nil && !errors.As(err, &refused)
}

// run reads pages until the server has no more.
func (s *scanner) run(ctx context.Context) error {
	this := &page{cursor: "0"}
	s.sendPage(this)
	var finished time.Time
	for this != nil {
		next, err := s.readScan(ctx, this)
		if err == nil {
			err = s.readPage(this)
		}
		if err != nil {
			select {
			case wrote := <-s.failed:
				return wrote
			default:
				return err
			}
		}
		s.adapt(s.cost(this, finished))
		finished = time.Now()
		s.census.progress(s.done(this.cursor))
		if next == nil && len(s.looks) > 0 {
			next = &page{}
			s.sendPage(next)
		}
		this = next
	}
	return nil
}

// readScan reads the keys of the next page and sends off its reads.
func (s *scanner) readScan(ctx context.Context, this *page) (next *page, err error) {
	if this.cursor == "" {
		return nil, nil
	}
	next = &page{}
	if err := s.readKeys(next); err != nil {
		return nil, err
	}
	visited := len(next.keys)
	if next.cursor != "" {
		visited = max(visited, s.count) // the server looks also at those that do not match
	}
	if err := s.census.rate.take(ctx, visited); err != nil {
		return nil, err
	}
	if next.cursor == "" && len(next.keys) == 0 && len(s.looks) == 0 {
		return nil, nil
	}
	s.sendPage(next)
	return next, nil
}

// maxName bounds a key's name; Redis itself allows 512 MB.
const maxName = 64 << 10

func (s *scanner) readKeys(p *page) error {
	reply, err := redis.Values(s.reply.Receive())
	if err != nil {
		return err
	}
	if len(reply) != 2 {
		return fmt.Errorf("redigo: SCAN's reply has %d elements", len(reply))
	}
	cursor, err := redis.String(reply[0], nil)
	if err != nil {
		return err
	}
	if cursor != "0" {
		p.cursor = cursor
	}
	keys, err := redis.ByteSlices(reply[1], nil)
	if err != nil {
		return err
	}
	for _, key := range keys {
		switch {
		case len(key) > maxName:
			s.census.summary.Skipped++
		case len(s.census.opts.Match) > 1 && !servers.MatchAny(s.census.opts.Match, key), s.census.again(key):
		default:
			s.census.summary.Scanned++
			p.keys = append(p.keys, key)
		}
	}
	return nil
}

// The words of the commands for every key.
var getRange, pttl, zero, peekText = []byte("GETRANGE"), []byte("PTTL"), []byte("0"), strconv.AppendInt(nil, Peek-1, 10)

// sendPage writes all commands of a page at once.
func (s *scanner) sendPage(p *page) {
	p.looks, s.looks = s.looks, nil
	p.sent = time.Now()
	var buf []byte
	if p.cursor != "" {
		words := []string{"SCAN", p.cursor, "COUNT", strconv.Itoa(s.count)}
		if len(s.census.opts.Match) == 1 {
			words = append(words, "MATCH", s.census.opts.Match[0])
		}
		buf = wire.Append(buf, words...)
	}
	for _, key := range p.keys {
		buf = wire.Append(buf, getRange, key, zero, peekText)
		buf = wire.Append(buf, pttl, key)
	}
	for _, l := range p.looks {
		switch l.ask {
		case askSize:
			if s.wantsType() {
				buf = wire.Append(buf, "TYPE", string(l.key))
			}
			buf = wire.Append(buf, "HLEN", string(l.key))
		case askFields:
			buf = wire.Append(buf, "HKEYS", string(l.key))
		case askValues:
			buf = wire.Append(buf, "HGETALL", string(l.key))
		case askGuard:
			buf = wire.Append(buf, "GETRANGE", protocol.GuardKey(string(l.key)), "0", string(peekText))
		}
	}
	s.writes <- buf
}

// wantsType tells that keys of every type will be reported.
func (s *scanner) wantsType() bool { return s.census.opts.All || s.judge.Chosen }

// refused counts a key that cannot be read: this user may not, or it is moving to another node of the
// cluster. Any other refusal would meet every key.
func (s *scanner) refused(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "access") ||
		strings.HasPrefix(text, "MOVED") || strings.HasPrefix(text, "ASK") {
		s.census.summary.Unread++
		if strings.HasPrefix(text, "NOPERM") {
			s.lacks("a key", err)
		}
		return nil
	}
	return err
}

// lacks notes what the census goes without.
func (s *scanner) lacks(what string, err error) {
	list := &s.census.summary.Lacks
	if text := what + " is refused: " + err.Error(); !slices.Contains(*list, text) && len(*list) < 10 {
		*list = append(*list, text)
	}
}
