package observe_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// served starts a proxy and returns its address.
func served(t *testing.T, r proxy.Rewriter, dial func() (net.Conn, error)) string {
	t.Helper()
	p := proxy.New(proxy.Options{
		Listeners: []proxy.Listener{{Address: "127.0.0.1:0", Rewriter: r}}, Log: slog.New(slog.DiscardHandler),
		Dial: func(context.Context) (net.Conn, error) { return dial() },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	redistest.Await(t, "the listener", func() bool { return p.Ready() == nil })
	return p.Addresses()[0]
}

// listen observes the connections that pass through an address.
func listen(t *testing.T, s *redistest.Server, opts observe.Options) (listening *observe.Listening, addr string) {
	t.Helper()
	listening, err := observe.Listen(t.Context(), opts, s.Pool())
	require.NoError(t, err)
	return listening, served(t, proxy.Passing, func() (net.Conn, error) {
		conn, err := net.Dial("tcp", s.Addr)
		if err != nil {
			return nil, err
		}
		return listening.Tap(conn), nil
	})
}

// TestThreeSourcesSeeOneFleet watches one fleet by MONITOR, by tcpdump and by a proxy that listens, all at once: real Python clients
// with wrong clocks, a service behind a sidecar, and old clients that do each other harm. All three tell the same clients, dialects,
// leases, acquisitions, skews within their errors, hazards and overlaps.
func TestThreeSourcesSeeOneFleet(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Python, redistest.NetNS)
	s := redistest.Real(t)
	opts := observe.Options{Lease: 20 * time.Second, Match: func(key string) bool { return strings.HasPrefix(key, "lock:") && !strings.HasSuffix(key, ":referee") }}
	listening, watched := listen(t, s, opts)

	behind := behindASidecar(t, s, stages.Bridge, watched)

	stop := tcpdump(t, s.Addr)
	var fleet []*holders.Holder
	offsets := []time.Duration{-5 * time.Second, 0, 5 * time.Second}
	for _, off := range offsets {
		fleet = append(fleet, holders.Start(t, holders.RedisPy, "redis://"+watched+"/0", holders.Arg("lease", 20*time.Second), holders.Arg("clock", off)))
	}
	monitor := watch(t, s, opts, func() {
		turns(t, "lock:orders:0", 5, 2, fleet...)
		for i, h := range fleet {
			turns(t, fmt.Sprint("lock:orders:", i+1), 15, 0, h)
		}
		service(t, behind, 8)
		harm(t, watched, 5)
	})
	listening.Finish()
	capture, seen := readCapture(t, stop(), s.Addr, opts)
	assert.Empty(t, seen.NotSeen())
	_, missing := listening.Seen()
	assert.Empty(t, missing)

	assert.NotEmpty(t, monitor.Overlaps)
	assert.NotEmpty(t, monitor.Hazards)
	for name, other := range map[string]observe.Report{"capture": capture, "listening": listening.Report()} {
		rows := map[string]observe.Row{}
		for _, row := range other.Clients {
			rows[row.Addr] = row
		}
		kinds := map[string]int{}
		for _, m := range monitor.Clients {
			if m.Tries == 0 {
				continue // the sidecar's own connections
			}
			kinds[m.Kind]++
			c := rows[m.Addr]
			assert.Equal(t, m.Kind, c.Kind, "%s %s", name, m.Addr)
			assert.Equal(t, m.Dialect, c.Dialect, "%s %s", name, m.Addr)
			assert.Equal(t, m.Sidecar, c.Sidecar, "%s %s", name, m.Addr)
			assert.Equal(t, m.Kind == observe.Sidecar, m.Sidecar == "orders/billing", "%s %s", name, m.Addr)
			assert.Equal(t, m.LeaseMS, c.LeaseMS, "%s %s", name, m.Addr)
			assert.Equal(t, m.Tries, c.Tries, "%s %s", name, m.Addr)
			assert.Equal(t, m.Acquired, c.Acquired, "%s %s", name, m.Addr)
			assert.Equal(t, m.Released, c.Released, "%s %s", name, m.Addr)
			assert.InDelta(t, value(m.SkewMS), value(c.SkewMS), 2*(value(m.SkewErrorMS)+value(c.SkewErrorMS))+10, "%s %s", name, m.Addr)
		}
		assert.Equal(t, map[string]int{observe.Legacy: len(offsets) + 2, observe.Sidecar: 2}, kinds, "of MONITOR")
		assert.Equal(t, monitor.Hazards, other.Hazards, name)
		assert.Equal(t, monitor.OverlapCount, other.OverlapCount, name)
	}
}

// behindASidecar has a namespace at a stage, and a sidecar of it before an address. It returns the sidecar's.
func behindASidecar(t *testing.T, s *redistest.Server, stage stages.Stage, to string) string {
	t.Helper()
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stage, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: 20 * time.Second}))
	end, err := endpoint.Parse("redis://"+to, endpoint.TLSFiles{})
	require.NoError(t, err)
	member, err := fleet.StartSidecar(t.Context(), sidecar.Options{Pool: s.Pool(), Namespace: "orders", Name: "billing", MemberLease: 2 * time.Second}, end, "", sidecar.Listener{})
	require.NoError(t, err)
	t.Cleanup(member.Close)
	return member.Addr
}

