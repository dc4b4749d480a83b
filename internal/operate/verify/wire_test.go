package verify_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// tcpdump captures what goes to and from a server, as it comes. More narrows the filter.
func tcpdump(t *testing.T, s *redistest.Server, more string) (in capturing, port uint16) {
	t.Helper()
	_, text, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	n, err := strconv.ParseUint(text, 10, 16)
	require.NoError(t, err)
	command := exec.Command("tcpdump", "-i", "lo", "-s", "32768", "-B", "131072", "-U", "--immediate-mode", "-w", "-", fmt.Sprintf("tcp port %d%s", n, more))
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	said, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start(), "scripts/setup installs tcpdump")
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	lines := bufio.NewReader(said)
	for line := ""; !strings.Contains(line, "listening"); { // it captures from then on
		line, err = lines.ReadString('\n')
		require.NoError(t, err, line)
	}
	go func() { _, _ = lines.WriteTo(io.Discard) }()
	return capturing{out, command.Process}, uint16(n)
}

// capturing is what a tcpdump writes.
type capturing struct {
	io.Reader
	process *os.Process
}

// TestCaptureInPlaceOfMonitor reads tcpdump while a fleet of token locks and another application with SETNX, GETSET and SET are at work.
// With every connection in it, it shows that nobody took a lock the old way, or who did. What it cannot show is inconclusive.
func TestCaptureInPlaceOfMonitor(t *testing.T) {
	redistest.Need(t, redistest.NetNS)
	type bed struct {
		*redistest.Server
		hidden redis.Conn // of an old client
		port   int        // that nobody has
	}
	nobody := func(bed) {}
	for _, c := range []struct {
		what    string
		filter  func(bed) string
		act     func(bed)
		verdict verify.Verdict
		open    []string
		why     string
	}{
		{"nobody", nil, nobody, verify.NoneSeen, nil, "the capture has each connection"},
		{"an old client", nil, func(b bed) {
			_, _ = b.hidden.Do("SETNX", "lock:1", "1700000000000")
			_, _ = b.hidden.Do("DEL", "lock:1")
		},
			verify.Seen, []string{"commands"}, "a capture showed 1 command of legacy clients"},
		{"an old client in a transaction", nil, func(b bed) {
			_ = b.hidden.Send("MULTI")
			_ = b.hidden.Send("GETSET", "lock:1", "1700000000000")
			_ = b.hidden.Send("DEL", "lock:1")
			_, _ = b.hidden.Do("EXEC")
		}, verify.Seen, []string{"commands"}, "1 command of legacy clients"},
		{"a script of another", nil, func(b bed) {
			_, _ = b.hidden.Do("EVAL", "redis.call('SETNX', KEYS[1], '1') return redis.call('DEL', KEYS[1])", 1, "lock:1")
		},
			verify.Inconclusive, []string{"commands"}, "scripts that are not of this project ran"},
		{"a connection that the capture has not", func(b bed) string { return " and not port " + portOf(t, b.hidden) },
			func(b bed) {
				_, _ = b.hidden.Do("SETNX", "lock:1", "1700000000000")
				_, _ = b.hidden.Do("DEL", "lock:1")
			},
			verify.Inconclusive, []string{"commands"}, "of CLIENT LIST are not in the capture"},
		{"a new connection that the capture has not", func(b bed) string { return fmt.Sprint(" and not port ", b.port) },
			func(b bed) {
				from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IP{127, 0, 0, 1}, Port: b.port}}
				conn, err := from.Dial("tcp", b.Addr)
				if assert.NoError(t, err) {
					_, err = conn.Write([]byte("SETNX lock:1 1700000000000\r\nDEL lock:1\r\n"))
					assert.NoError(t, err)
					reply := make([]byte, 8)
					_, err = io.ReadFull(conn, reply)
					assert.NoError(t, err)
					assert.Equal(t, ":1\r\n:1\r\n", string(reply))
					_ = conn.Close()
				}
			}, verify.Inconclusive, []string{"commands"}, "connections, and the capture shows"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := redistest.Real(t)
			free, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			require.NoError(t, free.Close())
			b := bed{s, s.Conn(), free.Addr().(*net.TCPAddr).Port}
			_, err = b.hidden.Do("PING")
			require.NoError(t, err)
			time.Sleep(2200 * time.Millisecond) // CLIENT LIST tells whole seconds: it is known to be idle after two
			clients(t, s, 3, 10*time.Millisecond, func(conn redis.Conn, client, turn int) {
				key, token := fmt.Sprintf("lock:%d:job", turn%5), fmt.Sprintf("token-%d-%d", client, turn)
				_, _ = conn.Do("SET", key, token, "NX", "PX", 5000)
				_, _ = conn.Do("EVAL", scripts.CompareDel.Source, 1, key, token)
			})
			clients(t, s, 2, 10*time.Millisecond, func(conn redis.Conn, _, turn int) {
				key := fmt.Sprint("cache:", turn%20)
				_, _ = conn.Do([]string{"SETNX", "GETSET", "SET"}[turn%3], key, turn)
				_, _ = conn.Do("EVAL", scripts.CompareDel.Source, 1, key, "x")
			})
			filter := ""
			if c.filter != nil {
				filter = c.filter(b)
			}
			in, port := tcpdump(t, s, filter)
			end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
			require.NoError(t, err)
			acted := false
			cert, err := verify.Run(context.Background(), end, verify.Options{
				Match: []string{"lock:*"}, Window: 2 * time.Second, Longest: time.Second, Census: true, Capture: in, CapturePort: port,
				Progress: func(left time.Duration, _ int) {
					if left < 1500*time.Millisecond && !acted {
						acted = true
						c.act(b)
					}
				},
			})
			require.NoError(t, err)
			assert.Equal(t, c.verdict, cert.Verdict, cert.Why)
			if c.open == nil {
				assert.Empty(t, open(cert))
				assert.Zero(t, cert.Evidence.Masters[0].WatchedSeconds, "no MONITOR ran")
			} else {
				assert.Equal(t, c.open, open(cert))
			}
			for _, o := range cert.Obligations {
				if o.ID == "commands" {
					assert.Contains(t, o.Evidence, c.why)
				}
			}
			if c.verdict != verify.NoneSeen {
				return
			}
			// What the capture was not looked at for is not shown.
			for what, forget := range map[string]func(m *verify.Master){
				"the capture":           func(m *verify.Master) { m.Capture = nil },
				"all but its existence": func(m *verify.Master) { m.Capture = &verify.Capture{} },
				"its marks":             func(m *verify.Master) { m.Capture.Marks = 1 },
				"CLIENT LIST":           func(m *verify.Master) { m.Capture.Listed = 0 },
				"what it opened":        func(m *verify.Master) { m.Capture.Opened = 0 },
				"what it captured":      func(m *verify.Master) { m.Commands[0].Captured = 0 },
				"a gap":                 func(m *verify.Master) { m.Capture.NotSeen = []string{"1 bytes"} },
				"a script of another":   func(m *verify.Master) { m.Capture.Foreign = 1 },
				"scripts of ours": func(m *verify.Master) {
					m.Capture.Ours = 0
					m.Commands[2].Run = m.Commands[2].Captured + 1
				},
			} {
				e := cert.Evidence
				m := e.Masters[0]
				m.Commands = slices.Clone(m.Commands)
				if m.Capture != nil {
					copied := *m.Capture
					m.Capture = &copied
				}
				m.Commands[2].Run++ // a SET of a script
				m.Capture.Ours++
				e.Masters = []verify.Master{m}
				verdict, why, _ := verify.Judge(e)
				require.Equal(t, verify.NoneSeen, verdict, why)
				forget(&e.Masters[0])
				verdict, _, _ = verify.Judge(e)
				assert.Equal(t, verify.Inconclusive, verdict, what)
			}
		})
	}
}

