package proxy

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// load runs redis-benchmark, and returns requests a second and the p99 in ms.
func load(t testing.TB, addr, command string, clients, pipeline, requests int) (rate, p99 float64) {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr)
	out, err := exec.Command("redis-benchmark", "-p", port, "-t", command, "-c", strconv.Itoa(clients), "-P", strconv.Itoa(pipeline), "-n", strconv.Itoa(requests), "--csv").Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	_, err = fmt.Sscanf(strings.NewReplacer(`"`, "", ",", " ").Replace(lines[len(lines)-1]), "%s %f %f %f %f %f %f", new(string), &rate, new(float64), new(float64), new(float64), new(float64), &p99)
	require.NoError(t, err, "%s", out)
	return rate, p99
}

// spent is the processor time of a process in µs.
func spent(t testing.TB, pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, err := strconv.ParseFloat(fields[12], 64)
	require.NoError(t, err)
	return (user + system) * 1e4
}

// haproxy starts HAProxy, which copies TCP with two threads.
func haproxy(t testing.TB, server string) (pid int, addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	_ = l.Close()
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	config := "global\n nbthread 2\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\nlisten r\n bind %s\n server s %s\n"
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, config, addr, server), 0o600))
	command := exec.Command("haproxy", "-f", file)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, command.Start())
	t.Cleanup(func() { _, _ = command.Process.Kill(), command.Wait() })
	require.Eventually(t, func() bool { return !refused(addr) }, 20*time.Second, 10*time.Millisecond)
	return command.Process.Pid, addr
}

// TestWhatPassingThroughCosts compares with HAProxy and with a plain copying proxy: LOCKMIGRATE_COST is how many rounds to run.
func TestWhatPassingThroughCosts(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("LOCKMIGRATE_COST"))
	if rounds == 0 {
		t.Skip("left out: it judges nothing, and measures for minutes what docs/benchmarks.md says; LOCKMIGRATE_COST=7 LOCKMIGRATE_SUITES=redis go test -run TestWhatPassingThroughCosts -v")
	}
	type contestant struct {
		name, addr string
		pid        int
		rate, p99  []float64 // beside HAProxy in the same round
		work       []float64 // µs a request
	}
	server := redistest.Real(t, "--maxclients", "5000")
	pid, addr := haproxy(t, server.Addr)
	own, ours := another(t, server.Addr)
	contestants := []*contestant{{name: "haproxy", addr: addr, pid: pid}, {name: "proxy", addr: ours, pid: own},
		{name: "copying", addr: redistest.Copying(t, server.Addr, nil), pid: os.Getpid()}, {name: "direct", addr: server.Addr, pid: os.Getpid()}}
	for _, pipeline := range []int{1, 16} {
		for _, clients := range []int{1, 50, 500} {
			t.Run(fmt.Sprintf("P%d-%dclients", pipeline, clients), func(t *testing.T) {
				requests := 40_000 * min(pipeline, 5) * min(clients, 2) / 2
				for _, c := range contestants {
					c.rate, c.p99, c.work = nil, nil, nil
				}
				for range rounds {
					var rate, p99 float64 // HAProxy's
					for i, c := range contestants {
						at := spent(t, c.pid)
						r, p := load(t, c.addr, "get", clients, pipeline, requests)
						if i == 0 {
							rate, p99 = r, p
						}
						c.rate, c.p99, c.work = append(c.rate, r/rate), append(c.p99, p/p99), append(c.work, (spent(t, c.pid)-at)/float64(requests))
					}
				}
				for _, c := range contestants {
					slices.Sort(c.rate)
					slices.Sort(c.p99)
					slices.Sort(c.work)
					fmt.Printf("-P %2d, %3d clients, %-8s rate / haproxy %.2f (%.2f to %.2f), p99 / haproxy %.2f, %5.2f us of processor time a request (at least %.2f)\n", pipeline, clients, c.name,
						c.rate[rounds/2], c.rate[0], c.rate[rounds-1], c.p99[rounds/2], c.work[rounds/2], c.work[0])
				}
			})
		}
	}
}
