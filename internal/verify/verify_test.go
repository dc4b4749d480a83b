package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/fence"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/verify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const window = 90 * time.Millisecond

// crowd is 49 clients that lock as modern clients do, until the test ends.
func crowd(t *testing.T, s *redistest.Server) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range 49 {
		conn := s.Conn()
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key, token := fmt.Sprint("lock:", i), fmt.Sprintf("token-%d-%d", i, n)
				_, _ = conn.Do("SET", key, token, "NX", "PX", 5000)
				_, _ = conn.Do("EVAL", scripts.CompareDel.Source, 1, key, token)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
}

func run(t *testing.T, url string, o verify.Options) verify.Certificate {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	if o.Window == 0 {
		o.Window = window
	}
	cert, err := verify.Run(context.Background(), end, o)
	require.NoError(t, err)
	return cert
}

// act is what the hidden client does once in a window: one acquisition, directly or within a script.
func act(conn redis.Conn, n int) {
	value := fmt.Sprint(time.Now().Add(30*time.Second).UnixMilli() + 1)
	if n%2 == 0 {
		_, _ = conn.Do("SETNX", "lock:hidden", value)
	} else {
		_, _ = conn.Do("EVAL", "return redis.call('SETNX', KEYS[1], ARGV[1])", 1, "lock:hidden", value)
	}
	_, _ = conn.Do("DEL", "lock:hidden")
}

// TestOneHiddenClientAmongFifty runs 50 windows in which one legacy client of 50 acts once, 50 with the
// fence up, and 50 in which it does not.
func TestOneHiddenClientAmongFifty(t *testing.T) {
	s := redistest.Real(t)
	crowd(t, s)
	hidden := s.Conn()
	addr := addrOf(t, hidden)
	windows := func(acts bool, check func(n int, c verify.Certificate)) {
		for n := 0; n < 50; {
			acted := false
			when := rand.N(window) // it acts once, somewhere in the window
			cert := run(t, s.URL(), verify.Options{Match: []string{"lock:*"}, Census: n%5 == 0, Progress: func(left time.Duration, _ int) {
				if acts && !acted && left > 0 && left <= when {
					act(hidden, n)
					acted = true
				}
			}})
			if acts && !acted {
				continue // the machine was too busy for a look in the rest of the window: it did not act
			}
			check(n, cert)
			n++
		}
	}
	seen, named, alarms := 0, 0, 0
	windows(true, func(n int, c verify.Certificate) {
		if c.Verdict == verify.Seen {
			seen++
		}
	})
	windows(false, func(n int, c verify.Certificate) {
		if c.Verdict != verify.NoneSeen {
			alarms++
			t.Log(c.Why)
		}
	})
	fenceDefault(t, s)
	windows(true, func(n int, c verify.Certificate) {
		for _, l := range c.LegacyClients {
			if l.Addr == addr && c.Verdict == verify.Seen {
				named++
				break
			}
		}
	})
	t.Logf("seen %d of 50, named by address behind the fence %d of 50, false alarms %d of 50", seen, named, alarms)
	assert.Equal(t, 50, seen)
	assert.Equal(t, 50, named)
	assert.Zero(t, alarms)
}

func addrOf(t *testing.T, conn redis.Conn) string {
	t.Helper()
	info, err := redis.String(conn.Do("CLIENT", "INFO"))
	require.NoError(t, err)
	var id int
	var addr string
	_, err = fmt.Sscanf(info, "id=%d addr=%s", &id, &addr)
	require.NoError(t, err)
	return addr
}

func fenceDefault(t *testing.T, s *redistest.Server) {
	t.Helper()
	conn := s.Conn()
	plans, err := fence.Make(context.Background(), conn, s.Addr, fence.Options{Users: []string{"default"}, Locks: []string{"lock:x"}})
	require.NoError(t, err)
	require.NoError(t, plans[0].Execute(context.Background(), conn))
}

