package redistest

import (
	"io"
	"net"
	"testing"
)

// Copying starts a proxy that copies both ways with io.Copy, what every proxy in its place costs, and returns its address.
func Copying(t testing.TB, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				_ = down.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(up, down)
				_ = up.Close()
			}()
			go func() {
				_, _ = io.Copy(down, up)
				_ = down.Close()
			}()
		}
	}()
	return l.Addr().String()
}
