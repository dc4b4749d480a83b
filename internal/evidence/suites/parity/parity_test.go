// Package parity compares this project with the real old clients: the commands that package legacy sends, and how it reads a value. What a scan
// recognises of what they leave on their keys is in the suite clients.
//
// The commands are those that a real server saw from the released jedis-lock 1.0.0 and from redis-py 2.9.1, beside ours.
package parity

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python)
}

const (
	key   = "lock.parity"
	lease = 20 * time.Second
	wait  = 250 * time.Millisecond // two sleeps of 100 ms fit: three attempts
)

// client is a holder of either kind.
type client interface {
	acquire() bool // as often as it takes, for wait
	try() bool     // one attempt
	release()
}

// stage is one server with everything that a scenario needs.
type stage struct {
	t       *testing.T
	server  *redistest.Server
	proxy   *redistest.Link
	monitor *redistest.Monitor
	form    func(value string, at time.Time) string
	wins    bool // the dialect takes a key that has vanished for expired
}

func newStage(t *testing.T, wins bool, form func(string, time.Time) string) *stage {
	server := redistest.Real(t)
	return &stage{t: t, server: server, proxy: redistest.NewProxy(t, server), monitor: server.Monitor(), form: form, wins: wins}
}

// saw returns the commands on the key since the last call, one a line, each value replaced by its form:
// what it is and how far ahead of the server's clock.
func (s *stage) saw() string {
	var b strings.Builder
	for _, c := range s.monitor.Commands() {
		if len(c.Words) < 2 || c.Words[1] != key || c.Words[0] == "SET" { // SET is the scenario's own
			continue
		}
		b.WriteString(c.Words[0])
		for _, word := range c.Words[2:] {
			b.WriteString(" " + s.form(word, c.At))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// play runs the scripted scenario and returns what the server saw in each part of it.
func (s *stage) play(c client, value func(ahead time.Duration) string) string {
	var trace strings.Builder
	part := func(name string, do func() bool, want bool) {
		got := do()
		assert.Equal(s.t, want, got, name)
		fmt.Fprintf(&trace, "%s: %v\n%s", name, got, s.saw())
	}
	release := func() bool { c.release(); return true }
	put := func(v string) { s.server.Do("SET", key, v); s.saw() }

	part("free key", c.acquire, true)
	part("release", release, true)

	put(value(time.Hour))
	part("held key, one attempt", c.try, false)
	part("held key, waiting", c.acquire, false)

	put(value(-time.Hour))
	part("expired key", c.acquire, true)
	part("release after a takeover", release, true)

	// Another client takes over between our GET and our GETSET.
	put(value(-time.Hour))
	s.proxy.Before(func(words []string) {
		if words[0] == "GETSET" {
			s.proxy.Before(nil)
			s.server.Do("SET", key, value(time.Hour))
		}
	})
	part("lost race", c.try, false)

	// The holder releases between our SETNX and our GET.
	put(value(time.Hour))
	s.proxy.Before(func(words []string) {
		if words[0] == "GET" {
			s.proxy.Before(nil)
			s.server.Do("DEL", key)
		}
	})
	part("key vanished before GET", c.try, s.wins)
	if s.wins {
		part("release after that", release, true)
	}

	// A successor stands on the key when we release.
	s.server.Do("DEL", key)
	s.saw()
	part("free key again", c.try, true)
	put(value(time.Hour))
	part("release of a key that a later value holds", release, true)
	part("free key once more", c.try, true)
	put(value(-time.Hour))
	part("release of a key that an earlier value holds", release, true)
	return trace.String()
}

// realClient is a holder process.
type realClient struct {
	t *testing.T
	h *holders.Holder
}

func (c realClient) acquire() bool { return c.did(c.h.Do("acquire %s", key)) }
func (c realClient) try() bool     { return c.did(c.h.Do("try %s", key)) }
func (c realClient) release() {
	require.Equal(c.t, "released", c.h.Do("release %s", key).Event)
}

func (c realClient) did(e holders.Event) bool {
	require.Contains(c.t, []string{"acquired", "busy"}, e.Event, "%+v", e)
	return e.Event == "acquired"
}

// goClient is package legacy.
type goClient struct {
	t      *testing.T
	locker lockmigrate.Locker
	lock   lockmigrate.Lock
}

func newGoClient(t *testing.T, addr string, d legacy.Dialect) *goClient {
	pool := &redis.Pool{MaxIdle: 2, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr)
	}}
	t.Cleanup(func() { _ = pool.Close() })
	locker, err := legacy.New(pool, legacy.Options{Dialect: d, Lease: lease, Wait: wait, Release: legacy.ReleaseAsDialect})
	require.NoError(t, err)
	return &goClient{t: t, locker: locker}
}

func (c *goClient) acquire() bool { return c.did(c.locker.Acquire(c.t.Context(), key)) }
func (c *goClient) try() bool     { return c.did(c.locker.TryAcquire(c.t.Context(), key)) }

// release ignores ErrLost, as the old code does, which does not look whether its DEL found something.
func (c *goClient) release() {
	if err := c.lock.Release(c.t.Context()); err != nil {
		require.ErrorIs(c.t, err, lockmigrate.ErrLost)
	}
}

func (c *goClient) did(lock lockmigrate.Lock, err error) bool {
	c.lock = lock
	if err != nil {
		require.ErrorIs(c.t, err, lockmigrate.ErrNotAcquired)
	}
	return err == nil
}

var (
	thirteen  = regexp.MustCompile(`^\d{13}$`)
	floatText = regexp.MustCompile(`^\d{10}\.\d{1,7}$`)
)

// near names an expiry by its lease, if it is one of a client that has just read its clock, on a machine that is so late.
func near(value string, ahead, want time.Duration, lateness *redistest.Lateness, name string) string {
	if late := want - ahead; late < -time.Millisecond || late > 150*time.Millisecond+lateness.Most() {
		return value
	}
	return name
}

func TestWireParityJedisLock(t *testing.T) {
	late := redistest.NewLateness(t)
	form := func(value string, at time.Time) string {
		if !thirteen.MatchString(value) {
			return value
		}
		n, _ := strconv.ParseInt(value, 10, 64)
		return near(value, time.UnixMilli(n).Sub(at), lease+time.Millisecond, late, "<ms: now + lease + 1>")
	}
	value := func(ahead time.Duration) string { return strconv.FormatInt(time.Now().Add(ahead).UnixMilli(), 10) }

	java := newStage(t, false, form)
	jar := holders.Start(t, holders.JedisLock, java.proxy.URL(), holders.Arg("lease", lease), holders.Arg("wait", wait))
	want := java.play(realClient{t, jar}, value)

	ours := newStage(t, false, form)
	got := ours.play(newGoClient(t, ours.proxy.Addr, legacy.Dialect{Name: "jedis-ms"}), value)
	assert.Equal(t, want, got)
	assert.Contains(t, want, "lost race: false\nSETNX <ms: now + lease + 1>\nGET\nGETSET <ms: now + lease + 1>\n", "the scenario reached it")
	t.Log("\n" + want)
}

func TestWireParityRedisPy(t *testing.T) {
	late := redistest.NewLateness(t)
	form := func(value string, at time.Time) string {
		if !floatText.MatchString(value) {
			return value
		}
		f, _ := strconv.ParseFloat(value, 64)
		whole, part := math.Modf(f)
		return near(value, time.Unix(int64(whole), int64(part*1e9)).Sub(at), lease, late, "<float s: now + lease>")
	}
	value := func(ahead time.Duration) string {
		return strconv.FormatFloat(float64(time.Now().Add(ahead).UnixMicro())/1e6, 'f', 6, 64)
	}

	python := newStage(t, true, form)
	// This Lock waits for ever; it is the holder that ends the wait, in the sleep after the one that is
	// over: 150 ms make the three attempts.
	lock := holders.Start(t, holders.RedisPy, python.proxy.URL(), holders.Arg("lease", lease), holders.Arg("wait", 150*time.Millisecond))
	want := python.play(realClient{t, lock}, value)

	ours := newStage(t, true, form)
	got := ours.play(newGoClient(t, ours.proxy.Addr, legacy.Dialect{Name: "redispy-float"}), value)
	assert.Equal(t, want, got)
	assert.Contains(t, want, "lost race: false\nSETNX <float s: now + lease>\nGET\nGETSET <float s: now + lease>\n", "the scenario reached it")
	t.Log("\n" + want)
}
