package traffic

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
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Captured is what was read of a capture, and what was not.
type Captured struct {
	Packets     int64
	Connections int // to the server's port
	Commands    int64
	Unread      map[string]int64 // connections that were not read to their end, by the reason
	LostBytes   int64            // that the capture does not have
	Skipped     int64            // packets of connections whose beginning was not seen, before the first one that begins with a command
	First, Last time.Time        // packets, on the clock of the host that captured
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

// ReadCapture reads what tcpdump wrote (pcap or pcapng), and takes the commands and replies of the connections to a port out of it. Keys
// learns what the replies say before take is told of a command. Unlike MONITOR it shows what the server answered, and costs the server nothing. It
// does not show what a script did: the keys of a script that is not this project's become unknown. Times are those of the
// host that captured; capture on the server's host, or skews are against the other one.
func ReadCapture(ctx context.Context, in io.Reader, port uint16, keys *Keys, take func(*Command)) (*Captured, error) {
	source, linkType, err := packets(in)
	if err != nil {
		return nil, err
	}
	c := &capture{dialogues: newDialogues(keys, take), decoder: newDecoder(linkType), port: port, conns: map[netip.AddrPort]*tcpConn{}}
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return c.out, context.Cause(ctx)
		}
		data, info, err := source.ZeroCopyReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // tcpdump was killed while it wrote
			break
		}
		if err != nil {
			return c.out, fmt.Errorf("read the capture: %w", err)
		}
		if info.CaptureLength < info.Length {
			return c.out, errors.New("packets were cut: capture with tcpdump -s 0")
		}
		if c.out.Packets++; c.out.Packets == 1 {
			c.out.First = info.Timestamp.UTC()
		}
		c.out.Last = info.Timestamp.UTC()
		c.packet(data, info.Timestamp)
	}
	for _, conn := range c.conns {
		c.finish(conn)
	}
	c.end()
	return c.out, nil
}

// packets opens a capture of either format.
func packets(in io.Reader) (gopacket.ZeroCopyPacketDataSource, layers.LinkType, error) {
	buffered := bufio.NewReaderSize(in, 256<<10)
	magic, err := buffered.Peek(4)
	if err != nil {
		return nil, 0, errors.New("it is no capture: shorter than four bytes")
	}
	var r interface {
		gopacket.ZeroCopyPacketDataSource
		LinkType() layers.LinkType
	}
	if binary.LittleEndian.Uint32(magic) == 0x0a0d0d0a {
		r, err = pcapgo.NewNgReader(buffered, pcapgo.DefaultNgReaderOptions)
	} else {
		r, err = pcapgo.NewReader(buffered)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("it is no capture that can be read: %w", err)
	}
	return r, r.LinkType(), nil
}

// capture is the reading of one file.
type capture struct {
	*dialogues
	decoder *decoder
	port    uint16
	conns   map[netip.AddrPort]*tcpConn // by the client's address
}

// tcpConn is one connection of a client.
type tcpConn struct {
	*dialogue
	to, from stream // to the server, from it
	settled  bool   // of one that began before the capture: its first request was found
	skipped  bool   // something came before that
}

// stream puts the segments of one direction in order.
type stream struct {
	next    uint32 // the sequence number that comes next
	known   bool
	ended   bool // its FIN was seen, and fin is its place
	fin     uint32
	waiting map[uint32][]byte
	held    int
	resp    *respReader
}

// whole tells that all came up to the end.
func (s *stream) whole() bool { return s.ended && (!s.known || s.next == s.fin) }

// lost is how many bytes are known to be missing.
func (s *stream) lost() int32 {
	if s.held == 0 {
		if s.ended && s.known {
			return max(0, int32(s.fin-s.next))
		}
		return 0
	}
	gap := int32(1<<31 - 1)
	for seq := range s.waiting {
		gap = min(gap, int32(seq-s.next))
	}
	return gap
}

// mostHeld is how many bytes of one direction may wait for a segment that is missing.
const mostHeld = 1 << 20

// decoder takes the TCP segment out of a packet.
type decoder struct {
	link   layers.LinkType
	parser *gopacket.DecodingLayerParser // makes nothing new for a packet
	found  []gopacket.LayerType
	ip4    layers.IPv4
	ip6    layers.IPv6
	tcp    layers.TCP
}

