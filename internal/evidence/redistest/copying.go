package redistest

import (
	"io"
	"net"
	"testing"
)

// Copying starts a proxy that copies both ways with io.Copy, what every proxy in its place costs, and returns its address. It connects
// from an address of this machine; nil: from any.
func Copying(t testing.TB, target string, from *net.TCPAddr) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	dialer := net.Dialer{}
	if from != nil {
		dialer.LocalAddr = from
	}
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := dialer.Dial("tcp", target)
			if err != nil {
				_ = down.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{up, down}, {down, up}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					_, _ = way[0].Close(), way[1].Close()
				}()
			}
		}
	}()
	return l.Addr().String()
}
