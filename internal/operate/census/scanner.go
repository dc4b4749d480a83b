package census

import (
	"bytes"
	"context"
	"errors"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/glob"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
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
	conn   net.Conn
	reply  *replyReader
	writes chan []byte // to the writer goroutine; a buffer comes back through free
	free   chan []byte
	failed chan error // the writer's error

	clockRead time.Time // what the server's clock showed
	clockAt   time.Time // when, on this host's clocks
	offset    time.Duration
	roundTrip time.Duration

	count   int // of the next SCAN
	most    int
	looks   []look // keys of other types: what to ask in the next page
	pages   []*page
	look    Look
	row     Row
	judge   Judge
	behind  float64       // what done said last
	emitted time.Duration // spent in Emit during this page: not the server's fault
}

// page is the keys of one SCAN, in one piece of memory that is used again.
type page struct {
	text []byte
	ends []int

	cursor  string // of the SCAN that goes with the reads of this page; empty for none
	looks   []look // asked in the same write
	sent    time.Time
	scratch []byte
}

func (p *page) key(i int) []byte {
	from := 0
	if i > 0 {
		from = p.ends[i-1]
	}
	return p.text[from:p.ends[i]:p.ends[i]]
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
		census: c, conn: conn, reply: newReplyReader(conn), most: c.opts.mostCount(),
		writes: make(chan []byte, 1), free: make(chan []byte, 2), failed: make(chan error, 1),
		judge: Judge{GhostAfter: c.opts.GhostAfter, Chosen: c.opts.chosen()},
	}
	s.count = min(firstCount, s.most)
	for range 2 {
		s.free <- nil
		s.pages = append(s.pages, &page{})
	}
	go s.write()
	return s
}

// write sends what it is given. It has a goroutine of its own, and room for one page beside the one that it
// writes, because a proxy may stop to read from us until we read from it.
func (s *scanner) write() {
	for buf := range s.writes {
		if _, err := s.conn.Write(buf); err != nil {
			s.failed <- err
			_ = s.conn.Close() // wakes the reader
			for range s.writes {
				s.free <- nil
			}
			return
		}
		s.free <- buf[:0]
	}
}

func (s *scanner) end() { close(s.writes) }

// send hands a buffer to the writer.
func (s *scanner) send(fill func(buf []byte) []byte) {
	s.writes <- fill(<-s.free)
}

// begin reads the server's clock, and whether it is alone. Of three readings of the clock the quickest counts.
func (s *scanner) begin(ctx context.Context) error {
	const readings = 3
	s.roundTrip = time.Hour
	for range readings {
		if err := s.await(ctx); err != nil {
			return err
		}
		before := time.Now()
		s.send(func(buf []byte) []byte { return appendCommand(buf, "TIME") })
		clock, err := s.readTime()
		if err != nil {
			return err
		}
		after := time.Now()
		if took := after.Sub(before); took < s.roundTrip {
			s.roundTrip = took
			s.clockRead, s.clockAt = clock.Add(took/2), after
			s.offset = s.clockRead.Sub(after)
		}
	}
	s.send(func(buf []byte) []byte {
		// Reading a key counts as using it, and would upset the order of eviction; servers from 7.2 can do without.
		return appendCommand(appendCommand(buf, "CLIENT", "NO-TOUCH", "ON"), "INFO", "cluster")
	})
	if err := s.reply.skip(); fatal(err) {
		return err
	}
	info, _, err := s.reply.bulk(nil, 1024)
	if fatal(err) {
		return err
	}
	s.census.summary.ClusterNode = bytes.Contains(info, []byte("cluster_enabled:1"))
	return nil
}

// await bounds the wait for what was sent.
func (s *scanner) await(ctx context.Context) error {
	_ = s.conn.SetReadDeadline(time.Now().Add(replyTimeout))
	return ctx.Err() // looked at last: the deadline above must not undo the one that the context sets
}

func (s *scanner) readTime() (time.Time, error) {
	n, err := s.reply.array()
	if err != nil {
		return time.Time{}, err
	}
	if n != 2 {
		return time.Time{}, ErrNotRedis
	}
	var part [2]int64
	for i := range part {
		text, _, err := s.reply.bulk(nil, 20)
		if err != nil {
			return time.Time{}, err
		}
		if part[i], err = parseInt(text); err != nil {
			return time.Time{}, err
		}
	}
	return time.Unix(part[0], part[1]*1000), nil
}

