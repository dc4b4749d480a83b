// Package sidecar runs the real locks of Java and Python services behind sidecars, unchanged but for the address, beside Go services.
package sidecar

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

const asSidecar = "LOCKMIGRATE_TEST_SIDECAR"

func TestMain(m *testing.M) {
	if text := os.Getenv(asSidecar); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, "sidecar:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	holders.ServeIfAsked(map[string]holders.Maker{
		"compat": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			return holders.Of(compat.New(pool, compat.Options{Namespace: "orders", TTL: 2 * time.Second, Lease: holders.Millis(args, "lease", 0)}))
		},
	})
	_ = flag.Set("test.parallel", "6") // they wait more than they work
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python)
}

// command is the command line of a sidecar's process.
type command struct {
	Redis, Listen, Name, Dialect string
	Offset                       time.Duration // of its host's clock
	Lease, Member                time.Duration // of locks without a time, 2 s unless set; for how long it may lock without a report, 10 s
	KeepFor                      time.Duration
	New                          string // of a handover: its locks move from Redis
	DataOld                      bool
}

// serve is a sidecar's process. It ends with SIGTERM.
func serve(text string) error {
	var c command
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	to := func(addr string) *redis.Pool {
		return &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }}
	}
	data, opts := c.Redis, sidecar.Options{
		Pool: to(c.Redis), Namespace: "orders", Name: c.Name, MemberLease: cmp.Or(c.Member, 10*time.Second), Lease: cmp.Or(c.Lease, 2*time.Second), KeepFor: c.KeepFor, Log: log,
		Clock: func() time.Time { return time.Now().Add(c.Offset) },
	}
	if c.New != "" {
		opts.Old, opts.Pool, opts.DataOld, opts.MemberLease, opts.ReplyTimeout = opts.Pool, to(c.New), c.DataOld, 2*time.Second, time.Second
		if !c.DataOld {
			data = c.New
		}
	}
	end, err := endpoint.Parse("redis://"+data, endpoint.TLSFiles{})
	if err != nil {
		return err
	}
	s, err := fleet.StartSidecar(ctx, opts, end, "", sidecar.Listener{Address: c.Listen, Dialect: c.Dialect})
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.Close()
	return nil
}

// site is a server with the namespace "orders" on one key. The referee's book lies on others, or on a server of its own.
type site struct {
	*testing.T
	server, book *redistest.Server
	store        *stages.Store
	lease        time.Duration // that the services write
	renewed      time.Duration // the Lease of their sidecars
	keepFor      time.Duration // of their sidecars
}

func newSite(t *testing.T, stage stages.Stage) *site {
	server := redistest.Real(t)
	s := &site{T: t, server: server, book: server, lease: lease}
	s.init(stages.Record{Stage: stage, Dialect: "jedis-ms", ClockLag: 100 * time.Millisecond})
	return s
}

func (s *site) init(r stages.Record) {
	s.store = &stages.Store{Pool: s.server.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	r.Namespace, r.Shortest, r.CommandDelay = "orders", s.lease, 500*time.Millisecond
	if r.Patterns == nil {
		r.Patterns = []string{"lock:fleet"}
	}
	require.NoError(s, s.store.Init(s.Context(), r))
}

func (s *site) sidecar(name, dialect string, offset time.Duration) *holders.Sidecar {
	return s.launch(&command{Redis: s.server.Addr, Name: name, Dialect: dialect, Offset: offset, KeepFor: s.keepFor, Lease: s.renewed})
}

// launch starts a sidecar. Each start reads its command line anew.
func (s *site) launch(c *command) *holders.Sidecar {
	return holders.StartSidecar(s, func(addr string) *exec.Cmd {
		c.Listen = addr
		text, _ := json.Marshal(c)
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), asSidecar+"="+string(text)), os.Stderr
		return cmd
	})
}

// behind is a service behind a sidecar of its own, both on a host whose clock is off.
func (s *site) behind(kind holders.Kind, name, dialect string, offset time.Duration) (holders.Member, *holders.Sidecar) {
	p := s.sidecar(name, dialect, offset)
	return s.of(kind, p.URL(), offset), p
}

func (s *site) of(kind holders.Kind, url string, offset time.Duration) holders.Member {
	return func() *holders.Holder {
		options := []holders.Option{holders.Arg("wait", 10*time.Second), holders.Arg("book", s.book.Addr)}
		if kind != holders.SetNXUUID {
			options = append(options, holders.Arg("lease", s.lease))
		}
		switch {
		case offset == 0:
		case strings.HasPrefix(kind.Component(), "python"):
			options = append(options, holders.Arg("clock", offset))
		default:
			options = append(options, holders.Clock(s.T, offset))
		}
		return holders.Start(s.T, kind, url, options...)
	}
}

func (s *site) goMember() holders.Member {
	return func() *holders.Holder {
		return holders.StartGo(s.T, "compat", s.server.URL(), holders.Arg("lease", s.lease), holders.Arg("book", s.book.Addr))
	}
}

// noLockWithoutTTL checks what stands on the locks' keys and beside them.
func (s *site) noLockWithoutTTL() {
	keys, err := redis.Strings(s.server.Do("KEYS", "*lock:*"), nil)
	require.NoError(s, err)
	for _, key := range keys {
		if strings.HasSuffix(key, ":referee") || strings.HasSuffix(key, ":referee:turns") {
			continue
		}
		if ttl := s.server.Do("PTTL", key); ttl == int64(-1) {
			s.Errorf("%s has no TTL", key)
		}
	}
}
