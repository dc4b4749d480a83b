package clients

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

func endOf(t *testing.T, s *redistest.Server) *endpoint.Endpoint {
	t.Helper()
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	return end
}

// found is what a scan says of one key.
func found(t *testing.T, s *redistest.Server, key string, match ...string) (row census.Row, ok bool) {
	t.Helper()
	conn, err := endOf(t, s).DialRaw(context.Background(), s.Addr)
	require.NoError(t, err)
	c := census.New(census.Options{Match: match, Confidence: census.Low, GhostAfter: time.Hour, Emit: func(r *census.Row) error {
		if string(r.Key) == key {
			row, ok = *r, true
			row.Dialects = slices.Clone(r.Dialects)
		}
		return nil
	}})
	require.NoError(t, c.Scan(context.Background(), conn))
	return row, ok
}

// TestScanOfOthers: a scan finds the locks that have no row: two that are hashes, and one whose clients steal every token without a UUID.
func TestScanOfOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	for kind, format := range map[holders.Kind]string{holders.Redisson: "redisson", holders.HashUID: "hash-uid", holders.JedisUUID: "uuid-expiry-ms"} {
		key := "lock." + format
		h := holders.Start(t, kind, s.URL(), short)
		require.Equal(t, "acquired", h.Do("acquire %s", key).Event)
		row, ok := found(t, s, key)
		require.True(t, ok, key)
		assert.Equal(t, []string{format, string(census.Held)}, []string{string(row.Format), string(row.State)})
	}
}

// hour is how far the clock of one of the processes is ahead.
const hour = time.Hour

// observes: kind, dialect, lease, and whose clock is wrong by how much.
func (c client) observes(t *testing.T, s *redistest.Server, h, other, ahead *holders.Holder) {
	fleet := []*holders.Holder{h, other}
	if ahead != nil {
		fleet = append(fleet, ahead)
	}
	report := c.watch(t, s, func() {
		// Each on a key of its own, so that nobody's clock robs another; for three seconds, so that one that writes
		// whole seconds is seen at every part of them.
		for i, h := range fleet {
			h.Send("turns %s referee%d %d 75", fmt.Sprint(c.key[:len(c.key)-1], i), i, map[bool]int{true: 3, false: 40}[c.never])
		}
		for _, h := range fleet {
			c.finish(h)
		}
	})
	var skews []float64
	for _, row := range report.Clients {
		t.Logf("%s %s lease %v (%s) skew %v ±%v, %d acquired", row.Kind, row.Dialect, row.LeaseMS, row.LeaseFrom,
			value(row.SkewMS), value(row.SkewErrorMS), row.Acquired)
		assert.Equal(t, c.observe, row.Kind)
		assert.Equal(t, c.dialect, row.Dialect)
		// Alone on its key it was not seen to overwrite anybody: the names of its keys decide.
		assert.Equal(t, c.dialect == "blind-set" && c.kind == holders.QueueLock, row.DialectOr != "", row.DialectDoubt)
		if c.lease > 0 {
			assert.Empty(t, row.LeaseDoubt)
			assert.InDelta(t, ms(c.lease), row.LeaseMS, 10, "lease")
		}
		if row.SkewMS != nil {
			skews = append(skews, *row.SkewMS)
			off := math.Min(math.Abs(*row.SkewMS), math.Abs(*row.SkewMS-ms(hour)))
			assert.LessOrEqual(t, off, value(row.SkewErrorMS)+20, "skew %v ±%v", *row.SkewMS, value(row.SkewErrorMS))
		}
	}
	assert.Len(t, report.Clients, len(fleet))
	if ahead != nil && assert.Len(t, skews, len(fleet), "each clock is known") {
		assert.Greater(t, slices.Max(skews), ms(hour)-1100, "the one that is ahead is found")
	}
}

// watch observes a server while work runs.
func (c client) watch(t *testing.T, s *redistest.Server, work func()) observe.Report {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w, err := observe.StartMasters(ctx, endOf(t, s), observe.Options{Match: func(key string) bool {
		return strings.HasPrefix(key, c.key[:4]) && !strings.Contains(key, ":referee")
	}}, observe.Limits{Load: 10})
	require.NoError(t, err)
	work()
	for last := int64(-1); last != w.Cost().Commands; time.Sleep(50 * time.Millisecond) { // until the stream has caught up with the server
		last = w.Cost().Commands
	}
	stop()
	require.ErrorIs(t, w.Wait(), context.Canceled)
	return w.Report()
}

