package observe_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// tcpdump captures what goes to and from a server until the returned function is called.
func tcpdump(t *testing.T, addr string) (stop func() string) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "redis.pcap")
	command := exec.Command("tcpdump", "-i", "lo", "-s", "0", "-U", "-B", "16384", "-w", file, "tcp", "port", port)
	said, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start(), "scripts/setup installs tcpdump")
	lines := bufio.NewReader(said)
	for line := ""; !strings.Contains(line, "listening"); { // it captures from then on
		line, err = lines.ReadString('\n')
		require.NoError(t, err, line)
	}
	go func() { _, _ = lines.WriteTo(io.Discard) }()
	return func() string {
		// What the kernel holds comes in its order, and a block at a time: when the last of it is in the file, so is everything else.
		conn, err := redis.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		last := fmt.Sprint("the last packet ", time.Now().UnixNano())
		_, err = conn.Do("ECHO", last)
		require.NoError(t, err)
		redistest.Await(t, last, 30*time.Second, func() bool {
			seen, err := os.ReadFile(file)
			return err == nil && bytes.Contains(seen, []byte(last))
		})
		_ = command.Process.Signal(syscall.SIGINT)
		_ = command.Wait()
		return file
	}
}

func readCapture(t *testing.T, file, addr string, opts observe.Options) (observe.Report, *traffic.Captured) {
	t.Helper()
	in, err := os.Open(file)
	require.NoError(t, err)
	defer in.Close()
	o := observe.New(opts)
	seen, err := traffic.ReadCapture(context.Background(), in, netip.MustParseAddrPort(addr).Port(), o.Keys, o.Take)
	require.NoError(t, err)
	o.Finish()
	return o.Report(), seen
}

// conversation is a client's side of a connection, and what the server answers, as it would look on the wire.
type conversation struct {
	client  uint16
	pieces  []piece
	midway  bool // the capture begins after the handshake
	reorder bool
}

type piece struct {
	server bool
	bytes  string
	lost   bool // not in the capture
}

func resp(words ...string) string { return string(wire.Append(nil, words...)) }

// pcap writes conversations as packets, cut at random places, sent twice now and then, and out of order where that is wanted.
func pcap(t testing.TB, r *rand.Rand, all ...conversation) []byte {
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	require.NoError(t, w.WriteFileHeader(1<<18, layers.LinkTypeEthernet))
	at := time.Unix(1_700_000_000, 0)
	packet := func(c *conversation, server, syn bool, seq uint32, data string) {
		at = at.Add(time.Millisecond)
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 9}}
		tcp := &layers.TCP{SrcPort: layers.TCPPort(c.client), DstPort: 6379, Seq: seq, SYN: syn, ACK: !syn || server, Window: 65535}
		if server {
			ip.SrcIP, ip.DstIP = ip.DstIP, ip.SrcIP
			tcp.SrcPort, tcp.DstPort = tcp.DstPort, tcp.SrcPort
		}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
		buffer := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}, DstMAC: net.HardwareAddr{1, 2, 3, 4, 5, 7}, EthernetType: layers.EthernetTypeIPv4}, ip, tcp, gopacket.Payload(data)))
		raw := buffer.Bytes()
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(raw), Length: len(raw)}, raw))
	}
	for i := range all {
		c := &all[i]
		seq := [2]uint32{4_294_967_290, 77} // the client's wraps around
		if !c.midway {
			packet(c, false, true, seq[0], "")
			packet(c, true, true, seq[1], "")
		}
		seq[0]++
		seq[1]++
		for _, p := range c.pieces {
			side := 0
			if p.lost {
				seq[1] += uint32(len(p.bytes))
				continue
			}
			if p.server {
				side = 1
			}
			type cut struct {
				seq  uint32
				data string
			}
			var cuts []cut
			for text := p.bytes; text != ""; {
				n := len(text)
				if r != nil {
					n = 1 + r.IntN(len(text))
				}
				cuts = append(cuts, cut{seq[side], text[:n]})
				if r != nil && r.IntN(4) == 0 {
					cuts = append(cuts, cuts[r.IntN(len(cuts))]) // sent again
				}
				seq[side] += uint32(n)
				text = text[n:]
			}
			if c.reorder && len(cuts) > 1 {
				r.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
			}
			for _, cut := range cuts {
				packet(c, p.server, false, cut.seq, cut.data)
			}
		}
	}
	return out.Bytes()
}

// events returns what an observer makes of a capture.
func events(t *testing.T, data []byte) (all []string, report observe.Report, seen *traffic.Captured) {
	o := observe.New(observe.Options{Match: func(key string) bool { return strings.HasPrefix(key, "lock:") }, Lease: 30 * time.Second, Emit: func(row observe.EventRow) {
		all = append(all, strings.TrimSpace(row.What+row.Hazard+" "+row.Key+" "+row.By.Addr))
	}})
	seen, err := traffic.ReadCapture(context.Background(), bytes.NewReader(data), 6379, o.Keys, o.Take)
	require.NoError(t, err)
	o.Finish()
	return all, o.Report(), seen
}

