//go:build !linux

package rawconn

import "net"

func quiet(conn net.Conn) net.Conn { return conn }

func expect(net.Conn, expectation) {}
