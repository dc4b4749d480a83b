package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/overlaps"
)

// captured is a capture of one client that holds lock.order.1 for a time, and asks the server for its time before and after it. Its
// host's clock is a second ahead. Each client has a port of its own.
func captured(t *testing.T, begins, holds time.Duration) []byte {
	t.Helper()
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	require.NoError(t, w.WriteFileHeader(65535, layers.LinkTypeEthernet))
	zero := time.Unix(1_700_000_000, 0)
	here, there := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 2}
	local := 40000 + layers.TCPPort(begins.Milliseconds())
	next := map[bool]uint32{false: 1, true: 9} // by whether it is the server's
	packet := func(at time.Duration, server, syn bool, payload string) {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: here, DstIP: there}
		tcp := &layers.TCP{SrcPort: local, DstPort: 6379, Seq: next[server], Ack: next[!server], SYN: syn, ACK: server || !syn}
		if server {
			ip.SrcIP, ip.DstIP, tcp.SrcPort, tcp.DstPort = there, here, 6379, local
		}
		next[server] += uint32(len(payload))
		if syn {
			next[server]++
		}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
		buffer := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}, ip, tcp, gopacket.Payload(payload)))
		n := len(buffer.Bytes())
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: zero.Add(time.Second + at), CaptureLength: n, Length: n}, buffer.Bytes()))
	}
	asks := func(at time.Duration, request, reply string) {
		packet(at, false, false, request)
		packet(at+2*time.Millisecond, true, false, reply)
	}
	tells := func(at time.Duration) {
		micros := fmt.Sprint((at + time.Millisecond).Microseconds())
		asks(at, "*1\r\n$4\r\nTIME\r\n", fmt.Sprintf("*2\r\n$10\r\n%d\r\n$%d\r\n%s\r\n", zero.Unix(), len(micros), micros))
	}
	packet(0, false, true, "")
	packet(0, true, true, "")
	tells(time.Millisecond)
	asks(begins+10*time.Millisecond, "*3\r\n$5\r\nSETNX\r\n$12\r\nlock.order.1\r\n$13\r\n1700000030001\r\n", ":1\r\n")
	asks(begins+holds+10*time.Millisecond, "*2\r\n$3\r\nDEL\r\n$12\r\nlock.order.1\r\n", ":1\r\n")
	tells(900 * time.Millisecond)
	return out.Bytes()
}

// TestObserveOverlaps finds what the clients of two captures did to each other, says what it cannot tell, and refuses what it cannot use.
func TestObserveOverlaps(t *testing.T) {
	t.Chdir(t.TempDir())
	runs := func(want int, words ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := lockmigrateIn(t.Context(), false, words...)
		require.Equal(t, want, code, "%s%s", stdout, stderr)
		return stdout, stderr
	}
	for file, c := range map[string][2]time.Duration{"a": {0, 100 * time.Millisecond}, "b": {50 * time.Millisecond, 100 * time.Millisecond},
		"after": {200 * time.Millisecond, 50 * time.Millisecond}, "close": {101 * time.Millisecond, 50 * time.Millisecond}} {
		require.NoError(t, os.WriteFile(file+".pcap", captured(t, c[0], c[1]), 0o600))
		out, _ := runs(exitDone, "observe", "--pcap", file+".pcap", "--match", "lock.order.*", "--holds", file)
		assert.Contains(t, out, "wrote 1 hold of 899ms to "+file+", on the server's clock within 1 ms")
	}
	out, _ := runs(exitDone, "observe", "overlaps", "a", "b")
	assert.Contains(t, out, "2 files, 899ms in common, 2 holds, clocks within 1 ms\noverlaps of clients of different files: 1\n")
	assert.Contains(t, out, "OVERLAP on lock.order.1 for 46 ms to 54 ms\n  10.0.0.1:40000 jedis-ms in a acquired ")
	out, _ = runs(exitDone, "observe", "overlaps", "a", "b", "--json")
	var found overlaps.Result
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.Len(t, found.Overlaps, 1)
	assert.Equal(t, "b", found.Overlaps[0].Second.Source)

	out, _ = runs(exitDone, "observe", "overlaps", "a", "after")
	assert.Contains(t, out, "overlaps of clients of different files: 0\n")
	out, stderr := runs(exitInconclusive, "observe", "overlaps", "a", "close")
	assert.Contains(t, out, "overlaps of clients of different files: 0\nundecided: 1 pair, none of them longer than 3 ms\n")
	assert.Contains(t, stderr, "the clocks do not tell whether they overlap")
	out, _ = runs(exitDone, "observe", "overlaps", "a", "a")
	assert.Contains(t, out, "in two files: 1 hold, counted once")

	data := captured(t, 0, 100*time.Millisecond)
	require.NoError(t, os.WriteFile("cut.pcap", data[:len(data)-10], 0o600)) // without the last reply to TIME
	out, stderr = runs(exitInconclusive, "observe", "--pcap", "cut.pcap", "--match", "lock.order.*", "--holds", "cut", "--profile", "cut.json")
	assert.Contains(t, out, "NOT ALL HOLDS ARE KNOWN: the clock was not compared with the server's TIME")
	assert.Contains(t, stderr, "the file of --holds is not")
	out, _ = runs(exitInconclusive, "observe", "overlaps", "a", "cut")
	assert.Contains(t, out, "NOT LOOKED AT: cut: the clock was not compared")

	runs(exitDone, "observe", "--pcap", "b.pcap", "--holds", "all")
	_, stderr = runs(exitFailed, "observe", "overlaps", "a", "all")
	assert.Contains(t, stderr, "the files are of different keys")
	_, stderr = runs(exitUsage, "observe", "overlaps", "a")
	assert.Contains(t, stderr, "nothing to be compared with")
	_, stderr = runs(exitUsage, "observe", "overlaps", "a", "cut.json")
	assert.Contains(t, stderr, "cut.json: no file of holds of this version")
	_, stderr = runs(exitUsage, "observe", "overlaps", "a", "none")
	assert.Contains(t, stderr, "none")
	_, stderr = runs(exitUsage, "observe", "--from", "a", "--holds", "x")
	assert.Contains(t, stderr, "--holds is for --pcap and --listen")
	assert.NoFileExists(t, "x")
}
