package census_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// furnish puts ghosts, live locks and keys of others on a server.
func furnish(s *redistest.Server) {
	at := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	s.Do("SET", "lock:ghost", at(-48*time.Hour))
	s.Do("SET", "lock:\xff\x00ghost", at(-49*time.Hour))
	s.Do("SET", "lock:live", at(time.Hour))
	s.Do("SET", "lock:expired", at(-time.Minute))
	s.Do("SET", "lock:token", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30")
	s.Do("SET", "lock:modern", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a31", "PX", 60000)
	s.Do("HSET", "lock:redisson", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "1")
	s.Do("SET", "other:login", at(-480*time.Hour))
	s.Do("HSET", "lock:settings", "retries", "3")
	s.Do("HSET", "lock:attempts", "user-17", "3")
	s.Do("SET", "lock:flag", "1")
}

// chosen are the entries of what was swept, or is to be.
func chosen(all map[string]census.SweepEntry) map[string]census.SweepEntry {
	out := map[string]census.SweepEntry{}
	for key, e := range all {
		if e.Result != census.Left {
			out[key] = e
		}
	}
	return out
}

func run(t *testing.T, s *redistest.Server, o census.SweepOptions) (census.Swept, map[string]census.SweepEntry) {
	t.Helper()
	summary, entries, err := sweep(t, s.URL(), o)
	require.NoError(t, err)
	return summary, entries
}

func sweep(t *testing.T, url string, o census.SweepOptions) (census.Swept, map[string]census.SweepEntry, error) {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	entries := map[string]census.SweepEntry{}
	o.Match = []string{"lock:*"}
	if o.GhostAfter == 0 {
		o.GhostAfter = time.Hour
	}
	o.Emit = func(e census.SweepEntry) error { entries[string(append([]byte(nil), keyOf(e)...))] = e; return nil }
	summary, err := census.Sweep(context.Background(), end, o)
	return summary, entries, err
}

func keyOf(e census.SweepEntry) []byte {
	if e.KeyBytes != nil {
		return e.KeyBytes
	}
	return []byte(e.Key)
}

// Progress comes with each change: a page of ghosts takes as long as the rate says.
func TestProgressWithinAPage(t *testing.T) {
	s := redistest.Real(t)
	for i := range 20 {
		s.Do("SET", fmt.Sprint("lock:", i), "1700000000123")
	}
	told := map[int64]bool{}
	run(t, s, census.SweepOptions{Execute: true, Journal: func(census.SweepEntry) error { return nil }, Progress: func(p census.SweepProgress) { told[p.Changed] = true }})
	assert.Len(t, told, 21, "from none to all")
}

func TestSweep(t *testing.T) {
	s := redistest.Real(t)
	furnish(s)
	summary, found := run(t, s, census.SweepOptions{Tokens: true})
	assert.Len(t, chosen(found), 4)
	assert.EqualValues(t, 4, summary.ByResult[census.Planned])
	assert.EqualValues(t, 11, s.Do("DBSIZE"), "dry")
	for key, why := range map[string]string{"lock:expired": "--ghost-after", "lock:settings": "application", "lock:attempts": "application", "lock:flag": "application"} {
		assert.Equal(t, census.Left, found[key].Result, key)
		assert.Contains(t, found[key].Note, why, key)
	}

	var journal []census.Result
	summary, found = run(t, s, census.SweepOptions{Execute: true, Journal: func(e census.SweepEntry) error { journal = append(journal, e.Result); return nil }})
	assert.EqualValues(t, 3, summary.ByResult[census.Done], summary)
	assert.Equal(t, census.Remove, found["lock:ghost"].Action)
	assert.Equal(t, census.Remove, found["lock:\xff\x00ghost"].Action)
	assert.Equal(t, census.Expire, found["lock:redisson"].Action)
	assert.EqualValues(t, 0, s.Do("EXISTS", "lock:ghost", "lock:\xff\x00ghost"))
	assert.Greater(t, s.Do("PTTL", "lock:redisson"), int64(3_000_000))
	assert.EqualValues(t, 5, s.Do("EXISTS", "lock:live", "lock:expired", "lock:token", "lock:modern", "other:login"))
	assert.EqualValues(t, -1, s.Do("PTTL", "lock:token"), "tokens are left alone unless asked for")

	const before, after = census.Planned, census.Done
	assert.Equal(t, []census.Result{before, after, before, after, before, after}, journal, "a line before and one after each change")

	summary, _ = run(t, s, census.SweepOptions{Execute: true, Journal: func(census.SweepEntry) error { return nil }})
	assert.Zero(t, summary.Candidates, "a second run finds nothing")
	_, found = run(t, s, census.SweepOptions{Execute: true, Tokens: true, TTL: time.Minute, Journal: func(census.SweepEntry) error { return nil }})
	assert.Equal(t, census.Done, found["lock:token"].Result)
	assert.Greater(t, s.Do("PTTL", "lock:token"), int64(50_000))
	for _, key := range []string{"lock:settings", "lock:attempts", "lock:flag"} {
		assert.EqualValues(t, -1, s.Do("PTTL", key), "%s is the application's", key)
	}
}

// TestAWrongClockSweepsNothing has a live lock look dead by one of the two clocks: of the server, which is
// hours ahead, or of this host. Nothing may be swept, nor may a dry run call it a ghost.
func TestAWrongClockSweepsNothing(t *testing.T) {
	s := redistest.NewClocked(t)
	live := fmt.Sprint(time.Now().Add(30 * time.Second).UnixMilli())
	s.Do("SET", "lock:live", live)
	for _, c := range []struct {
		server, host time.Duration
		refused      bool
	}{{2 * time.Hour, 0, true}, {-2 * time.Hour, 0, true}, {0, 2 * time.Hour, true}, {2 * time.Minute, 0, true}, {30 * time.Second, 30 * time.Second, false}, {2 * time.Hour, 2*time.Hour - 59*time.Second, false}} {
		s.Step(c.server)
		s.Do("SET", "lock:live", fmt.Sprint(time.Now().Add(c.host+30*time.Second).UnixMilli())) // live by the host
		for _, execute := range []bool{false, true} {
			_, found, err := sweep(t, s.URL(), census.SweepOptions{
				GhostAfter: time.Minute, Execute: execute, Journal: func(census.SweepEntry) error { return nil }, Now: func() time.Time { return time.Now().Add(c.host) },
			})
			var apart *census.ClockError
			assert.Equal(t, c.refused, errors.As(err, &apart), "%+v: %v", c, err)
			assert.EqualValues(t, 1, s.Do("EXISTS", "lock:live"), "%+v", c)
			assert.Empty(t, chosen(found), "%+v", c)
		}
		s.Step(-c.server)
	}
}

// TestOverByBothClocks lets the server's clock be ahead by less than is refused: what is over by it alone is left.
func TestOverByBothClocks(t *testing.T) {
	s := redistest.NewClocked(t)
	s.Step(50 * time.Second)
	s.Do("SET", "lock:a", fmt.Sprint(time.Now().Add(-20*time.Second).UnixMilli())) // 70 s ago by the server
	s.Do("SET", "lock:b", fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli()))
	_, found := run(t, s.Server, census.SweepOptions{GhostAfter: time.Minute, Execute: true, Journal: func(census.SweepEntry) error { return nil }})
	assert.Equal(t, census.Left, found["lock:a"].Result)
	assert.Equal(t, census.Done, found["lock:b"].Result)
	assert.EqualValues(t, 1, s.Do("EXISTS", "lock:a"))
}

// TestUncertainHashes gives no hash of an application a TTL, also where --tokens asks for more.
func TestUncertainHashes(t *testing.T) {
	s := redistest.Real(t)
	s.Do("HSET", "lock:settings", "retries", "3")
	s.Do("HSET", "lock:reentrant", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30", "1")
	s.Do("SET", "lock:bridge", "7000000000000000001")
	_, found := run(t, s, census.SweepOptions{Execute: true, Journal: func(census.SweepEntry) error { return nil }})
	assert.Empty(t, chosen(found))
	assert.Len(t, found, 3)
	_, found = run(t, s, census.SweepOptions{Execute: true, Tokens: true, Journal: func(census.SweepEntry) error { return nil }})
	assert.Len(t, chosen(found), 2)
	assert.EqualValues(t, -1, s.Do("PTTL", "lock:settings"))
	assert.Greater(t, s.Do("PTTL", "lock:bridge"), int64(0))
	assert.Greater(t, s.Do("PTTL", "lock:reentrant"), int64(0))
}

// TestAClientComesInBetween lets a client take the lock after the look and before the change.
func TestAClientComesInBetween(t *testing.T) {
	s := redistest.Real(t)
	furnish(s)
	taken := fmt.Sprint(time.Now().Add(time.Minute).UnixMilli())
	_, found := run(t, s, census.SweepOptions{Execute: true, Tokens: true, Journal: func(e census.SweepEntry) error {
		if e.Result != census.Planned {
			return nil
		}
		if e.Key == "lock:redisson" {
			s.Do("HSET", e.Key, "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "2")
		} else {
			s.Do("GETSET", string(keyOf(e)), taken)
		}
		return nil
	}})
	assert.Len(t, chosen(found), 4)
	for key, e := range chosen(found) {
		assert.Equal(t, census.Changed, e.Result, key)
		if key != "lock:redisson" {
			assert.Equal(t, taken, s.Value(key))
		}
		assert.EqualValues(t, -1, s.Do("PTTL", key))
	}
}

// TestJournalFirst fails the journal, and wants no change without a line.
func TestJournalFirst(t *testing.T) {
	s := redistest.Real(t)
	furnish(s)
	_, _, err := sweep(t, s.URL(), census.SweepOptions{Execute: true, Journal: func(census.SweepEntry) error { return os.ErrClosed }})
	assert.ErrorIs(t, err, os.ErrClosed)
	assert.EqualValues(t, 11, s.Do("DBSIZE"))
}

// A server that answers nothing but refusals while keys are looked at is no server without candidates.
func TestARefusalOfEachKeyIsNoEmptySweep(t *testing.T) {
	s := redistest.Real(t, "--busy-reply-threshold", "5")
	s.Do("SET", "lock:ghost", fmt.Sprint(time.Now().Add(-48*time.Hour).UnixMilli()))
	link := redistest.NewProxy(t, s)
	ended := make(chan struct{})
	link.Before(func(words []string) {
		if words[0] != "GETRANGE" {
			return
		}
		conn, other := s.Conn(), s.Conn()
		go func() {
			defer close(ended)
			_, _ = conn.Do("EVAL", "while true do end", 0)
		}()
		redistest.Await(t, "a script that keeps the server busy", func() bool {
			_, err := other.Do("PING")
			return err != nil
		})
	})
	summary, _, err := sweep(t, link.URL(), census.SweepOptions{})
	s.Do("SCRIPT", "KILL")
	<-ended
	require.ErrorContains(t, err, "a script is keeping the server busy")
	assert.False(t, summary.Complete)
}
