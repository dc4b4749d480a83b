package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// server is a redis-server of this run.
type server struct {
	addr string
	cmd  *exec.Cmd
	conn redis.Conn
	log  bytes.Buffer
}

// placements are the cores of server and clients. Empty: any.
var placements = map[string]struct{ server, clients string }{"split": {"0", "1"}, "one": {"0", "0"}, "all": {}}

// placement is the one of this run.
var placement = placements["split"]

// pinned says whether server and clients have their cores: there are two of them, and a way to say so.
func pinned() bool {
	_, err := exec.LookPath("taskset")
	return err == nil && runtime.NumCPU() >= 2 && placement.server != ""
}

// command runs a program on a core, where that is possible, and never longer than this process.
func command(core, program string, args ...string) *exec.Cmd {
	if pinned() {
		program, args = "taskset", append([]string{"-c", core, program}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// startServer starts a server with settings beside the usual ones.
func startServer(settings ...string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: l.Addr().String()}
	_ = l.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	settings = append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}, settings...)
	s.cmd = command(placement.server, "redis-server", settings...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	for range 500 {
		if s.conn, err = redis.Dial("tcp", s.addr); err == nil {
			if _, err = s.conn.Do("PING"); err == nil {
				return s, nil
			}
		}
		time.Sleep(10 * time.Millisecond) // another process: there is nothing to be notified by
	}
	s.stop()
	return nil, fmt.Errorf("redis-server does not answer: %w\n%s", err, s.log.String())
}

// startCluster starts a cluster of three masters.
func startCluster() (nodes []*server, err error) {
	defer func() {
		if err != nil {
			stopAll(nodes)
		}
	}()
	create := []string{"--cluster", "create"}
	for range 3 {
		s, err := startServer("--cluster-enabled", "yes")
		if err != nil {
			return nodes, err
		}
		nodes, create = append(nodes, s), append(create, s.addr)
	}
	if said, err := exec.Command("redis-cli", append(create, "--cluster-yes")...).CombinedOutput(); err != nil {
		return nodes, fmt.Errorf("redis-cli --cluster create: %w\n%s", err, said)
	}
	for _, s := range nodes {
		for said := ""; !strings.Contains(said, "cluster_state:ok"); time.Sleep(10 * time.Millisecond) {
			if said, err = redis.String(s.conn.Do("CLUSTER", "INFO")); err != nil {
				return nodes, err
			}
		}
	}
	return nodes, nil
}

func stopAll(servers []*server) {
	for _, s := range servers {
		s.stop()
	}
}

func (s *server) stop() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// usage is what the server has spent so far.
type usage struct {
	cpu      time.Duration
	commands int // executed, scripts' own included
	reads    int // of sockets: commands that came together count once
	clients  int
}

// info asks a server, over a connection that is in its own figures: one read and one command.
func info(conn redis.Conn) (usage, error) {
	fields, err := endpoint.Info(context.Background(), conn)
	if err != nil {
		return usage{}, err
	}
	if _, ok := fields["total_reads_processed"]; !ok {
		return usage{}, errors.New("INFO knows no total_reads_processed: redis-server 6.2 or newer is needed")
	}
	value := func(name string) float64 {
		f, _ := strconv.ParseFloat(fields[name], 64)
		return f
	}
	return usage{
		cpu:      time.Duration((value("used_cpu_sys") + value("used_cpu_user")) * 1e9),
		commands: int(value("total_commands_processed")), reads: int(value("total_reads_processed")),
		clients: int(value("connected_clients")),
	}, nil
}

// since subtracts, and leaves out the asking.
func (u usage) since(v usage) usage {
	return usage{cpu: u.cpu - v.cpu, commands: u.commands - v.commands - 1, reads: u.reads - v.reads - 1, clients: u.clients}
}

func serverVersion(conn redis.Conn) string {
	fields, _ := endpoint.Info(context.Background(), conn, "server")
	return cmp.Or(fields["redis_version"], "unknown")
}

// versionOfServer asks the program, for reports.
func versionOfServer() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "unknown"
	}
	for word := range strings.FieldsSeq(string(out)) {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			return v
		}
	}
	return "unknown"
}
