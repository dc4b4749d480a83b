package observe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// Captured is what was read of a capture, and what was not.
type Captured struct {
	Packets     int64
	Connections int // to the server's port
	Commands    int64
	Unread      map[string]int64 // connections that were not read to their end, by the reason
	LostBytes   int64            // that the capture does not have
}

// NotSeen says why commands may be missing, empty if none are.
func (c *Captured) NotSeen() (why []string) {
	for _, reason := range slices.Sorted(maps.Keys(c.Unread)) {
		why = append(why, fmt.Sprintf("%d connections: %s", c.Unread[reason], reason))
	}
	if c.LostBytes > 0 {
		why = append(why, fmt.Sprintf("%d bytes of TCP are not in the capture", c.LostBytes))
	}
	return why
}

// ReadCapture reads what tcpdump wrote (pcap or pcapng), takes the commands and replies of the connections to a port out
// of it, and gives them to an observer. Unlike MONITOR it shows what the server answered, and costs the server nothing. It
// does not show what a script did: the keys of a script that is not this project's become unknown. Times are those of the
// host that captured; capture on the server's host, or skews are against the other one.
func ReadCapture(ctx context.Context, in io.Reader, port uint16, o *Observer) (*Captured, error) {
	source, linkType, err := packets(in)
	if err != nil {
		return nil, err
	}
	c := &capture{o: o, port: port, conns: map[netip.AddrPort]*tcpConn{}, out: &Captured{Unread: map[string]int64{}}, sources: map[string]*scripts.Script{}}
	for _, s := range scripts.All() {
		c.sources[s.Digest], c.sources[s.Source] = s, s
	}
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return c.out, context.Cause(ctx)
		}
		data, info, err := source.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // tcpdump was killed while it wrote
			break
		}
		if err != nil {
			return c.out, fmt.Errorf("read the capture: %w", err)
		}
		c.out.Packets++
		if info.CaptureLength < info.Length {
			return c.out, errors.New("packets were cut: capture with tcpdump -s 0")
		}
		c.packet(data, linkType, info.Timestamp)
	}
	for _, conn := range c.conns {
		c.finish(conn)
	}
	o.Finish()
	return c.out, nil
}

// packets opens a capture of either format.
func packets(in io.Reader) (gopacket.PacketDataSource, layers.LinkType, error) {
	buffered := bufio.NewReaderSize(in, 256<<10)
	magic, err := buffered.Peek(4)
	if err != nil {
		return nil, 0, errors.New("it is no capture: shorter than four bytes")
	}
	if binary.LittleEndian.Uint32(magic) == 0x0a0d0d0a {
		r, err := pcapgo.NewNgReader(buffered, pcapgo.DefaultNgReaderOptions)
		if err != nil {
			return nil, 0, fmt.Errorf("it is no capture that can be read: %w", err)
		}
		return r, r.LinkType(), nil
	}
	r, err := pcapgo.NewReader(buffered)
	if err != nil {
		return nil, 0, fmt.Errorf("it is no capture that can be read: %w", err)
	}
	return r, r.LinkType(), nil
}

// capture is the reading of one file.
type capture struct {
	o       *Observer
	port    uint16
	conns   map[netip.AddrPort]*tcpConn // by the client's address
	out     *Captured
	sources map[string]*scripts.Script // by digest and by text
	last    protocol.Instant
}

// tcpConn is one connection of a client.
type tcpConn struct {
	addr            string
	to, from        stream // to the server, from it
	asked           []request
	db              int
	queued          []request // between MULTI and EXEC
	closed          bool      // no more of it is read
	joined, settled bool      // it began before the capture; its first request was found
}

// request is a command that waits for its reply.
type request struct{ words []string }

// stream puts the segments of one direction in order.
type stream struct {
	next    uint32 // the sequence number that comes next
	known   bool
	waiting map[uint32][]byte
	held    int
	resp    respReader
}

// mostHeld is how many bytes of one direction may wait for a segment that is missing.
const mostHeld = 1 << 20

