//go:build !linux

package rawconn

import (
	"net"
	"time"
)

func quiet(conn net.Conn) net.Conn { return conn }

func expect(net.Conn, func() time.Duration) {}