// A service behind a sidecar is told with the sidecar's name. At bridge and modern it is of a kind of its own: neither an old client nor a
// member. At stage legacy its commands pass, and it is an old client like any other. By name its connections are one row.
func TestAServiceBehindASidecar(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		t.Run(stage.String(), func(t *testing.T) {
			s := redistest.Real(t)
			behind := behindASidecar(t, s, stage, s.Addr)
			kind, name, groups := observe.Sidecar, "orders/billing", map[observe.Group]int{observe.ByAddr: 2, observe.ByName: 1}
			if stage == stages.Legacy {
				kind, name, groups = observe.Legacy, "", map[observe.Group]int{observe.ByAddr: 2}
			}
			for group, want := range groups {
				opts := observe.Options{Group: group, Match: func(key string) bool { return strings.HasPrefix(key, "lock:") }}
				report := watch(t, s, opts, func() { service(t, behind, 8) })
				rows := 0
				for _, row := range report.Clients {
					if row.Tries == 0 {
						continue // the sidecar's own connections
					}
					rows++
					assert.Equal(t, []any{kind, name}, []any{row.Kind, row.Sidecar}, row.Addr)
				}
				assert.Equal(t, want, rows, group)
				assert.Zero(t, report.OverlapCount)
			}
		})
	}
}

// two are connections of one client.
func two(t *testing.T, addr string) (conns [2]redis.Conn) {
	for i := range conns {
		conn, err := redis.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		conns[i] = conn
	}
	return conns
}

// service is an old client with two connections: one takes a lock, the other is refused it until the first has given it back.
func service(t *testing.T, addr string, times int) {
	conns := two(t, addr)
	for i := range times {
		key := fmt.Sprint("lock:service:", i)
		do := func(conn int, command string, args ...any) int {
			n, err := redis.Int(conns[conn].Do(command, append([]any{key}, args...)...))
			require.NoError(t, err)
			return n
		}
		expiry := func() int64 { return time.Now().Add(20 * time.Second).UnixMilli() }
		require.Equal(t, 1, do(0, "SETNX", expiry()))
		require.Equal(t, 0, do(1, "SETNX", expiry()))
		require.Equal(t, 1, do(0, "DEL"))
		require.Eventually(t, func() bool { return do(1, "SETNX", expiry()) == 1 }, time.Minute, time.Millisecond)
		require.Equal(t, 1, do(1, "DEL"))
	}
}

// harm is two old clients whose clocks are a minute apart: the one ahead takes over a lock that is held, and the DEL of the holder
// takes it away again.
func harm(t *testing.T, addr string, times int) {
	conns := two(t, addr)
	do := func(conn redis.Conn, command string, args ...any) {
		_, err := conn.Do(command, args...)
		require.NoError(t, err)
	}
	expiry := func(ahead time.Duration) string {
		return strconv.FormatFloat(float64(time.Now().Add(20*time.Second+ahead).UnixMicro())/1e6, 'f', 6, 64)
	}
	for i := range times {
		key := fmt.Sprint("lock:harm:", i)
		slow, fast := conns[0], conns[1]
		do(slow, "SETNX", key, expiry(0))
		theirs := expiry(time.Minute)
		do(fast, "SETNX", key, theirs)
		do(fast, "GET", key)
		do(fast, "GETSET", key, expiry(time.Minute))
		do(slow, "DEL", key)
		do(fast, "DEL", key)
	}
}

// tcpdump captures what goes to and from a server until the returned function is called.
func tcpdump(t *testing.T, addr string) (stop func() string) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "redis.pcap")
	command := exec.Command("tcpdump", "-i", "lo", "-s", "0", "-U", "-B", "16384", "-w", file, "tcp", "port", port)
	said, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start(), "scripts/setup installs tcpdump")
	lines := bufio.NewReader(said)
	for line := ""; !strings.Contains(line, "listening"); { // it captures from then on
		line, err = lines.ReadString('\n')
		require.NoError(t, err, line)
	}
	go func() { _, _ = lines.WriteTo(io.Discard) }()
	return func() string {
		// What the kernel holds comes in its order, and a block at a time: when the last of it is in the file, so is everything else.
		conn, err := redis.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		last := fmt.Sprint("the last packet ", time.Now().UnixNano())
		_, err = conn.Do("ECHO", last)
		require.NoError(t, err)
		redistest.Await(t, last, func() bool {
			seen, err := os.ReadFile(file)
			return err == nil && bytes.Contains(seen, []byte(last))
		})
		_ = command.Process.Signal(syscall.SIGINT)
		_ = command.Wait()
		return file
	}
}

func readCapture(t *testing.T, file, addr string, opts observe.Options) (observe.Report, *traffic.Captured) {
	t.Helper()
	in, err := os.Open(file)
	require.NoError(t, err)
	defer in.Close()
	o := observe.New(opts)
	seen, err := traffic.ReadCapture(context.Background(), in, netip.MustParseAddrPort(addr).Port(), o.Keys, o.Take)
	require.NoError(t, err)
	o.Finish()
	return o.Report(), seen
}
