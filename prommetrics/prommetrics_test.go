package prommetrics_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
	"github.com/lockmigrate/lockmigrate/prommetrics"
)

// values gathers every counter and gauge, and the counts of histograms, by name and label values.
func values(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch {
			case m.Counter != nil:
				out[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				out[name] = m.Gauge.GetValue()
			case m.Histogram != nil:
				out[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return out
}

func TestCountsALocksLife(t *testing.T) {
	s := redistest.Mini(t)
	metrics, observe := prommetrics.New()
	locker, err := modern.New(s.Pool(), modern.Options{Observer: observe, Poll: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	lock, err := locker.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, lock.Renew(t.Context()))
	_, err = locker.TryAcquire(t.Context(), "k")
	require.Error(t, err)
	assert.EqualValues(t, 1, values(t, metrics)["lockmigrate_held"])

	handed := make(chan error, 1)
	go func() { handed <- locker.Do(t.Context(), "k", func(context.Context) error { return nil }) }()
	require.Eventually(t, func() bool { return s.Mini.Exists("{k}:queue") }, time.Minute, time.Millisecond)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, <-handed)

	stolen, err := locker.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	s.Do("DEL", "k")
	require.ErrorIs(t, stolen.Release(t.Context()), lockmigrate.ErrLost)
	observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "release", Err: lockmigrate.ErrUnknownOutcome})

	got := values(t, metrics)
	for name, want := range map[string]float64{
		"lockmigrate_acquired_total try": 2, "lockmigrate_acquired_total handed": 1, "lockmigrate_not_acquired_total": 1,
		"lockmigrate_released_total": 2, "lockmigrate_renewed_total": 1, "lockmigrate_lost_total taken": 1, "lockmigrate_lost_total deadline": 0, "lockmigrate_held": 0,
		"lockmigrate_failed_total release yes": 1, "lockmigrate_held_seconds": 3, "lockmigrate_wait_seconds acquired": 3,
		"lockmigrate_waiting_mode messages": 1,
	} {
		assert.Equal(t, want, got[name], name)
	}
}

// TestTheGaugeDoesNotLeak: a release that fails, and the deadline that follows, count as one loss.
func TestTheGaugeDoesNotLeak(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("holder")
		metrics, observe := prommetrics.New()
		locker, err := modern.New(route.Pool(), modern.Options{Observer: observe, TTL: 300 * time.Millisecond})
		require.NoError(t, err)
		t.Cleanup(func() { _ = locker.Close() })
		lock, err := locker.Acquire(t.Context(), "k")
		require.NoError(t, err)
		route.Partition()
		require.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrUnknownOutcome)
		<-lock.Context().Done()
		synctest.Wait()
		got := values(t, metrics)
		assert.EqualValues(t, 0, got["lockmigrate_held"])
		assert.EqualValues(t, 1, got["lockmigrate_acquired_total try"])
		assert.EqualValues(t, 1, got["lockmigrate_lost_total deadline"])
		assert.EqualValues(t, 0, got["lockmigrate_released_total"])
	})
}

// TestServesEveryLocker: each kind of Locker tells it of the same events, and how a lock was acquired.
func TestServesEveryLocker(t *testing.T) {
	for name, kind := range map[string]struct {
		later string // how a waiter gets the lock
		open  func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error)
	}{
		"legacy": {"wait", func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error) {
			return legacy.New(pools[0], legacy.Options{Observer: o})
		}},
		"bridge": {"handed", func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error) {
			return compat.New(pools[0], compat.Options{Observer: o})
		}},
		"compat": {"handed", func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error) {
			namespace, err := redistest.InStage(pools[0].(*redis.Pool), lockmigrate.StageModern, "", 10*time.Second)
			if err != nil {
				return nil, err
			}
			return compat.New(pools[0], compat.Options{Namespace: namespace, Observer: o})
		}},
		"modern": {"handed", func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error) {
			return modern.New(pools[0], modern.Options{Observer: o})
		}},
		"redisson": {"wait", func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error) {
			return redisson.New(pools[0], modern.Options{Observer: o})
		}},
		"quorum": {"wait", func(pools []lockmigrate.Pool, o lockmigrate.Observer) (lockmigrate.Locker, error) {
			return quorum.New(pools, modern.Options{Observer: o})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			world.Run(t, 1, func(w *world.World) {
				t := w.T // the bubble's
				metrics, observe := prommetrics.New()
				locker, err := kind.open([]lockmigrate.Pool{w.Server().Pool(), w.Server().Pool(), w.Server().Pool()}, observe)
				require.NoError(t, err)
				const turns = 5
				for range turns {
					time.Sleep(5 * time.Second) // the turn before is forgotten
					first, err := locker.Acquire(t.Context(), name)
					require.NoError(t, err)
					ended := make(chan error, 1)
					go func() { ended <- locker.Do(t.Context(), name, func(context.Context) error { return nil }) }()
					time.Sleep(time.Second) // it has found the key taken
					require.NoError(t, first.Release(t.Context()))
					require.NoError(t, <-ended)
				}
				got := values(t, metrics)
				count := func(name string) int { return int(got["lockmigrate_"+name]) }
				waited, handed := count("acquired_total wait"), count("acquired_total handed")
				assert.Equal(t, []int{turns, turns, 2 * turns, 2 * turns, 0}, []int{count("acquired_total try"), waited + handed, count("released_total"), count("held_seconds"), count("held")})
				// Who did not listen yet when it stood in line asks once more, which is a wait: now and then.
				assert.Greater(t, map[string]int{"wait": waited - turns*handed, "handed": handed}[kind.later], turns/2, "%v", got)
				if name == "compat" {
					assert.EqualValues(t, 1, got["lockmigrate_stage modern"])
				}
				require.NoError(t, locker.Close())
			})
		})
	}
}

// TestLabelsTellLockersApart: two collectors go into one registry under labels of their own.
func TestLabelsTellLockersApart(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"orders", "bills"} {
		metrics, observe := prommetrics.New(1, 2)
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"locker": name}, registry).Register(metrics))
		observe(lockmigrate.Event{Kind: lockmigrate.EventReleased, Held: 1500 * time.Millisecond})
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "lockmigrate_held_seconds" {
			require.Len(t, f.GetMetric(), 2)
			for _, m := range f.GetMetric() {
				require.Len(t, m.GetHistogram().GetBucket(), 2)
				assert.EqualValues(t, 0, m.GetHistogram().GetBucket()[0].GetCumulativeCount())
				assert.EqualValues(t, 1, m.GetHistogram().GetBucket()[1].GetCumulativeCount())
			}
			return
		}
	}
	t.Error("no lockmigrate_held_seconds")
}
