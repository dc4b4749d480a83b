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

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/gopacket/gopacket/reassembly"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
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

// ReadCapture reads what tcpdump wrote (pcap or pcapng), and takes the commands and replies of the connections to a port out of it. Keys
// learns what the replies say before take is told of a command. Unlike MONITOR it shows what the server answered, and costs the server nothing. It
// does not show what a script did: the keys of a script that is not this project's become unknown. Times are those of the
// host that captured; capture on the server's host, or skews are against the other one.
func ReadCapture(ctx context.Context, in io.Reader, port uint16, keys *Keys, take func(*Command)) (*Captured, error) {
	source, linkType, err := packets(in)
	if err != nil {
		return nil, err
	}
	c := &capture{dialogues: newDialogues(keys, take), link: linkType, port: port, conns: map[netip.AddrPort]*tcpConn{}}
	c.assembler = reassembly.NewAssembler(reassembly.NewStreamPool(c))
	c.assembler.MaxBufferedPagesPerConnection = mostPages
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
		c.out.Packets++
		c.packet(data, info)
	}
	c.assembler.FlushAll()
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
	link      layers.LinkType
	port      uint16
	assembler *reassembly.Assembler
	conns     map[netip.AddrPort]*tcpConn // by the client's address
}

// mostPages is how much of a connection may wait for a segment that is missing, in pages of 1,900 bytes: one MiB.
const mostPages = 550

// tcpConn is one connection of a client. The assembler puts its segments in order.
type tcpConn struct {
	*dialogue
	c       *capture
	addr    netip.AddrPort
	client  reassembly.TCPFlowDirection // of what the client sends
	settled bool                        // of one that began before the capture: its first request was found
	skipped bool                        // something came before that
	// By direction, of the client or not: the sequence number that comes next, and the one behind all that was captured.
	next, seen map[bool]uint32
}

// packet takes in one packet.
func (c *capture) packet(data []byte, info gopacket.CaptureInfo) {
	packet := gopacket.NewPacket(data, c.link, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	tcp, _ := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
	network := packet.NetworkLayer()
	if tcp == nil || network == nil || uint16(tcp.SrcPort) != c.port && uint16(tcp.DstPort) != c.port || len(tcp.Payload) == 0 && !tcp.SYN && !tcp.FIN && !tcp.RST {
		return
	}
	c.now(protocol.Instant(info.Timestamp.UnixNano()))
	flow, request := network.NetworkFlow(), uint16(tcp.DstPort) == c.port
	conn := c.conns[c.clientOf(tcp, flow)]
	if conn != nil && request && tcp.SYN && conn.next[true] != 0 && conn.next[true] != tcp.Seq+1 { // the port is used again
		c.reset(conn, flow, tcp)
	}
	c.assembler.Assemble(flow, tcp)
	if tcp.RST && conn != nil {
		c.reset(conn, flow, tcp)
	}
}

// clientOf is the client's address of a segment.
func (c *capture) clientOf(tcp *layers.TCP, flow gopacket.Flow) netip.AddrPort {
	end, port := flow.Src(), tcp.SrcPort
	if uint16(tcp.DstPort) != c.port {
		end, port = flow.Dst(), tcp.DstPort
	}
	ip, _ := netip.AddrFromSlice(end.Raw())
	return netip.AddrPortFrom(ip, uint16(port))
}

// reset tells the assembler that both directions of a connection have ended.
func (c *capture) reset(conn *tcpConn, flow gopacket.Flow, of *layers.TCP) {
	for _, request := range []bool{uint16(of.DstPort) == c.port, uint16(of.DstPort) != c.port} {
		end := &layers.TCP{SrcPort: of.SrcPort, DstPort: of.DstPort, Seq: conn.next[request], RST: true}
		end.SetInternalPortsForTesting() // TransportFlow reads them
		c.assembler.Assemble(flow, end)
		flow, of = flow.Reverse(), &layers.TCP{SrcPort: of.DstPort, DstPort: of.SrcPort}
	}
}

// New implements reassembly.StreamFactory. Nothing more comes after the end of a connection.
func (c *capture) New(net, _ gopacket.Flow, tcp *layers.TCP, _ reassembly.AssemblerContext) reassembly.Stream {
	addr := c.clientOf(tcp, net)
	if !addr.IsValid() || !tcp.SYN && len(tcp.Payload) == 0 {
		return nil
	}
	conn := &tcpConn{c: c, addr: addr, dialogue: c.begin(addr.String(), !tcp.SYN), next: map[bool]uint32{}, seen: map[bool]uint32{}}
	if uint16(tcp.DstPort) != c.port { // the first packet is the server's
		conn.client = reassembly.TCPDirServerToClient
	}
	c.conns[addr] = conn
	return conn
}

// Accept implements reassembly.Stream. A connection that began before the capture is read from the first packet that begins with a command, and from
// what the server sends after that.
func (t *tcpConn) Accept(tcp *layers.TCP, _ gopacket.CaptureInfo, dir reassembly.TCPFlowDirection, next reassembly.Sequence, start *bool, _ reassembly.AssemblerContext) bool {
	request := dir == t.client
	if next < 0 && !tcp.SYN {
		switch {
		case len(tcp.Payload) == 0:
			return tcp.RST
		case request && !bytes.HasPrefix(tcp.Payload, []byte("*")):
			t.skipped = true
			return false
		case !request && !t.settled:
			return false
		}
		*start, t.settled = true, true
	}
	if next < 0 {
		t.next[request] = tcp.Seq
		if tcp.SYN {
			t.next[request]++
		}
		t.seen[request] = t.next[request]
	}
	if end := tcp.Seq + uint32(len(tcp.Payload)); int32(end-t.seen[request]) > 0 {
		t.seen[request] = end
	}
	return true
}

// ReassembledSG implements reassembly.Stream: what follows in order, or behind a gap that will not be filled.
func (t *tcpConn) ReassembledSG(sg reassembly.ScatterGather, _ reassembly.AssemblerContext) {
	dir, _, _, skip := sg.Info()
	n, _ := sg.Lengths()
	request := dir == t.client
	if skip > 0 {
		t.lost(int64(skip))
	}
	if n == 0 || t.closed {
		return
	}
	t.next[request] += uint32(n)
	reader := &t.replies
	if request {
		reader = &t.requests
	}
	if !reader.feed(sg.Fetch(n)) {
		t.c.stop(t.dialogue, "what they carry is not Redis's protocol, or TLS")
	}
}

func (t *tcpConn) lost(n int64) {
	if !t.closed {
		t.c.out.LostBytes += n
		t.c.stop(t.dialogue, "a part of them is missing")
	}
}

// ReassemblyComplete implements reassembly.Stream: it says what a connection leaves open at its end.
func (t *tcpConn) ReassemblyComplete(reassembly.AssemblerContext) bool {
	for request, seen := range t.seen {
		if gap := int32(seen - t.next[request]); gap > 0 {
			t.lost(int64(gap))
		}
	}
	if t.joined && !t.settled && t.skipped && !t.closed {
		t.c.stop(t.dialogue, "they began before the capture, and no beginning of a command was found")
	}
	t.c.close(t.dialogue)
	if t.c.conns[t.addr] == t {
		delete(t.c.conns, t.addr)
	}
	return true
}
