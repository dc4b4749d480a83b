package rawconn_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func plain(conn net.Conn) net.Conn { return conn }

// pair returns both ends of a connection of a network, the first of them wrapped.
func pair(t testing.TB, network string, wrap func(net.Conn) net.Conn) (wrapped, other net.Conn) {
	return dialled(t, network, func(network, address string) (net.Conn, error) {
		conn, err := net.Dial(network, address)
		if err == nil {
			conn = wrap(conn)
		}
		return conn, err
	})
}

// expecting is a pair whose first end looks for data while due says so.
func expecting(t testing.TB, network string, due func() time.Duration) (looks, other net.Conn) {
	return dialled(t, network, func(network, address string) (net.Conn, error) {
		return rawconn.DialContext(rawconn.Expecting(t.Context(), due), network, address)
	})
}

func always() time.Duration { return 40 * time.Microsecond }

func dialled(t testing.TB, network string, dial func(network, address string) (net.Conn, error)) (one, other net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	one, err = dial(network, listener.Addr().String())
	require.NoError(t, err)
	other = <-accepted
	require.NotNil(t, other)
	t.Cleanup(func() { _ = one.Close(); _ = other.Close() })
	return one, other
}

func TestQuietCarriesEverythingBothWays(t *testing.T) {
	for _, name := range []string{"tcp", "unix", "tcp, which looks", "unix, which looks"} {
		t.Run(name, func(t *testing.T) {
			network, looks := strings.CutSuffix(name, ", which looks")
			quiet, other := pair(t, network, rawconn.Quiet)
			if looks {
				quiet, other = expecting(t, network, always)
			}
			go func() { // says everything twice, so that both directions fill their buffers
				buffer := make([]byte, 70_000)
				for {
					n, err := other.Read(buffer)
					if err == nil {
						_, err = other.Write(buffer[:n])
					}
					if err != nil {
						_ = other.Close()
						return
					}
				}
			}()
			for _, size := range []int{1, 2, 4096, 16 << 10, 16<<10 + 1, 5 << 20} {
				sent := make([]byte, size)
				_, _ = rand.Read(sent)
				var writing sync.WaitGroup
				writing.Go(func() {
					n, err := quiet.Write(sent)
					require.NoError(t, err)
					require.Equal(t, size, n)
				})
				got := make([]byte, size)
				_, err := io.ReadFull(quiet, got)
				require.NoError(t, err)
				require.True(t, bytes.Equal(sent, got), "%d bytes came back as others", size)
				writing.Wait()
			}
		})
	}
}

