package proxy

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// load runs GET by redis-benchmark, and returns requests a second and the p99 in ms.
func load(t testing.TB, addr string, clients, pipeline, requests int) (rate, p99 float64) {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr)
	out, err := exec.Command("redis-benchmark", "-p", port, "-t", "get", "-c", strconv.Itoa(clients), "-P", strconv.Itoa(pipeline), "-n", strconv.Itoa(requests), "--csv").Output()
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
	addr = redistest.FreeAddr(t)
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	config := "global\n nbthread 2\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\nlisten r\n bind %s\n server s %s\n"
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, config, addr, server), 0o600))
	command := exec.Command("haproxy", "-f", file)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, command.Start())
	t.Cleanup(func() { _, _ = command.Process.Kill(), command.Wait() })
	require.Eventually(t, func() bool { return !refused(addr) }, time.Minute, 10*time.Millisecond)
	return command.Process.Pid, addr
}

// BenchmarkPassing has redis-benchmark ask through the proxy, beside HAProxy where it is installed and a plain copying proxy, and directly.
func BenchmarkPassing(b *testing.B) {
	server := redistest.Real(b, "--maxclients", "5000")
	type contestant struct {
		name string
		pid  int
		addr string
	}
	all := []contestant{{"copying", os.Getpid(), redistest.Copying(b, server.Addr, nil)}, {"direct", os.Getpid(), server.Addr}}
	own, ours := another(b, server.Addr)
	all = append(all, contestant{"proxy", own, ours})
	if _, err := exec.LookPath("haproxy"); err == nil {
		pid, addr := haproxy(b, server.Addr)
		all = append(all, contestant{"haproxy", pid, addr})
	}
	for _, pipeline := range []int{1, 16} {
		for _, clients := range []int{1, 50, 500} {
			for _, c := range all {
				b.Run(fmt.Sprintf("pipeline=%d/clients=%d/through=%s", pipeline, clients, c.name), func(b *testing.B) {
					requests := max(b.N, 1000) // of the first run, which is for nothing
					before := spent(b, c.pid)
					rate, p99 := load(b, c.addr, clients, pipeline, requests)
					b.ReportMetric(rate, "requests/s")
					b.ReportMetric(p99, "p99-ms")
					b.ReportMetric((spent(b, c.pid)-before)/float64(requests), "cpu-µs/op")
				})
			}
		}
	}
}