// packet takes in one packet.
func (c *capture) packet(data []byte, link layers.LinkType, at time.Time) {
	packet := gopacket.NewPacket(data, link, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok || uint16(tcp.SrcPort) != c.port && uint16(tcp.DstPort) != c.port {
		return
	}
	network := packet.NetworkLayer()
	if network == nil {
		return
	}
	request := uint16(tcp.DstPort) == c.port
	end, port := network.NetworkFlow().Src(), tcp.SrcPort
	if !request {
		end, port = network.NetworkFlow().Dst(), tcp.DstPort
	}
	ip, ok := netip.AddrFromSlice(end.Raw())
	if !ok {
		return
	}
	id := netip.AddrPortFrom(ip, uint16(port))
	conn := c.conns[id]
	if conn == nil || request && tcp.SYN && conn.to.known && conn.to.next != tcp.Seq+1 { // the port is used again
		if conn != nil {
			c.finish(conn)
		}
		conn = &tcpConn{addr: id.String(), joined: !tcp.SYN}
		conn.to.resp = respReader{requests: true, emit: func(v respValue) { c.asks(conn, v) }}
		conn.from.resp = respReader{emit: func(v respValue) { c.answers(conn, v) }}
		c.conns[id] = conn
		c.out.Connections++
	}
	if conn.closed {
		return
	}
	c.last = max(c.last, protocol.Instant(at.UnixNano())/1000*1000)
	s := &conn.from
	if request {
		s = &conn.to
	}
	if tcp.SYN {
		s.next, s.known = tcp.Seq+1, true
		return
	}
	if len(tcp.Payload) > 0 {
		c.segment(conn, s, tcp.Seq, tcp.Payload)
	}
	if tcp.RST && conn.to.known {
		c.finish(conn)
		delete(c.conns, id)
	}
}

// segment hands on what is in order.
func (c *capture) segment(conn *tcpConn, s *stream, seq uint32, data []byte) {
	if !s.known {
		// The connection began before the capture. It is read from the first packet that begins with a command, and from what
		// the server sends after that.
		request := s == &conn.to
		if request && !bytes.HasPrefix(data, []byte("*")) || !request && !conn.settled {
			return
		}
		s.next, s.known = seq, true
		conn.settled = true
	}
	switch ahead := int32(seq - s.next); {
	case ahead > 0:
		if s.waiting == nil {
			s.waiting = map[uint32][]byte{}
		}
		if s.waiting[seq] == nil {
			s.waiting[seq] = bytes.Clone(data)
			s.held += len(data)
		}
		if s.held > mostHeld {
			c.out.LostBytes += int64(ahead)
			c.stop(conn, "a part of them is missing")
		}
		return
	case ahead < 0:
		if -int(ahead) >= len(data) {
			return // sent again
		}
		data = data[-ahead:]
	}
	for {
		s.next += uint32(len(data))
		if !s.resp.feed(data) {
			c.stop(conn, "what they carry is not Redis's protocol, or TLS")
		}
		if conn.closed {
			return
		}
		found := false
		for at, later := range s.waiting {
			if over := int32(s.next - at); over >= 0 {
				delete(s.waiting, at)
				s.held -= len(later)
				if int(over) < len(later) {
					data, found = later[over:], true
					break
				}
			}
		}
		if !found {
			return
		}
	}
}

// stop reads no more of a connection, and says why. An empty reason is none that anybody has to know.
func (c *capture) stop(conn *tcpConn, why string) {
	if why != "" && !conn.closed {
		c.out.Unread[why]++
	}
	conn.closed = true
}

// finish says what a connection leaves open at its end.
func (c *capture) finish(conn *tcpConn) {
	if conn.closed {
		return
	}
	for _, s := range []*stream{&conn.to, &conn.from} {
		if s.held > 0 {
			gap := int32(1<<31 - 1)
			for seq := range s.waiting {
				gap = min(gap, int32(seq-s.next))
			}
			c.out.LostBytes += int64(gap)
			c.stop(conn, "a part of them is missing")
		}
	}
	if conn.joined && !conn.settled {
		c.stop(conn, "they began before the capture, and no beginning of a command was found")
	}
	conn.closed = true
}

// secret are commands whose arguments are never kept.
var secret = set(`AUTH HELLO ACL CONFIG MIGRATE`)

// asks takes in a request.
func (c *capture) asks(conn *tcpConn, v respValue) {
	if len(v.elems) == 0 {
		return
	}
	words := make([]string, 0, len(v.elems))
	for _, e := range v.elems {
		words = append(words, e.text)
	}
	words[0] = strings.ToUpper(words[0])
	if secret[words[0]] {
		words = words[:1]
	}
	switch word := words[0]; {
	case word == "MONITOR" || word == "PSYNC" || word == "SYNC":
		c.stop(conn, "") // what follows are no replies, and no lock's
		return
	case strings.HasSuffix(word, "SUBSCRIBE"):
		c.stop(conn, "")
		return
	case word == "CLIENT" && len(words) > 2 && strings.EqualFold(words[1], "REPLY"):
		c.stop(conn, "they switch replies off")
		return
	}
	if len(conn.asked) >= 100_000 {
		c.stop(conn, "their replies are not in the capture")
		return
	}
	conn.asked = append(conn.asked, request{words})
}

// answers takes in a reply: the oldest request is done.
func (c *capture) answers(conn *tcpConn, v respValue) {
	if v.kind == '>' || len(conn.asked) == 0 {
		if v.kind != '>' && !conn.joined {
			c.stop(conn, "they have more replies than commands")
		}
		return
	}
	r := conn.asked[0]
	conn.asked = conn.asked[1:]
	word := r.words[0]
	switch {
	case v.kind == '-' || v.kind == '!':
		if word == "EXEC" {
			conn.queued = nil
		}
		return // refused: it did nothing
	case v.kind == '+' && v.text == "QUEUED":
		conn.queued = append(conn.queued, r)
		return
	case word == "SELECT" && len(r.words) == 2:
		conn.db, _ = strconv.Atoi(r.words[1])
	case word == "RESET":
		conn.db = 0
	case word == "DISCARD":
		conn.queued = nil
	case word == "EXEC":
		for i, q := range conn.queued {
			if !v.null && i < len(v.elems) && v.elems[i].kind != '-' {
				c.ran(conn, q.words, v.elems[i])
			}
		}
		conn.queued = nil
	}
	c.ran(conn, r.words, v)
}

// ran gives a command to the observer. What its reply tells of the key is learnt first, so that nothing has to be guessed.
func (c *capture) ran(conn *tcpConn, words []string, v respValue) {
	c.out.Commands++
	l := &Line{At: c.last, DB: conn.db, Addr: conn.addr, Words: words}
	if len(words) > 1 {
		c.learn(l, v)
	}
	c.o.Take(l)
	switch words[0] {
	case "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO":
		if len(words) > 2 {
			c.script(l, v)
		}
	}
}

// learn tells the copy of the keys what a reply says of the state before its command.
func (c *capture) learn(l *Line, v respValue) {
	keys, key := c.o.Keys, l.Words[1]
	old, _, text := keys.Value(l.DB, key, l.At)
	there := func(yes bool) {
		switch {
		case !yes:
			keys.LearnAbsent(l.DB, key)
		case !text:
			keys.LearnThere(l.DB, key)
		}
	}
	value := func() {
		switch {
		case v.null:
			keys.LearnAbsent(l.DB, key)
		case v.kind != '$':
		case !text || old != v.text:
			keys.LearnAbsent(l.DB, key) // a TTL of the value before is not this one's
			keys.Learn(l.DB, key, v.text)
		}
	}
	n, number := v.integer()
	switch l.Words[0] {
	case "GET", "GETSET", "GETDEL", "GETEX":
		value()
	case "SETNX", "HSETNX":
		if number && l.Words[0] == "SETNX" {
			there(n == 0)
		}
	case "SET":
		var nx, xx, get bool
		for _, w := range l.Words[min(3, len(l.Words)):] {
			nx, xx, get = nx || strings.EqualFold(w, "NX"), xx || strings.EqualFold(w, "XX"), get || strings.EqualFold(w, "GET")
		}
		switch {
		case get:
			value()
		case nx:
			there(v.null)
		case xx:
			there(!v.null)
		}
	case "DEL", "UNLINK":
		if number && len(l.Words) == 2 {
			there(n == 1)
		}
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST":
		if number && len(l.Words) == 3 && l.Words[0] != "PERSIST" {
			there(n == 1)
		}
	}
}

// script takes in what a script did, as far as its reply tells: those of this project take a key, or give it back. What
// another one did to its keys is not known.
func (c *capture) script(l *Line, v respValue) {
	count, _ := strconv.Atoi(l.Words[2])
	keys := l.Words[3:min(3+max(0, count), len(l.Words))]
	args := l.Words[3+len(keys):]
	named := map[string]string{}
	s := c.sources[strings.ToLower(l.Words[1])]
	if s == nil {
		s = c.sources[l.Words[1]]
	}
	if s != nil {
		for i, a := range s.Keys {
			if i < len(keys) {
				named[a.Name] = keys[i]
			}
		}
		for i, a := range s.Args {
			if i < len(args) {
				named[a.Name] = args[i]
			}
		}
	}
	code, _ := v.integer()
	if len(v.elems) > 0 {
		code, _ = v.elems[0].integer()
	}
	as := func(words ...string) {
		c.o.Take(&Line{At: l.At, DB: l.DB, Addr: "lua", Words: words})
	}
	key := named["key"]
	owner := named["value"] + named["token"]
	switch {
	case s == nil || key == "":
	case code >= 1 && (s == scripts.BridgeAcquire || s == scripts.ModernTake || s == scripts.ModernQueue):
		c.o.Keys.LearnAbsent(l.DB, key)
		as("SET", key, owner, "PX", named["ttl"])
		return
	case s == scripts.BridgeAcquire || s == scripts.ModernTake || s == scripts.ModernQueue || s == scripts.BridgeRenew || s == scripts.ModernExtend:
		return // it took nothing, or the key is as it was
	case code >= 1 && (s == scripts.BridgeRelease || s == scripts.ModernRelease || s == scripts.CompareDel):
		c.o.Keys.Learn(l.DB, key, owner)
		as("DEL", key)
		return
	case s == scripts.BridgeRelease || s == scripts.ModernRelease || s == scripts.CompareDel:
		return
	}
	for _, name := range keys {
		c.o.Keys.Forget(l.DB, name)
	}
}