// A write that finds the buffer full waits, and goes on where it was.
func TestQuietWriteWaitsForRoom(t *testing.T) {
	quiet, other := pair(t, "tcp", rawconn.Quiet)
	const piece, pieces = 8 << 10, 4000 // 32 MB: more than any buffer between the two
	sent := make(chan error, 1)
	go func() {
		for i := range pieces {
			if _, err := quiet.Write(bytes.Repeat([]byte{byte(i)}, piece)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	select {
	case err := <-sent:
		t.Fatalf("32 MB went into a connection that nobody reads (%v)", err)
	case <-time.After(200 * time.Millisecond):
	}
	got := make([]byte, piece)
	for i := range pieces {
		_, err := io.ReadFull(other, got)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, piece), got)
	}
	require.NoError(t, <-sent)
}

// What goes wrong is what would have gone wrong without Quiet, down to the error's text.
func TestQuietFailsAsAnOrdinaryConnection(t *testing.T) {
	buffer := make([]byte, 16)
	for name, provoke := range map[string]func(t *testing.T, conn, other net.Conn) error{
		"a read at the end": func(t *testing.T, conn, other net.Conn) error {
			require.NoError(t, other.Close())
			_, err := conn.Read(buffer)
			return err
		},
		"a read after a reset": func(t *testing.T, conn, other net.Conn) error {
			require.NoError(t, other.(*net.TCPConn).SetLinger(0))
			require.NoError(t, other.Close())
			_, err := conn.Read(buffer)
			return err
		},
		"a write after a reset": func(t *testing.T, conn, other net.Conn) error {
			require.NoError(t, other.(*net.TCPConn).SetLinger(0))
			require.NoError(t, other.Close())
			_, _ = conn.Read(buffer) // until then the write may come before the reset
			_, err := conn.Write(buffer)
			return err
		},
		"a read past its deadline": func(t *testing.T, conn, _ net.Conn) error {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
			_, err := conn.Read(buffer)
			return err
		},
		"a read past a deadline that was over": func(t *testing.T, conn, _ net.Conn) error {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(-time.Second)))
			_, err := conn.Read(buffer)
			return err
		},
		"a read on what was closed": func(t *testing.T, conn, _ net.Conn) error {
			require.NoError(t, conn.Close())
			_, err := conn.Read(buffer)
			return err
		},
		"a write on what was closed": func(t *testing.T, conn, _ net.Conn) error {
			require.NoError(t, conn.Close())
			_, err := conn.Write(buffer)
			return err
		},
		"a read that Close ends": func(t *testing.T, conn, _ net.Conn) error {
			time.AfterFunc(20*time.Millisecond, func() { _ = conn.Close() })
			_, err := conn.Read(buffer)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, other := pair(t, "tcp", rawconn.Quiet)
			ours := provoke(t, conn, other)
			require.Error(t, ours)
			conn, other = pair(t, "tcp", plain)
			plain := provoke(t, conn, other)
			require.Equal(t, errors.Is(plain, io.EOF), errors.Is(ours, io.EOF))
			require.Equal(t, errors.Is(plain, net.ErrClosed), errors.Is(ours, net.ErrClosed))
			require.Equal(t, errors.Is(plain, os.ErrDeadlineExceeded), errors.Is(ours, os.ErrDeadlineExceeded))
			require.Equal(t, errors.Is(plain, syscall.ECONNRESET), errors.Is(ours, syscall.ECONNRESET))
			require.Equal(t, errors.Is(plain, syscall.EPIPE), errors.Is(ours, syscall.EPIPE))
			require.Equal(t, ports.ReplaceAllString(plain.Error(), ":N"), ports.ReplaceAllString(ours.Error(), ":N"))
		})
	}
}

var ports = regexp.MustCompile(`:\d+`)

// TestQuietReadsOnAfterADeadline, also after one that the connection below got before it was wrapped.
func TestQuietReadsOnAfterADeadline(t *testing.T) {
	for name, set := range map[string]func(net.Conn, time.Time) error{"read": net.Conn.SetReadDeadline, "both": net.Conn.SetDeadline} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " before ", before), func(t *testing.T) {
				conn, other := pair(t, "tcp", plain)
				quiet, past := rawconn.Quiet(conn), time.Now().Add(-time.Second)
				if before {
					require.NoError(t, set(conn, past))
					quiet = rawconn.Quiet(conn)
				} else {
					require.NoError(t, quiet.SetReadDeadline(time.Time{}))
					require.NoError(t, set(quiet, past))
				}
				_, err := quiet.Read(make([]byte, 1))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it counts until it is taken away")
				require.NoError(t, quiet.SetReadDeadline(time.Time{}))
				_, err = other.Write([]byte("x"))
				require.NoError(t, err)
				n, err := quiet.Read(make([]byte, 10))
				require.NoError(t, err)
				require.Equal(t, 1, n)
			})
		}
	}
}

func TestQuietLeavesOtherConnectionsAlone(t *testing.T) {
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	require.Same(t, one, rawconn.Quiet(one))
	tcp, _ := pair(t, "tcp", plain)
	secure := tls.Client(tcp, &tls.Config{})
	require.Same(t, secure, rawconn.Quiet(secure), "bytes below TLS are not the connection's")
	udp, err := net.Dial("udp", "127.0.0.1:9")
	require.NoError(t, err)
	defer udp.Close()
	require.Same(t, udp, rawconn.Quiet(udp))
	if runtime.GOOS == "linux" {
		require.NotSame(t, tcp, rawconn.Quiet(tcp))
	}
}

