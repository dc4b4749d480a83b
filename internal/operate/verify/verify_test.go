package verify_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clients run until the test ends, each step after a pause.
func clients(t *testing.T, s *redistest.Server, n int, pause time.Duration, step func(conn redis.Conn, client, turn int)) (turns *atomic.Int64) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	turns = new(atomic.Int64)
	var running sync.WaitGroup
	for i := range n {
		conn := s.Conn()
		running.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				step(conn, i, turn)
				turns.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return turns
}

// rounds is how many windows each acceptance test looks at, and atOnce how many of them side by side.
const (
	rounds = 50
	atOnce = 10
)

// modernFleet locks the keys of all rounds as modern clients do.
func modernFleet(t *testing.T, s *redistest.Server) {
	clients(t, s, 10, 10*time.Millisecond, func(conn redis.Conn, client, turn int) {
		key, token := fmt.Sprintf("lock:%d:job", rand.IntN(rounds)), fmt.Sprintf("token-%d-%d", client, turn)
		_, _ = conn.Do("SET", key, token, "NX", "PX", 5000)
		_, _ = conn.Do("EVAL", scripts.CompareDel.Source, 1, key, token)
	})
}

// otherApplication uses SETNX, GETSET and SET for something else, all the time.
func otherApplication(t *testing.T, s *redistest.Server) *atomic.Int64 {
	return clients(t, s, 4, 2*time.Millisecond, func(conn redis.Conn, _, turn int) {
		key := fmt.Sprint("cache:", turn%20)
		switch turn % 5 {
		case 0, 1:
			_, _ = conn.Do("SETNX", key, "1")
		case 2:
			_, _ = conn.Do("GETSET", key, "2")
		case 3:
			_, _ = conn.Do("EVAL", "redis.call('SETNX', KEYS[1], '3') return redis.call('SET', KEYS[1], '4', 'NX')", 1, key)
		case 4:
			_ = conn.Send("MULTI")
			_ = conn.Send("SETNX", key, "5")
			_ = conn.Send("DEL", key)
			_, _ = conn.Do("EXEC")
		}
	})
}

// acts are what a hidden client may do once: one acquisition, of whatever value, in whatever spelling.
func acts(n int, key string) [][]any {
	now := time.Now().Add(30 * time.Second)
	values := []string{
		fmt.Sprint(now.UnixMilli()), "1", "\xf6\x01\x02\x03\x04\x05\x06\x07\x08\x00", "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
		fmt.Sprintf("%.6f", float64(now.UnixMicro())/1e6), fmt.Sprint(now.UnixNano()), "locked",
	}
	value := values[n%len(values)]
	forms := [][][]any{
		{{"SETNX", key, value}},
		{{"SET", key, value, "NX"}},
		{{"EVAL", "return redis.call('SETNX', KEYS[1], ARGV[1])", 1, key, value}},
		{{"set", key, value, "nx"}},
		{{"GETSET", key, value}},
		{{"MULTI"}, {"SETNX", key, value}, {"EXPIRE", key, 10}, {"EXEC"}},
		{{"SET", key, value, "NX", "GET"}},
		{{"EVAL", "return redis.call('SET', KEYS[1], ARGV[1], 'NX')", 1, key, value}},
	}
	return append(forms[n%len(forms)], []any{"DEL", key})
}

// round runs one window. Act, if it is not nil, runs once within it.
func round(t *testing.T, s *redistest.Server, n int, act func(conn redis.Conn)) (verify.Certificate, string) {
	t.Helper()
	end := at(t, s.URL())
	const window = 400 * time.Millisecond
	s.Do("SET", fmt.Sprintf("lock:%d:live", n), "token", "PX", 600_000) // what the pattern matches
	conn := s.Conn()
	_, err := conn.Do("CLIENT", "SETNAME", "billing-7")
	require.NoError(t, err)
	when := rand.N(window)
	for range mostTries {
		acted := act == nil
		cert, err := verify.Run(context.Background(), end, verify.Options{
			Window: window, Longest: window, Look: 50 * time.Millisecond, Match: []string{fmt.Sprintf("lock:%d:*", n)}, Whole: true,
			Progress: func(left time.Duration, _ int) {
				if !acted && left > 0 && left <= when {
					act(conn)
					acted = true
				}
			},
		})
		require.NoError(t, err)
		if acted {
			return cert, redistest.AddrOf(t, conn)
		}
		when = window // the machine was too busy for a look in the rest of the window: act at the first one
	}
	t.Error("no look within the window")
	return verify.Certificate{}, ""
}

// mostTries is how many windows a busy machine may miss.
const mostTries = 20

// each runs all rounds, some at once.
func each(check func(n int)) {
	var running sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	for n := range rounds {
		gate <- struct{}{}
		running.Go(func() { check(n); <-gate })
	}
	running.Wait()
}

