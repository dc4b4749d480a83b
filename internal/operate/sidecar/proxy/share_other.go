//go:build !linux

package proxy

import (
	"errors"
	"net"
)

func share(net.Listener) {}

func listenBeside(string) (net.Listener, error) {
	return nil, errors.New("another process listens there, and two can share an address on Linux only")
}