func TestQuietAllocatesNothing(t *testing.T) {
	quiet, other := expecting(t, "tcp", always)
	buffer := make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		_, _ = quiet.Write(buffer)
		_, _ = io.ReadFull(other, buffer)
		_, _ = other.Write(buffer)
		_, _ = io.ReadFull(quiet, buffer)
	}))
}

// A read asks what is due only where it found nothing. One that waits long anyway does not: it would look in vain.
func TestALookIsForRepliesThatComeSoon(t *testing.T) {
	var asked atomic.Int32
	looks, other := expecting(t, "tcp", func() time.Duration { asked.Add(1); return always() })
	buffer := make([]byte, 1)
	read := func(after time.Duration) {
		go func() { time.Sleep(after); _, _ = other.Write(buffer) }()
		_, err := io.ReadFull(looks, buffer)
		require.NoError(t, err)
	}
	for range 200 {
		read(time.Millisecond)
	}
	require.Equal(t, runtime.GOOS == "linux", asked.Load() > 0)
	require.Less(t, asked.Load(), int32(20), "after each look in vain twice as many reads sleep at once")
}

// Nothing is due: the read sleeps. So does one that has looked for long enough, and both end with a deadline and with Close.
func TestALookEnds(t *testing.T) {
	for _, due := range []time.Duration{0, always()} {
		looks, _ := expecting(t, "tcp", func() time.Duration { return due })
		require.NoError(t, looks.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, err := looks.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, looks.SetReadDeadline(time.Time{}))
		go func() { time.Sleep(20 * time.Millisecond); _ = looks.Close() }()
		_, err = looks.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
	}
}

// Two goroutines of one process that speak over a connection are in an order, for the race detector too:
// it would report count below.
func TestQuietPutsGoroutinesInOrder(t *testing.T) {
	quiet, other := pair(t, "tcp", rawconn.Quiet)
	other = rawconn.Quiet(other)
	count := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1)
		for range 100 {
			if _, err := other.Read(buffer); err != nil {
				return
			}
			count++
			if _, err := other.Write(buffer); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 1)
	for range 100 {
		count++
		_, err := quiet.Write(buffer)
		require.NoError(t, err)
		_, err = quiet.Read(buffer)
		require.NoError(t, err)
	}
	require.Equal(t, 200, count)
	<-done
}

func TestDialContextHonoursItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rawconn.DialContext(ctx, "tcp", "127.0.0.1:1")
	require.ErrorIs(t, err, context.Canceled)
}

// BenchmarkPing is what one command after another costs this process, by redigo's own connections and by
// quiet ones, in turns: `LOCKMIGRATE_SUITES=redis go test -run - -bench Ping ./pool/rawconn`.
func BenchmarkPing(b *testing.B) {
	server := redistest.Real(b)
	conns := map[string]redis.Conn{}
	for name, options := range map[string][]redis.DialOption{
		"plain": nil, "quiet": {redis.DialContextFunc(rawconn.DialContext)},
	} {
		conn, err := redis.DialContext(b.Context(), "tcp", server.Addr, options...)
		require.NoError(b, err)
		defer conn.Close()
		conns[name] = conn
	}
	spent := map[string]time.Duration{}
	n := 0
	for b.Loop() {
		for name, conn := range conns {
			before := processorTime(b)
			for range 100 {
				if _, err := conn.Do("PING"); err != nil {
					b.Fatal(err)
				}
			}
			spent[name] += processorTime(b) - before
		}
		n += 100
	}
	b.ReportMetric(0, "ns/op") // of both together: says nothing
	for name, d := range spent {
		b.ReportMetric(float64(d.Microseconds())/float64(n), name+"-cpu-µs/command")
	}
	b.ReportMetric(float64(spent["quiet"])/float64(spent["plain"]), "quiet/plain")
}