// TestOneHiddenClientBesideAnotherApplication has a modern fleet, and an application that uses SETNX, GETSET and SET
// NX all the time. In 50 windows nobody else acts, and in 50 one legacy client sends one command.
func TestOneHiddenClientBesideAnotherApplication(t *testing.T) {
	s := redistest.Real(t)
	modernFleet(t, s)
	turns := otherApplication(t, s)
	var seen, named, clean atomic.Int64
	each(func(n int) {
		c, addr := round(t, s, n, func(conn redis.Conn) {
			for _, words := range acts(n, fmt.Sprintf("lock:%d:hidden", n)) {
				_, err := conn.Do(words[0].(string), words[1:]...)
				assert.NoError(t, err, words)
			}
		})
		if c.Verdict == verify.Seen {
			seen.Add(1)
		} else {
			t.Log(n, c.Verdict, c.Why)
		}
		for _, l := range c.Evidence.Seen {
			if l.Addr == addr && l.Name == "billing-7" && l.User == "default" {
				named.Add(1)
				break
			}
		}
	})
	each(func(n int) {
		c, _ := round(t, s, n, nil)
		if c.Verdict == verify.NoneSeen {
			clean.Add(1)
		} else {
			t.Log(n, c.Verdict, c.Why, c.Evidence.Seen)
		}
	})
	t.Logf("seen %d of %d, named by address %d, none-seen where nobody hid %d of %d; %d turns of the other application",
		seen.Load(), rounds, named.Load(), clean.Load(), rounds, turns.Load())
	assert.EqualValues(t, rounds, seen.Load())
	assert.EqualValues(t, rounds, named.Load())
	assert.EqualValues(t, rounds, clean.Load())
	assert.Greater(t, turns.Load(), int64(1000))
}

// live is a service's lock, which the patterns of these tests match.
func live(s *redistest.Server) { s.Do("SET", "lock:live", "token", "PX", 600_000) }

// during runs verify, and f once at a look within the window.
func during(t *testing.T, s *redistest.Server, o verify.Options, f func()) verify.Certificate {
	t.Helper()
	live(s)
	end := at(t, s.URL())
	return within(t, end, o, f)
}

// at is where a URL leads.
func at(t *testing.T, url string) *endpoint.Endpoint {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	return end
}

// within is during for a server's URL.
func within(t *testing.T, end *endpoint.Endpoint, o verify.Options, f func()) verify.Certificate {
	t.Helper()
	if o.Window == 0 {
		o.Window = 500 * time.Millisecond
	}
	if o.Longest == 0 {
		o.Longest = o.Window
	}
	for range mostTries {
		done := false
		o.Progress = func(left time.Duration, _ int) {
			if !done && left > 0 {
				done = true
				f()
			}
		}
		cert, err := verify.Run(context.Background(), end, o)
		require.NoError(t, err)
		if done {
			return cert
		}
	}
	t.Fatal("no look within the window")
	return verify.Certificate{}
}

// open lists the obligations that are not discharged.
func open(c verify.Certificate) (ids []string) {
	for _, o := range c.Obligations {
		if !o.Discharged {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// TestServicesAreExplained has Go services of every kind that wait for a key, give up, and hand it on, and every key is a lock key. Some of
// their scripts ask the server whether they may, by a SET NX that sets nothing.
func TestServicesAreExplained(t *testing.T) {
	redistest.EachVersion(t, []string{"redis-6.2.11", "redis-8.10.2", "valkey-9.0.0"}, servicesAreExplained)
}

func servicesAreExplained(t *testing.T, s *redistest.Server) {
	in := func(stage lockmigrate.Stage) string {
		name, err := redistest.InStage(s.Pool(), stage, "", time.Second)
		require.NoError(t, err)
		return name
	}
	bridge, last := in(lockmigrate.StageBridge), in(lockmigrate.StageModern)
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); running.Wait() })
	turns := map[string]*atomic.Int64{}
	for kind, open := range map[string]func() (lockmigrate.Locker, error){
		"compat":                  func() (lockmigrate.Locker, error) { return compat.New(s.Pool(), compat.Options{}) },
		"compat, stage bridge":    func() (lockmigrate.Locker, error) { return compat.New(s.Pool(), compat.Options{Namespace: bridge}) },
		"compat, stage modern":    func() (lockmigrate.Locker, error) { return compat.New(s.Pool(), compat.Options{Namespace: last}) },
		"modern":                  func() (lockmigrate.Locker, error) { return modern.New(s.Pool(), modern.Options{TTL: time.Second}) },
		"modern, fencing":         func() (lockmigrate.Locker, error) { return modern.New(s.Pool(), modern.Options{FenceTTL: time.Hour}) },
		"modern, Redisson's form": func() (lockmigrate.Locker, error) { return redisson.New(s.Pool(), modern.Options{}) },
	} {
		n := new(atomic.Int64)
		turns[kind] = n
		for i := range 3 {
			locker, err := open()
			require.NoError(t, err, kind)
			running.Go(func() {
				defer locker.Close()
				for ctx.Err() == nil {
					patience := ctx
					if i == 2 {
						short, cancel := context.WithTimeout(ctx, 3*time.Millisecond)
						defer cancel()
						patience = short
					}
					if locker.Do(patience, "order "+kind, func(context.Context) error { time.Sleep(5 * time.Millisecond); return nil }) == nil {
						n.Add(1)
					}
				}
			})
		}
	}
	end := at(t, s.URL())
	c, err := verify.Run(t.Context(), end, verify.Options{Window: 3 * time.Second, Longest: time.Second, Whole: true})
	require.NoError(t, err)
	for kind, n := range turns {
		assert.Greater(t, n.Load(), int64(10), kind)
	}
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)
	assert.Empty(t, c.Evidence.Seen)
	assert.Empty(t, c.Evidence.Unexplained)
}