func portOf(t *testing.T, conn redis.Conn) string {
	t.Helper()
	id, err := redis.String(conn.Do("CLIENT", "LIST", "ID", must(redis.Int(conn.Do("CLIENT", "ID")))))
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(endpoint.Fields(id)["addr"])
	require.NoError(t, err)
	return port
}

func must(n int, _ error) int { return n }

// TestCaptureFile reads what was captured before: it names old clients, and shows no more than that.
func TestCaptureFile(t *testing.T) {
	redistest.Need(t, redistest.NetNS)
	for _, old := range []bool{false, true} {
		s := redistest.Real(t)
		in, port := tcpdump(t, s, "")
		conn := s.Conn()
		for _, words := range [][]any{{"SET", "lock:1", "token", "NX", "PX", 1000}, {"DEL", "lock:1"}, {"SETNX", "cache:1", "1"}} {
			_, err := conn.Do(words[0].(string), words[1:]...)
			require.NoError(t, err)
		}
		if old {
			_, err := conn.Do("SETNX", "lock:1", "1700000000000")
			require.NoError(t, err)
		}
		var text bytes.Buffer
		time.AfterFunc(500*time.Millisecond, func() { _ = in.process.Signal(syscall.SIGTERM) })
		_, err := io.Copy(&text, in)
		require.NoError(t, err)
		end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
		require.NoError(t, err)
		cert, err := verify.ReadCapture(t.Context(), end, verify.Options{Match: []string{"lock:*"}, Longest: time.Millisecond, Capture: &text, CapturePort: port})
		require.NoError(t, err)
		assert.Positive(t, cert.Evidence.Recorded.Packets)
		if old {
			assert.Equal(t, verify.Seen, cert.Verdict)
			require.Len(t, cert.Evidence.Seen, 1)
			assert.Equal(t, "capture: it sent SETNX (1)", cert.Evidence.Seen[0].Evidence)
		} else {
			assert.Equal(t, verify.Inconclusive, cert.Verdict)
			assert.Subset(t, open(cert), []string{"masters", "counters", "commands", "denials", "values"})
			assert.Contains(t, cert.Why, "a capture's file says nothing of the server")
			assert.Contains(t, cert.Why, cert.Evidence.Recorded.String())
		}
	}
}
