package traffic

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

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

// told returns what a capture says of the keys of locks: who did what, and what the server answered as far as that is known.
func told(t *testing.T, data []byte) (all []string, seen *Captured) {
	keys := NewKeys(100)
	seen, err := ReadCapture(context.Background(), bytes.NewReader(data), 6379, keys, func(c *Command) {
		for _, e := range keys.Apply(c) {
			if e.Op != OpGet {
				all = append(all, fmt.Sprint(c.Addr, " ", c.Words[0], " ", e.Key.Name, " ", []string{"unsettled", "no", "yes"}[e.Done]))
			}
		}
	})
	require.NoError(t, err)
	return all, seen
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
	"10.0.0.1:4000 SETNX lock:1 yes", "10.0.0.1:4000 DEL lock:1 yes",
	"10.0.0.1:4000 SETNX lock:2 no", "10.0.0.1:4000 GETSET lock:2 yes", "10.0.0.1:4000 DEL lock:2 yes",
}

// TestCaptureInAnyPieces cuts, repeats and reorders the segments of a conversation: what is read stays the same.
func TestCaptureInAnyPieces(t *testing.T) {
	want, seen := told(t, pcap(t, nil, conversation{client: 4000, pieces: turn()}))
	require.Equal(t, wantTurn, want)
	require.Empty(t, seen.NotSeen())
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		got, seen := told(t, pcap(t, r, conversation{client: 4000, pieces: turn(), reorder: seed%2 == 0}))
		require.Equal(t, want, got, "seed %d", seed)
		require.Empty(t, seen.NotSeen(), "seed %d", seed)
	}
}

// TestCaptureOfPartOfAConnection: a connection that began before the capture is read from its first whole command; a gap, TLS
// and a port without Redis are named, and nothing is made up.
func TestCaptureOfPartOfAConnection(t *testing.T) {
	got, seen := told(t, pcap(t, nil, conversation{client: 4000, pieces: append([]piece{{server: true, bytes: "$5\r\nstale\r\n"}, {bytes: "half a command\r\n"}}, turn()...), midway: true}))
	assert.Equal(t, wantTurn, got)
	assert.Empty(t, seen.NotSeen())

	got, seen = told(t, pcap(t, nil, conversation{client: 4000, pieces: turn()}, conversation{client: 4000, pieces: turn()}))
	assert.Equal(t, append(append([]string{}, wantTurn...), wantTurn...), got, "a port that is used again, though no end of its first connection is in the capture")
	assert.Empty(t, seen.NotSeen())
	assert.Equal(t, 2, seen.Connections)

	gap := turn()
	gap[3].lost = true
	got, seen = told(t, pcap(t, nil, conversation{client: 4000, pieces: gap}))
	assert.Equal(t, wantTurn[:1], got, "what came before the gap")
	assert.Equal(t, []string{"1 connections: a part of them is missing", "9 bytes of TCP are not in the capture"}, seen.NotSeen())

	got, seen = told(t, pcap(t, nil, conversation{client: 4000, pieces: append([]piece{{bytes: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"}}, turn()...)}))
	assert.Equal(t, []string{"1 connections: what they carry is not Redis's protocol, or TLS"}, seen.NotSeen())
	assert.Empty(t, got)
}

// TestCaptureLearnsFromReplies: a reply says what stood on a key, also where a script or an unseen client changed it.
func TestCaptureLearnsFromReplies(t *testing.T) {
	got, _ := told(t, pcap(t, nil,
		conversation{client: 4000, pieces: []piece{{bytes: resp("SETNX", "lock:1", "1700000030000")}, {server: true, bytes: ":1\r\n"}}},
		conversation{client: 4001, pieces: []piece{
			{bytes: resp("EVAL", "return redis.call('DEL', KEYS[1])", "1", "lock:1")}, {server: true, bytes: ":1\r\n"},
			{bytes: resp("SETNX", "lock:1", "1700000031000")}, {server: true, bytes: ":1\r\n"},
			{bytes: resp("SET", "lock:3", "token-0123456789abcdef", "NX", "PX", "30000")}, {server: true, bytes: "$-1\r\n"}, // held by somebody
			{bytes: resp("SETNX", "lock:4", "1700000031000")}, {server: true, bytes: "-NOPERM no\r\n"},
		}}))
	assert.Equal(t, []string{
		"10.0.0.1:4000 SETNX lock:1 yes", "10.0.0.1:4001 SETNX lock:1 yes", // the script's DEL was not seen, the reply was
		"10.0.0.1:4001 SET lock:3 no", // and a refused command did nothing
	}, got)
}

// FuzzCapture reads files that somebody else wrote.
func FuzzCapture(f *testing.F) {
	f.Add(pcap(f, nil, conversation{client: 4000, pieces: turn()}))
	f.Add([]byte("\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a"))
	f.Add([]byte("\xd4\xc3\xb2\xa1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys := NewKeys(100)
		_, _ = ReadCapture(context.Background(), bytes.NewReader(data), 6379, keys, func(c *Command) { keys.Apply(c) })
	})
}
