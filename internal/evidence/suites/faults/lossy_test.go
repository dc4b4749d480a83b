package faults

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// lossy is a server in a network namespace of its own, behind a wire that loses packets: TCP's own
// retransmissions, with their delays, are part of what a client sees. It needs root and /dev/net/tun. The
// wire is two TUN devices and this process between them, since not every kernel has netem.
type lossy struct {
	*redistest.Server
	loss atomic.Int64 // packets in a thousand, each way
	lost atomic.Int64
}

func newLossy(t *testing.T) *lossy {
	t.Helper()
	redistest.Need(t, redistest.Redis, redistest.NetNS)
	n := os.Getpid()%200 + 20
	name := fmt.Sprintf("lm%d", os.Getpid())
	near, far := fmt.Sprintf("10.%d.7.1", n), fmt.Sprintf("10.%d.7.2", n)
	run := func(line string) {
		t.Helper()
		words := strings.Fields(line)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}
	run("ip netns add " + name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	here, there := openTUN(t, name+"a"), openTUN(t, name+"b")
	run("ip addr add " + near + " peer " + far + " dev " + name + "a")
	run("ip link set " + name + "a up")
	run("ip link set " + name + "b netns " + name)
	run("ip netns exec " + name + " ip addr add " + far + " peer " + near + " dev " + name + "b")
	run("ip netns exec " + name + " ip link set " + name + "b up")
	run("ip netns exec " + name + " ip link set lo up")

	l := &lossy{}
	go l.carry(here, there)
	go l.carry(there, here)
	t.Cleanup(func() { _ = here.Close(); _ = there.Close() })

	_, port, _ := net.SplitHostPort(redistest.FreeAddr(t))
	l.Server = redistest.Shape{Addr: net.JoinHostPort(far, port), Wrapper: []string{"ip", "netns", "exec", name}}.Start(t, "--protected-mode", "no")
	return l
}

// carry moves packets from one device to the other, and loses some.
func (l *lossy) carry(from, to *os.File) {
	packet := make([]byte, 64<<10)
	for {
		n, err := from.Read(packet)
		if err != nil {
			return
		}
		if rand.Int64N(1000) < l.loss.Load() {
			l.lost.Add(1)
			continue
		}
		if _, err := to.Write(packet[:n]); err != nil {
			continue // the device is not up yet, or not any more: the packet is lost
		}
	}
}

func openTUN(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	require.NoError(t, err, "/dev/net/tun")
	request, err := unix.NewIfreq(name)
	require.NoError(t, err)
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	require.NoError(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request), "make the device %s", name)
	return os.NewFile(uintptr(fd), name)
}

// row is what one fault came to.
type row struct {
	turns            int
	overlaps, legacy int // of tokens, of old locks
	lost             int
	delay            time.Duration
}

const head = `%d rounds of each, on %s. No lock, connection or goroutine was left: the run fails otherwise.

| fault | what happens | promise | turns | overlaps of tokens | of old locks | holders told of a loss | longest overlap |
|---|---|---|---|---|---|---|---|
`

// write puts the table into docs/faults.md.
func write(tb testing.TB, rows []*row) {
	var b strings.Builder
	fmt.Fprintf(&b, head, *rounds, time.Now().UTC().Format(time.DateOnly))
	for i, f := range faults {
		r := rows[i]
		promised, delay := "exclusive", "-"
		if f.promise == told {
			promised = "told"
		}
		if r.delay > 0 {
			delay = r.delay.Round(time.Millisecond).String()
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %s |\n", f.name, f.what, promised, r.turns, r.overlaps, r.legacy, r.lost, delay)
	}
	redistest.Section(tb, docFile(), "faults", "make faults", b.String(), true)
}

func docFile() string { return filepath.Join("..", "..", "..", "..", "docs", "faults.md") }

// check sees to it that the published table has a line for each fault.
func check(tb testing.TB) {
	text, err := os.ReadFile(docFile())
	require.NoError(tb, err)
	for _, f := range faults {
		assert.Contains(tb, string(text), "| "+f.name+" |", "docs/faults.md is older than the suite: run with -update")
	}
}
