// Package prommetrics counts what happens to locks of all kinds for Prometheus. A service that does not import it does not
// depend on the client library.
//
//	metrics, observe := prommetrics.New()
//	prometheus.MustRegister(metrics)
//	locker, err := modern.New(pool, modern.Options{Observer: observe})
//
// Each label has a few values only. Keys are no labels: they may be as many as there are orders.
package prommetrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/lockmigrate/lockmigrate"
)

// collector observes locks. Its metrics are in a registry of their own, which is a prometheus.Collector.
type collector struct {
	acquired *prometheus.CounterVec
	waited   prometheus.Counter
	released prometheus.Counter
	renewed  prometheus.Counter
	lost     *prometheus.CounterVec
	failed   *prometheus.CounterVec
	held     prometheus.Gauge
	last     prometheus.Gauge
	waits    *prometheus.HistogramVec
	holds    prometheus.Histogram
	renewals prometheus.Histogram
	mode     *prometheus.GaugeVec
	stage    *prometheus.GaugeVec
}

const namespace = "lockmigrate"

// New returns a collector, and the observer that it counts for: one pair for all Lockers of a service, or one for each. It registers
// nothing. The buckets are those of waits and holds, in seconds; none: 1 ms to about 4 min, by fours.
//
// To tell several Lockers apart, register each collector with labels of its own:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"locker": "orders"}, prometheus.DefaultRegisterer).MustRegister(metrics)
func New(buckets ...float64) (prometheus.Collector, lockmigrate.Observer) {
	if buckets == nil {
		buckets = prometheus.ExponentialBuckets(0.001, 4, 10)
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}
	}
	registry := prometheus.NewRegistry()
	all := promauto.With(registry)
	c := &collector{
		acquired: all.NewCounterVec(counter("acquired_total", "Locks acquired, by how: first try, after a wait, or handed over by the holder."), []string{"how"}),
		waited:   all.NewCounter(counter("not_acquired_total", "Tries and waits that ended without the lock.")),
		released: all.NewCounter(counter("released_total", "Locks given back.")),
		renewed:  all.NewCounter(counter("renewed_total", "Leases extended.")),
		lost:     all.NewCounterVec(counter("lost_total", "Locks lost while they were held, by reason: deadline, max-hold, taken, displaced, closed."), []string{"reason"}),
		failed:   all.NewCounterVec(counter("failed_total", "Commands that failed, by operation and whether the outcome is unknown."), []string{"op", "unknown"}),
		last:     all.NewGauge(gauge("last_acquired_timestamp_seconds", "When a lock was acquired last, by this host's clock; 0: never.")),
		held:     all.NewGauge(gauge("held", "Locks held now.")),
		waits:    all.NewHistogramVec(histogram("wait_seconds", "From the call to the lock, or to giving up.", buckets), []string{"outcome"}),
		holds:    all.NewHistogram(histogram("held_seconds", "How long locks were held.", buckets)),
		renewals: all.NewHistogram(histogram("renewal_seconds", "Round trip of renewals.", prometheus.ExponentialBuckets(0.0001, 4, 9))),
		mode:     all.NewGaugeVec(gauge("waiting_mode", "1 for what wakes waiters at present: idle, polling, messages, tracking."), []string{"mode"}),
		stage:    all.NewGaugeVec(gauge("stage", "1 for the stage that a Locker of package compat runs: legacy, bridge, modern; nothing while it runs none."), []string{"stage"}),
	}
	for _, r := range []lockmigrate.Reason{
		lockmigrate.ReasonDeadline, lockmigrate.ReasonMaxHold, lockmigrate.ReasonTaken, lockmigrate.ReasonDisplaced, lockmigrate.ReasonClosed,
	} {
		c.lost.WithLabelValues(string(r)) // a series that begins with the first loss would have no increase
	}
	return registry, c.observe
}

func (c *collector) observe(e lockmigrate.Event) {
	switch e.Kind {
	case lockmigrate.EventAcquired:
		c.acquired.WithLabelValues(e.How).Inc()
		c.waits.WithLabelValues("acquired").Observe(e.Took.Seconds())
		c.held.Inc()
		c.last.SetToCurrentTime()
	case lockmigrate.EventWaited:
		c.waited.Inc()
		c.waits.WithLabelValues("not_acquired").Observe(e.Took.Seconds())
	case lockmigrate.EventReleased:
		c.released.Inc()
		c.holds.Observe(e.Held.Seconds())
		c.held.Dec()
	case lockmigrate.EventRenewed:
		c.renewed.Inc()
		c.renewals.Observe(e.Took.Seconds())
	case lockmigrate.EventLost:
		var lost *lockmigrate.Error
		reason := lockmigrate.Reason("")
		if errors.As(e.Err, &lost) {
			reason = lost.Reason
		}
		c.lost.WithLabelValues(string(reason)).Inc()
		c.holds.Observe(e.Held.Seconds())
		c.held.Dec()
	case lockmigrate.EventFailed:
		unknown := "no"
		if errors.Is(e.Err, lockmigrate.ErrUnknownOutcome) {
			unknown = "yes"
		}
		c.failed.WithLabelValues(e.Op, unknown).Inc()
	case lockmigrate.EventMode:
		c.mode.Reset()
		c.mode.WithLabelValues(e.Mode).Set(1)
	case lockmigrate.EventStage:
		c.stage.Reset()
		if e.Err == nil {
			c.stage.WithLabelValues(e.Stage.String()).Set(1)
		}
	}
}