// turn is one turn of an old client that takes the lock and gives it back, and one that finds it held.
func turn() []piece {
	return []piece{
		{bytes: resp("SETNX", "lock:1", "1700000030000")}, {server: true, bytes: ":1\r\n"},
		{bytes: resp("GET", "other") + resp("DEL", "lock:1")}, {server: true, bytes: "$-1\r\n:1\r\n"}, // pipelined
		{bytes: resp("SETNX", "lock:2", "1700000030000") + resp("GET", "lock:2")}, {server: true, bytes: ":0\r\n$13\r\n1699999000000\r\n"},
		{bytes: resp("GETSET", "lock:2", "1700000030000")}, {server: true, bytes: "$13\r\n1699999000000\r\n"}, // a takeover
		{bytes: "PING\r\n"}, {server: true, bytes: "+PONG\r\n"},
		{bytes: resp("MULTI") + resp("DEL", "lock:2") + resp("EXEC")}, {server: true, bytes: "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"},
	}
}

var wantTurn = []string{
	"acquired lock:1 10.0.0.1:4000", "released lock:1 10.0.0.1:4000",
	"acquired lock:2 10.0.0.1:4000", "released lock:2 10.0.0.1:4000",
}

// TestCaptureInAnyPieces cuts, repeats and reorders the segments of a conversation: what is read stays the same.
func TestCaptureInAnyPieces(t *testing.T) {
	want, _, seen := events(t, pcap(t, nil, conversation{client: 4000, pieces: turn()}))
	require.Equal(t, wantTurn, want)
	require.Empty(t, seen.NotSeen())
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		got, _, seen := events(t, pcap(t, r, conversation{client: 4000, pieces: turn(), reorder: seed%2 == 0}))
		require.Equal(t, want, got, "seed %d", seed)
		require.Empty(t, seen.NotSeen(), "seed %d", seed)
	}
}

// TestCaptureOfPartOfAConnection: a connection that began before the capture is read from its first whole command; a gap, TLS
// and a port without Redis are named, and nothing is made up.
func TestCaptureOfPartOfAConnection(t *testing.T) {
	got, _, seen := events(t, pcap(t, nil, conversation{client: 4000, pieces: append([]piece{{server: true, bytes: "$5\r\nstale\r\n"}, {bytes: "half a command\r\n"}}, turn()...), midway: true}))
	assert.Equal(t, wantTurn, got)
	assert.Empty(t, seen.NotSeen())

	got, _, seen = events(t, pcap(t, nil, conversation{client: 4000, pieces: turn()}, conversation{client: 4000, pieces: turn()}))
	assert.Equal(t, append(append([]string{}, wantTurn...), wantTurn...), got, "a port that is used again, though no end of its first connection is in the capture")
	assert.Empty(t, seen.NotSeen())
	assert.Equal(t, 2, seen.Connections)

	gap := turn()
	gap[3].lost = true
	got, _, seen = events(t, pcap(t, nil, conversation{client: 4000, pieces: gap}))
	assert.Equal(t, wantTurn[:1], got, "what came before the gap")
	assert.Equal(t, []string{"1 connections: a part of them is missing", "9 bytes of TCP are not in the capture"}, seen.NotSeen())

	_, report, seen := events(t, pcap(t, nil, conversation{client: 4000, pieces: append([]piece{{bytes: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"}}, turn()...)}))
	assert.Equal(t, []string{"1 connections: what they carry is not Redis's protocol, or TLS"}, seen.NotSeen())
	assert.Empty(t, report.Clients)
}

// TestCaptureLearnsFromReplies: a reply says what stood on a key, also where a script or an unseen client changed it.
func TestCaptureLearnsFromReplies(t *testing.T) {
	got, report, _ := events(t, pcap(t, nil,
		conversation{client: 4000, pieces: []piece{{bytes: resp("SETNX", "lock:1", "1700000030000")}, {server: true, bytes: ":1\r\n"}}},
		conversation{client: 4001, pieces: []piece{
			{bytes: resp("EVAL", "return redis.call('DEL', KEYS[1])", "1", "lock:1")}, {server: true, bytes: ":1\r\n"},
			{bytes: resp("SETNX", "lock:1", "1700000031000")}, {server: true, bytes: ":1\r\n"},
			{bytes: resp("SET", "lock:3", "token-0123456789abcdef", "NX", "PX", "30000")}, {server: true, bytes: "$-1\r\n"}, // held by somebody
			{bytes: resp("SETNX", "lock:4", "1700000031000")}, {server: true, bytes: "-NOPERM no\r\n"},
		}}))
	assert.Contains(t, got, "acquired lock:1 10.0.0.1:4001", "the script's DEL was not seen, the reply was")
	for _, e := range got {
		assert.NotContains(t, e, "acquired lock:3")
		assert.NotContains(t, e, "lock:4", "a refused command did nothing")
	}
	assert.EqualValues(t, 2, len(report.Clients))
}

// FuzzCapture reads files that somebody else wrote.
func FuzzCapture(f *testing.F) {
	f.Add(pcap(f, nil, conversation{client: 4000, pieces: turn()}))
	f.Add([]byte("\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a"))
	f.Add([]byte("\xd4\xc3\xb2\xa1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := observe.New(observe.Options{})
		_, _ = traffic.ReadCapture(context.Background(), bytes.NewReader(data), 6379, o.Keys, o.Take)
		_ = o.Report()
	})
}