// fatal tells an error that ends the census from a refusal that it can do without.
func fatal(err error) bool {
	var refused errReply
	return err != nil && !errors.As(err, &refused)
}

// run reads pages until the server has no more.
func (s *scanner) run(ctx context.Context) error {
	this := &page{cursor: "0"}
	s.sendPage(this)
	var finished time.Time
	for this != nil {
		if err := s.await(ctx); err != nil {
			return err
		}
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
			next = s.nextPage()
			s.sendPage(next)
		}
		this = next
	}
	return nil
}

// done estimates how far a cursor has come. Redis goes through a hash table by counting its cursor up from
// the highest bit, so the reversed cursor is the fraction of the table that is behind it, whatever its size.
// On a server whose cursor once moves back under that reading, it means something else.
func (s *scanner) done(cursor string) float64 {
	n, err := strconv.ParseUint(cursor, 10, 64)
	if err != nil || s.behind < 0 {
		return s.behind
	}
	fraction := float64(bits.Reverse64(n)) / (1 << 64)
	if fraction < s.behind {
		fraction = -1
	}
	s.behind = fraction
	return fraction
}

// readScan reads the keys of the next page and sends off its reads.
func (s *scanner) readScan(ctx context.Context, this *page) (next *page, err error) {
	if this.cursor == "" {
		return nil, nil
	}
	next = s.nextPage()
	if err := s.readKeys(next); err != nil {
		return nil, err
	}
	if err := s.keepRate(ctx, next); err != nil {
		return nil, err
	}
	if next.cursor == "" && len(next.ends) == 0 && len(s.looks) == 0 {
		return nil, nil
	}
	s.sendPage(next)
	return next, nil
}

// nextPage takes the page that is not in use.
func (s *scanner) nextPage() *page {
	p := s.pages[0]
	s.pages[0], s.pages[1] = s.pages[1], p
	p.text, p.ends, p.cursor = p.text[:0], p.ends[:0], ""
	return p
}

func (s *scanner) readKeys(p *page) error {
	n, err := s.reply.array()
	if err != nil {
		return err
	}
	if n != 2 {
		return ErrNotRedis
	}
	cursor, _, err := s.reply.bulk(p.scratch[:0], 20)
	if err != nil {
		return err
	}
	if string(cursor) != "0" {
		p.cursor = string(cursor)
	}
	p.scratch = cursor
	if n, err = s.reply.array(); err != nil {
		return err
	}
	for range n {
		from := len(p.text)
		var length int
		if p.text, length, err = s.reply.bulk(p.text, maxName); err != nil {
			return err
		}
		key := p.text[from:]
		switch {
		case length > maxName:
			s.census.summary.Skipped++
		case len(s.census.opts.Match) > 1 && !glob.MatchAny(s.census.opts.Match, key), s.census.again(key):
		default:
			s.census.summary.Scanned++
			p.ends = append(p.ends, len(p.text))
			continue
		}
		p.text = p.text[:from]
	}
	return nil
}

var peekText = strconv.Itoa(Peek - 1)

// sendPage writes all commands of a page at once.
func (s *scanner) sendPage(p *page) {
	p.looks, s.looks = s.looks, p.looks[:0]
	p.sent = time.Now()
	s.send(func(buf []byte) []byte {
		if p.cursor != "" {
			words := []string{"SCAN", p.cursor, "COUNT", strconv.Itoa(s.count)}
			if len(s.census.opts.Match) == 1 {
				words = append(words, "MATCH", s.census.opts.Match[0])
			}
			buf = appendCommand(buf, words...)
		}
		for i := range p.ends {
			key := p.key(i)
			buf = appendWord(append(buf, "*4\r\n$8\r\nGETRANGE\r\n"...), key)
			buf = appendWord(append(buf, "$1\r\n0\r\n"...), peekText)
			buf = appendWord(append(buf, "*2\r\n$4\r\nPTTL\r\n"...), key)
		}
		for _, l := range p.looks {
			switch l.ask {
			case askSize:
				if s.wantsType() {
					buf = appendWord(append(buf, "*2\r\n$4\r\nTYPE\r\n"...), l.key)
				}
				buf = appendWord(append(buf, "*2\r\n$4\r\nHLEN\r\n"...), l.key)
			case askFields:
				buf = appendWord(append(buf, "*2\r\n$5\r\nHKEYS\r\n"...), l.key)
			case askValues:
				buf = appendWord(append(buf, "*2\r\n$7\r\nHGETALL\r\n"...), l.key)
			case askGuard:
				buf = appendCommand(buf, "GETRANGE", protocol.GuardKey(string(l.key)), "0", peekText)
			}
		}
		return buf
	})
}