// usualLinks are those of an interface, of tcpdump -i any, and of a loopback.
var usualLinks = map[layers.LinkType]gopacket.LayerType{
	layers.LinkTypeEthernet: layers.LayerTypeEthernet, layers.LinkTypeLinuxSLL: layers.LayerTypeLinuxSLL, layers.LinkTypeLinuxSLL2: layers.LayerTypeLinuxSLL2,
	layers.LinkTypeNull: layers.LayerTypeLoopback, layers.LinkTypeLoop: layers.LayerTypeLoopback,
}

func newDecoder(link layers.LinkType) *decoder {
	d := &decoder{link: link}
	d.parser = gopacket.NewDecodingLayerParser(usualLinks[link], &layers.Ethernet{}, &layers.Dot1Q{}, &layers.LinuxSLL{}, &layers.LinuxSLL2{}, &layers.Loopback{},
		&d.ip4, &d.ip6, &d.tcp)
	d.parser.IgnoreUnsupported = true
	return d
}

// segment returns the segment of a packet and its addresses, nil where there is none. It is valid until the next packet.
func (d *decoder) segment(data []byte) (tcp *layers.TCP, from, to []byte) {
	if d.parser.DecodeLayers(data, &d.found) == nil && len(d.found) >= 2 && d.found[len(d.found)-1] == layers.LayerTypeTCP {
		if d.found[len(d.found)-2] == layers.LayerTypeIPv4 {
			return &d.tcp, d.ip4.SrcIP, d.ip4.DstIP
		}
		return &d.tcp, d.ip6.SrcIP, d.ip6.DstIP
	}
	packet := gopacket.NewPacket(data, d.link, gopacket.DecodeOptions{Lazy: true, NoCopy: true}) // an unusual one
	tcp, _ = packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
	network := packet.NetworkLayer()
	if tcp == nil || network == nil {
		return nil, nil, nil
	}
	return tcp, network.NetworkFlow().Src().Raw(), network.NetworkFlow().Dst().Raw()
}

// packet takes in one packet.
func (c *capture) packet(data []byte, at time.Time) {
	tcp, from, to := c.decoder.segment(data)
	if tcp == nil || uint16(tcp.SrcPort) != c.port && uint16(tcp.DstPort) != c.port {
		return
	}
	request := uint16(tcp.DstPort) == c.port
	end, port := from, tcp.SrcPort
	if !request {
		end, port = to, tcp.DstPort
	}
	ip, ok := netip.AddrFromSlice(end)
	if !ok {
		return
	}
	id := netip.AddrPortFrom(ip, uint16(port))
	conn := c.conns[id]
	if conn == nil && !tcp.SYN && len(tcp.Payload) == 0 { // nothing more comes after its end, or nothing has come so far
		return
	}
	if conn == nil || request && tcp.SYN && conn.to.known && conn.to.next != tcp.Seq+1 { // the port is used again
		if conn != nil {
			c.finish(conn)
		}
		conn = &tcpConn{dialogue: c.begin(id.String(), !tcp.SYN)}
		conn.to.resp, conn.from.resp = &conn.requests, &conn.replies
		c.conns[id] = conn
	}
	if conn.closed {
		return
	}
	c.now(protocol.Instant(at.UnixNano()))
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
	if tcp.FIN {
		s.ended, s.fin = true, tcp.Seq+uint32(len(tcp.Payload))
	}
	if tcp.RST && conn.to.known || conn.to.whole() && conn.from.whole() {
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
			if request {
				conn.skipped = true
				c.out.Skipped++
			}
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
			c.stop(conn.dialogue, "a part of them is missing")
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
			c.stop(conn.dialogue, "what they carry is not Redis's protocol, or TLS")
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

// finish says what a connection leaves open at its end.
func (c *capture) finish(conn *tcpConn) {
	if conn.closed {
		return
	}
	for _, s := range []*stream{&conn.to, &conn.from} {
		if gap := s.lost(); gap > 0 {
			c.out.LostBytes += int64(gap)
			c.stop(conn.dialogue, "a part of them is missing")
		}
	}
	if conn.joined && !conn.settled && conn.skipped {
		c.stop(conn.dialogue, "they began before the capture, and no beginning of a command was found")
	}
	c.close(conn.dialogue)
}