// finish waits until the turns of a holder are over.
func (c client) finish(h *holders.Holder) {
	for h.Next(time.Minute).Event != "done" {
	}
}

func value(p *float64) float64 {
	if p == nil {
		return math.NaN()
	}
	return *p
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// verifies: a client that takes the lock once within the window is seen, whatever it writes. One that takes it by SET NX
// with a TTL and a token is what a modern fleet consists of: it is no finding.
func (c client) verifies(t *testing.T, s *redistest.Server, h, _, _ *holders.Holder) {
	var once sync.Once
	began := make(chan struct{})
	done := make(chan verify.Certificate, 1)
	go func() {
		cert, err := verify.Run(context.Background(), endOf(t, s), verify.Options{
			Window: 1100 * time.Millisecond, Longest: time.Second, Match: []string{c.key[:4] + "*"}, Whole: true,
			Progress: func(time.Duration, int) { once.Do(func() { close(began) }) },
		})
		assert.NoError(t, err)
		done <- cert
	}()
	<-began
	h.Send("turns %s referee 1 1", c.key)
	c.finish(h)
	cert := <-done
	want := map[bool]verify.Verdict{true: verify.NoneSeen, false: verify.Seen}[c.modern()]
	assert.Equal(t, want, cert.Verdict, "%s", cert.Why)
}

// modern tells a client that may stay: it takes with SET NX and a TTL, what it writes is no time, and it deletes only what is
// its own.
func (c client) modern() bool {
	return strings.HasPrefix(c.takes, "SET ") && c.ttl && c.scan == "token" && c.compares
}

// crashes: a held lock is found by a scan, in its format and dialect, and until when it is held; doctor names what stands on the
// key; and Go takes it for held. After a crash Go takes over what only a client's own code would end, and waits for the TTL of all others.
func (c client) crashes(t *testing.T, s *redistest.Server, h, _, _ *holders.Holder) {
	c.acquire(t, h)
	var row census.Row
	for _, match := range [][]string{nil, {c.key[:4] + "*"}} {
		var ok bool
		if row, ok = found(t, s, c.key, match...); !assert.True(t, ok, "not found, match %v", match) {
			continue
		}
		assert.Equal(t, c.scan, string(row.Format), "match %v: %s", match, row.Note)
		assert.Equal(t, census.Held, row.State)
		if c.scan != "token" && c.scan != "token-no-ttl" && assert.NotEmpty(t, row.Dialects) {
			assert.Contains(t, row.Dialects, c.dialect)
		}
		if c.lease > 0 && assert.True(t, row.HasExpiry) {
			left := row.Expires.Sub(row.Now)
			assert.Greater(t, left, time.Duration(0))
			assert.LessOrEqual(t, left, c.lease+1100*time.Millisecond, "a scheme of whole seconds adds one")
		}
	}
	checks, err := doctor.Examine(t.Context(), endOf(t, s), doctor.Options{Match: c.key[:4] + "*", Now: time.Now})
	require.NoError(t, err)
	by := map[string]doctor.Check{}
	for _, check := range checks {
		by[check.ID] = check
	}
	switch {
	case c.blind:
		assert.Equal(t, doctor.Fail, by["dialects"].Verdict, "%+v", by["dialects"])
		assert.Contains(t, by["dialects"].Found, "blind-set")
	case c.scan != "token" && c.scan != "token-no-ttl":
		assert.Equal(t, doctor.Pass, by["dialects"].Verdict, "%+v", by["dialects"])
		assert.Contains(t, by["dialects"].Found, row.Dialects[0])
	}
	wanted := map[bool]doctor.Verdict{true: doctor.Warn, false: doctor.Pass}[c.scan == "token-no-ttl"]
	assert.Equal(t, wanted, by["tokens-without-ttl"].Verdict, "%+v", by["tokens-without-ttl"])

	if c.blind {
		return
	}
	locker, err := newCompat(s.Pool(), "bridge", c.goDialect(), goTTL)
	require.NoError(t, err)
	defer locker.Close()
	_, err = locker.TryAcquire(t.Context(), c.key)
	h.Kill()
	if c.lease == 0 {
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat, "nothing will ever free it, and that is said")
		return
	}
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
	began := time.Now()
	lock, err := locker.Acquire(t.Context(), c.key)
	require.NoError(t, err)
	assert.Less(t, time.Since(began), c.lease+3*time.Second)
	assert.NoError(t, lock.Release(t.Context()))
}
