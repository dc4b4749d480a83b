package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

var (
	portsMu sync.Mutex
	// ports are those that this process has given out. The UDP socket of the same number says so to other
	// test processes, for as long as this one lives: a server that is down for a while keeps its port.
	ports = map[int]net.PacketConn{}
)

// FreeAddr returns an address that nobody uses. Its port is below those that the system gives to outgoing
// connections, and it is given out once: a server may be down for a while and come back on it. The port
// 10,000 above is free too: a cluster's node takes it for its bus unless it is told otherwise.
func FreeAddr(t testing.TB) string {
	t.Helper()
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := 10_000 + rand.IntN(10_000)
		if ports[port] != nil || !free(port) || !free(port+10_000) {
			continue
		}
		reserved, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		ports[port] = reserved
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	t.Fatal("no free port")
	return ""
}

func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		_ = l.Close()
	}
	return err == nil
}
