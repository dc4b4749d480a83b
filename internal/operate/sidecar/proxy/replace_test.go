package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// relay is a series of processes on one address, each of which listens beside the one before, which then ends.
type relay struct {
	t       testing.TB
	server  *redistest.Server
	address string
	end     context.CancelFunc
	ended   <-chan error
}

func (r *relay) next() {
	opts := before(r.server.Addr, passing)
	opts.Listeners[0].Address, opts.Drain, opts.Beside = r.address, 20*time.Second, func(context.Context) bool { return true }
	s, cancel, ended := begin(r.t, opts)
	r.stop()
	r.address, r.end, r.ended = s.Addresses()[0], cancel, ended
}

func (r *relay) stop() {
	if r.end != nil {
		r.end()
		require.NoError(r.t, <-r.ended)
	}
}

// dialTo connects to a listener's address.
func dialTo(address string) (net.Conn, error) {
	if path, unix := strings.CutPrefix(address, unixPrefix); unix {
		return net.Dial("unix", path)
	}
	return net.Dial("tcp", address)
}

// A process is replaced under a thousand busy connections. Each command is answered, or was not executed: the client finds its
// connection ended between two replies, and sends it again.
func TestReplacedUnderLoad(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "sidecar.sock")} {
		t.Run(address[:4], func(t *testing.T) {
			r := &relay{t: t, server: redistest.Real(t, "--maxclients", "5000"), address: address}
			r.next()
			address := r.address
			const clients = 1000
			var answered [clients]int
			var served atomic.Int64 // connections that have had a reply
			stop := make(chan struct{})
			var load sync.WaitGroup
			defer load.Wait()
			for i := range clients {
				load.Go(func() { answered[i] = count1000(t, address, i, stop, &served) })
			}
			require.Eventually(t, func() bool { return served.Load() == clients }, 60*time.Second, time.Millisecond)
			for range 3 {
				before := served.Load()
				r.next()
				require.Eventually(t, func() bool { return served.Load()-before >= clients }, 60*time.Second, time.Millisecond)
			}
			close(stop)
			load.Wait()
			total := 0
			for i, n := range answered {
				require.Equal(t, strconv.Itoa(n), r.server.Value(fmt.Sprint("n", i)), "executed and not answered, or the other way round")
				total += n
			}
			r.stop()
			t.Logf("%d clients, %d connections, %d commands", clients, served.Load(), total)
		})
	}
}

// count1000 counts by one command after the other, or three at a time, and returns how many were answered.
func count1000(t *testing.T, address string, i int, stop <-chan struct{}, served *atomic.Int64) (answered int) {
	together := 1 + 2*(i%2)
	var text []byte
	for range together {
		text = wire.Append(text, "INCR", fmt.Sprint("n", i))
	}
	for {
		conn, err := dialTo(address)
		if !assert.NoError(t, err) {
			return answered
		}
		replies, before := bufio.NewReader(conn), answered
		for err == nil {
			select {
			case <-stop:
				_ = conn.Close()
				return answered
			default:
			}
			if _, err = conn.Write(text); err != nil {
				break
			}
			for range together {
				line := ""
				if line, err = replies.ReadString('\n'); err != nil {
					assert.Empty(t, line, "half a reply")
					break
				}
				if answered++; answered == before+1 {
					served.Add(1)
				}
				assert.Equal(t, fmt.Sprintf(":%d\r\n", answered), line)
			}
			time.Sleep(time.Millisecond)
		}
		_ = conn.Close()
		if !errors.Is(err, io.EOF) && !isReset(err) && !strings.Contains(err.Error(), "broken pipe") {
			assert.NoError(t, err)
			return answered
		}
	}
}

// Clients that connect while a process is replaced are served, each of them.
func TestReplacedWhileClientsConnect(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "sidecar.sock")} {
		t.Run(address[:4], func(t *testing.T) {
			r := &relay{t: t, server: redistest.Real(t), address: address}
			r.next()
			address := r.address
			stop := make(chan struct{})
			var load sync.WaitGroup
			var served atomic.Int64
			for range 8 {
				load.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						conn, err := dialTo(address)
						if !assert.NoError(t, err) {
							return
						}
						_, err = conn.Write(wire.Append(nil, "PING"))
						assert.NoError(t, err)
						var b [7]byte
						_, err = io.ReadFull(conn, b[:])
						assert.NoError(t, err)
						_ = conn.Close()
						served.Add(1)
					}
				})
			}
			for range 5 {
				at := served.Load()
				require.Eventually(t, func() bool { return served.Load() > at+50 }, time.Minute, time.Millisecond)
				r.next()
			}
			close(stop)
			load.Wait()
			r.stop()
			assert.True(t, strings.HasPrefix(address, unixPrefix) || refused(address))
		})
	}
}

// A process that ends lets commands, transactions and requests end that have begun, and ends the connections of all others at once.
func TestWhatIsUnderWayEnds(t *testing.T) {
	server := redistest.Real(t)
	transaction := locks{func(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
		c.Multi = string(args[0]) == "MULTI"
		return Pass, out
	}}
	opts := before(server.Addr, transaction)
	opts.Drain = time.Minute
	s, cancel, ended := begin(t, opts)
	addr := s.Addresses()[0]
	idle, waits, writes, half, listens := dial(t, addr), dial(t, addr), dial(t, addr), dial(t, addr), dial(t, addr)
	ask(t, idle, "+PONG\r\n", "PING")
	ask(t, writes, "+OK\r\n", "MULTI")
	ask(t, half, "+PONG\r\n", "PING")
	ask(t, listens, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", "SUBSCRIBE", "c")
	_, err := waits.Write(wire.Append(nil, "BLPOP", "list", "0"))
	require.NoError(t, err)
	_, err = io.WriteString(half, "*2\r\n$4\r\nECHO\r\n$3\r\na")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprintf("%s", server.Do("INFO", "clients")), "blocked_clients:1")
	}, time.Minute, time.Millisecond)
	cancel()
	for _, conn := range []net.Conn{idle, listens} {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_ = conn.Close()
	}
	ask(t, writes, "+QUEUED\r\n", "INCR", "a")
	_, err = writes.Write(wire.Append(nil, "SELECT", "0")) // the Rewriter is not asked about it
	require.NoError(t, err)
	readUntil(t, writes, "+QUEUED\r\n")
	server.Do("RPUSH", "list", "v")
	assert.Equal(t, "*2\r\n$4\r\nlist\r\n$1\r\nv\r\n", readUntil(t, waits, "v\r\n"))
	_, err = io.WriteString(half, "bc\r\n")
	require.NoError(t, err)
	assert.Equal(t, "$3\r\nabc\r\n", readUntil(t, half, "abc\r\n"))
	select {
	case err := <-ended:
		t.Fatal("a transaction is open", err)
	default:
	}
	_ = waits.Close()
	_ = half.Close()
	_ = writes.Close()
	require.NoError(t, <-ended)
}
