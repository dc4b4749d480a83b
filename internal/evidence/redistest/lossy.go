package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lossy is a server in a network namespace of its own, behind a wire that loses packets: TCP's own
// retransmissions, with their delays, are part of what a client sees. It needs root and /dev/net/tun. The
// wire is two TUN devices and this process between them, since not every kernel has netem.
type Lossy struct {
	*Server
	loss atomic.Int64 // packets in a thousand, each way
	lost atomic.Int64
}

// Lost returns how many packets were.
func (l *Lossy) Lost() int64 { return l.lost.Load() }

// Lose sets how many packets in a thousand are lost, each way.
func (l *Lossy) Lose(perMille int) { l.loss.Store(int64(perMille)) }

// NewLossy starts one.
func NewLossy(t testing.TB, args ...string) *Lossy {
	t.Helper()
	Need(t, Redis, NetNS)
	n := os.Getpid()%200 + 20
	name := fmt.Sprintf("lm%d", os.Getpid())
	near, far := fmt.Sprintf("10.%d.7.1", n), fmt.Sprintf("10.%d.7.2", n)
	run := func(line string) {
		t.Helper()
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
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

	l := &Lossy{}
	go l.carry(here, there)
	go l.carry(there, here)
	t.Cleanup(func() { _ = here.Close(); _ = there.Close() })

	s := newServer(t, append(args, "--bind", far, "--protected-mode", "no")...)
	_, port, _ := net.SplitHostPort(s.Addr)
	s.Addr = net.JoinHostPort(far, port)
	s.wrapper = []string{"ip", "netns", "exec", name, "redis-server"}
	s.Start()
	l.Server = s
	return l
}

// carry moves packets from one device to the other, and loses some.
func (l *Lossy) carry(from, to *os.File) {
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

func openTUN(t testing.TB, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("/dev/net/tun: %v", err)
	}
	request := struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: unix.IFF_TUN | unix.IFF_NO_PI}
	copy(request.name[:], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); e != 0 {
		t.Fatalf("make the device %s: %v", name, e)
	}
	return os.NewFile(uintptr(fd), name)
}