// wantsType tells that keys of every type will be reported.
func (s *scanner) wantsType() bool { return s.census.opts.All || s.judge.Chosen }

// readPage reads the replies about a page's keys.
func (s *scanner) readPage(p *page) error {
	s.judge.Now, s.emitted = s.serverNow(), 0
	for i := range p.ends {
		if err := s.readString(p, p.key(i)); err != nil {
			return err
		}
	}
	for i := range p.looks {
		if err := s.readLook(p, &p.looks[i]); err != nil {
			return err
		}
	}
	return nil
}

// readString reads GETRANGE and PTTL.
func (s *scanner) readString(p *page, key []byte) error {
	value, _, valueErr := s.reply.bulk(p.scratch[:0], Peek)
	if fatal(valueErr) {
		return valueErr
	}
	p.scratch = value
	ttl, ttlErr := s.reply.integer()
	if fatal(ttlErr) {
		return ttlErr
	}
	switch {
	case valueErr == nil && ttlErr == nil:
		if ttl == -2 { // gone since SCAN
			return nil
		}
		s.look = Look{Key: key, Type: "string", Value: value, TTL: ttl} // one for all: there are many
		return s.report(&s.look)
	case ttlErr == nil && isWrongType(valueErr):
		s.looks = append(s.looks, look{key: bytes.Clone(key), ttl: ttl})
		return nil
	case ttlErr != nil && (valueErr == nil || isWrongType(valueErr)):
		return s.refused(ttlErr)
	}
	return s.refused(valueErr)
}

// readLook reads the reply to a look's question.
func (s *scanner) readLook(p *page, l *look) error {
	switch l.ask {
	case askSize:
		return s.readSize(l)
	case askFields, askValues:
		return s.readHash(l)
	default:
		return s.readGuard(p, l)
	}
}

func (s *scanner) readSize(l *look) error {
	if s.wantsType() {
		kind, _, err := s.reply.bulk(nil, 32)
		if fatal(err) {
			return err
		}
		if err != nil {
			s.lacks("TYPE", err)
		}
		l.kind = typeName(kind)
	}
	fields, err := s.reply.integer()
	switch {
	case fatal(err):
		return err
	case isWrongType(err):
		return s.report(&Look{Key: l.key, Type: l.kind, TTL: l.ttl})
	case err != nil:
		return s.refused(err)
	case fields >= 1 && fields <= MaxFields:
		s.looks = append(s.looks, look{ask: askFields, key: l.key, ttl: l.ttl})
		return nil
	case fields == 0: // gone
		return nil
	}
	return s.report(&Look{Key: l.key, Type: "hash", TTL: l.ttl})
}

// readGuard reads the value of the guard beside a bridge value. A user without the right to the guard's name
// sees none.
func (s *scanner) readGuard(p *page, l *look) error {
	guard, _, err := s.reply.bulk(p.scratch[:0], Peek)
	if fatal(err) {
		return err
	}
	p.scratch = guard
	if err != nil && !isWrongType(err) {
		s.lacks("the guard beside a lock", err)
	}
	return s.report(&Look{Key: l.key, Type: "string", Value: l.value, TTL: l.ttl, Guard: guard, SawGuard: err == nil, asked: true})
}