// TestHolesAreInconclusive breaks the evidence in every way and wants no verdict.
func TestHolesAreInconclusive(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	during := func(s *redistest.Server, o verify.Options, f func()) verify.Certificate {
		done := false
		o.Progress = func(time.Duration, int) { // at the first look, in the middle of the window
			if !done {
				done = true
				f()
			}
		}
		for !done {
			o.Window = 500 * time.Millisecond
			cert := run(t, s.URL(), o)
			if done {
				return cert
			}
		}
		return verify.Certificate{}
	}
	s := redistest.Real(t)
	c := during(s, verify.Options{}, func() { s.Do("CONFIG", "RESETSTAT") })
	assert.Equal(t, verify.Inconclusive, c.Verdict)
	assert.Contains(t, c.Why, "reset")

	c = during(s, verify.Options{}, func() { s.Kill(); s.Start() })
	assert.Equal(t, verify.Inconclusive, c.Verdict)

	c = during(s, verify.Options{Longest: time.Hour}, func() {})
	assert.Equal(t, verify.Inconclusive, c.Verdict)
	assert.Contains(t, c.Why, "1h0m0s")

	s.Do("SET", "lock:held", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
	c = during(s, verify.Options{Census: true, Match: []string{"lock:*"}}, func() {})
	assert.Equal(t, verify.Inconclusive, c.Verdict, "a live legacy value that does not change")
	assert.Contains(t, c.Why, "lock:held")
	s.Do("DEL", "lock:held")

	c = during(s, verify.Options{Census: true, Match: []string{"lock:*"}}, func() {
		s.Do("SET", "lock:odd", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()), "NX")
	})
	assert.Equal(t, verify.Seen, c.Verdict, "a legacy value set by SET NX shows in the census")
	s.Do("DEL", "lock:odd")

	ctx, cancel := context.WithCancel(context.Background())
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	c, err = verify.Run(ctx, end, verify.Options{Window: time.Hour})
	require.NoError(t, err)
	assert.Less(t, time.Since(began), time.Second)
	assert.Equal(t, verify.Inconclusive, c.Verdict)
	assert.Contains(t, c.Why, "interrupted")
}

// TestOthersUseSetNX has an application that uses SETNX for something else: no alarm, and no clean bill
// unless MONITOR has seen all of it.
func TestOthersUseSetNX(t *testing.T) {
	s := redistest.Real(t)
	conn := s.Conn()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				_, _ = conn.Do("SETNX", "cache:flag", "1")
			}
		}
	}()
	c := run(t, s.URL(), verify.Options{Window: 1500 * time.Millisecond, Match: []string{"lock:*"}, Burst: 500 * time.Millisecond, Every: 5 * time.Second})
	close(stop)
	<-done
	assert.Equal(t, verify.Inconclusive, c.Verdict, c.Why)
	assert.Empty(t, c.LegacyClients)
}

func TestBurstNamesTheClient(t *testing.T) {
	s := redistest.Real(t)
	conn := s.Conn()
	_, err := conn.Do("CLIENT", "SETNAME", "billing-7")
	require.NoError(t, err)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				act(conn, n)
			}
		}
	}()
	c := run(t, s.URL(), verify.Options{Window: 1200 * time.Millisecond, Burst: 600 * time.Millisecond, Every: time.Minute})
	close(stop)
	<-done
	assert.Equal(t, verify.Seen, c.Verdict)
	require.NotEmpty(t, c.LegacyClients)
	assert.Equal(t, "billing-7", c.LegacyClients[0].Name)
	assert.Equal(t, "jedis-ms", c.LegacyClients[0].Dialect)
	assert.Equal(t, []string{"lock:hidden"}, c.LegacyClients[0].Keys)
}

func TestCertificateFile(t *testing.T) {
	now := time.Now()
	c := verify.Certificate{Format: verify.Format, Verdict: verify.NoneSeen, Namespace: "orders", Epoch: 3, Ended: now.Add(-time.Minute), WindowSeconds: 600}
	var text bytes.Buffer
	require.NoError(t, c.Write(&text))
	file := filepath.Join(t.TempDir(), "c.json")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	c, err := verify.Load(file)
	require.NoError(t, err)
	assert.NoError(t, c.Supports("orders", 3, now, time.Hour, 10*time.Minute))
	assert.ErrorIs(t, c.Supports("orders", 4, now, time.Hour, time.Minute), verify.ErrNamespace)
	assert.ErrorIs(t, c.Supports("orders", 3, now, time.Second, time.Minute), verify.ErrStale)
	assert.ErrorIs(t, c.Supports("orders", 3, now, time.Hour, time.Hour), verify.ErrShort)
	c.Verdict = verify.Inconclusive
	assert.ErrorIs(t, c.Supports("orders", 3, now, time.Hour, time.Minute), verify.ErrVerdict)
	require.NoError(t, os.WriteFile(file, []byte(`{"verdict":"none-seen"}`), 0o600))
	_, err = verify.Load(file)
	assert.Error(t, err)
}