// readHash reads HKEYS or HGETALL. Values are asked for only where the fields may be a lock's: those of other
// hashes may be large.
func (s *scanner) readHash(l *look) error {
	n, err := s.reply.array()
	switch {
	case fatal(err):
		return err
	case isWrongType(err): // another type by now
		return nil
	case err != nil:
		return s.refused(err)
	}
	k := Look{Key: l.key, Type: "hash", TTL: l.ttl}
	whole := true
	text := func() (text []byte, err error) {
		text, length, err := s.reply.bulk(nil, Peek)
		whole = whole && length < Peek
		return text, err
	}
	for i := 0; i < n; i++ {
		var f Field
		if f.Name, err = text(); err != nil {
			return err
		}
		if l.ask == askValues {
			i++
			if f.Value, err = text(); err != nil {
				return err
			}
		}
		if len(k.Fields) <= MaxFields {
			k.Fields = append(k.Fields, f)
		}
	}
	if l.ask == askFields && whole && s.judge.mayBeLock(&k) {
		s.looks = append(s.looks, look{ask: askValues, key: l.key, ttl: l.ttl})
		return nil
	}
	if l.ask == askFields || !whole { // not a lock's
		k.Fields = nil
	}
	return s.report(&k)
}

// report classifies a key and hands it on.
func (s *scanner) report(k *Look) error {
	f := s.judge.Classify(k)
	if f.Format == Bridge && k.TTL != NoTTL && !k.asked {
		s.looks = append(s.looks, look{ask: askGuard, key: bytes.Clone(k.Key), value: bytes.Clone(k.Value), ttl: k.TTL})
		return nil
	}
	if (f.Confidence == None || f.Beside) && !s.wantsType() {
		return nil
	}
	s.row = Row{Key: k.Key, Type: k.Type, TTL: k.TTL, Now: s.judge.Now, Finding: f}
	began := time.Now()
	err := s.census.record(&s.row)
	s.emitted += time.Since(began)
	return err
}

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
	var refusal errReply
	errors.As(err, &refusal)
	return refusal
}

// lacks notes what the census goes without.
func (s *scanner) lacks(what string, err error) {
	list := &s.census.summary.Lacks
	if text := what + " is refused: " + err.Error(); !slices.Contains(*list, text) && len(*list) < 10 {
		*list = append(*list, text)
	}
}

// typeName avoids an allocation for the types that Redis has by itself.
func typeName(kind []byte) string {
	for _, name := range [...]string{"hash", "list", "set", "zset", "stream", "string", "none"} {
		if string(kind) == name {
			return name
		}
	}
	return string(kind)
}

func isWrongType(err error) bool {
	var refused errReply
	return errors.As(err, &refused) && strings.HasPrefix(string(refused), "WRONGTYPE")
}

// cost is what a page took the server: from when it was sent or, as pages overlap, from when the one before it
// was done; without the time that rows took to be written.
func (s *scanner) cost(p *page, finished time.Time) time.Duration {
	began := p.sent
	if finished.After(began) {
		began = finished
	}
	return time.Since(began) - s.emitted
}

// adapt makes pages larger while the server is quick and smaller when it is not. The way to the server and back
// does not count, and with a long one a part of it more, since it varies.
func (s *scanner) adapt(cost time.Duration) {
	cost -= s.roundTrip
	switch {
	case cost > slowPage+s.roundTrip/2:
		s.count = max(s.count/2, leastCount)
	case cost < quickPage+s.roundTrip/4:
		s.count = min(s.count*2, s.most)
	}
}

// mostCount is the largest page: a tenth of a second's keys where there is a limit.
func (o *Options) mostCount() int {
	if o.Rate <= 0 {
		return mostCount
	}
	return max(leastCount, min(o.Rate/10, mostCount))
}

// keepRate waits until the keys so far are allowed. The server looks also at those that do not match.
func (s *scanner) keepRate(ctx context.Context, next *page) error {
	c := s.census
	if c.opts.Rate <= 0 {
		return nil
	}
	visited := len(next.ends)
	if next.cursor != "" {
		visited = max(visited, s.count)
	}
	c.visited += int64(visited)
	ahead := time.Duration(float64(c.visited)/float64(c.opts.Rate)*float64(time.Second)) - time.Since(c.started)
	if ahead <= 0 {
		return nil
	}
	timer := time.NewTimer(ahead)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
