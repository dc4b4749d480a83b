// Package prommetrics counts what happens to locks of all kinds for Prometheus. A service that does not import it does not
// depend on the client library.
//
//	metrics := prommetrics.New(prommetrics.Options{})
//	prometheus.MustRegister(metrics)
//	locker, err := modern.New(pool, modern.Options{Observer: metrics.Observe})
//
// Each label has a few values only. Keys are no labels: they may be as many as there are orders.
package prommetrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockmigrate/lockmigrate"
)

// Options of a Collector; the zero value is sensible.
type Options struct {
	Namespace   string            // before every name; zero: lockmigrate
	ConstLabels prometheus.Labels // on every metric, to tell several Lockers apart
	Buckets     []float64         // of waits and holds, in seconds; zero: 1 ms to about 4 min, by fours
}

// Collector is an Observer of locks and a prometheus.Collector. It is safe for concurrent use.
type Collector struct {
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

var _ prometheus.Collector = (*Collector)(nil)

// New returns a Collector. It registers nothing.
func New(o Options) *Collector {
	if o.Namespace == "" {
		o.Namespace = "lockmigrate"
	}
	if o.Buckets == nil {
		o.Buckets = prometheus.ExponentialBuckets(0.001, 4, 10)
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: o.Namespace, Name: name, Help: help, ConstLabels: o.ConstLabels}
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: o.Namespace, Name: name, Help: help, ConstLabels: o.ConstLabels, Buckets: buckets}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: o.Namespace, Name: name, Help: help, ConstLabels: o.ConstLabels}
	}
	c := &Collector{
		acquired: prometheus.NewCounterVec(counter("acquired_total", "Locks acquired, by how: first try, after a wait, or handed over by the holder."), []string{"how"}),
		waited:   prometheus.NewCounter(counter("not_acquired_total", "Tries and waits that ended without the lock.")),
		released: prometheus.NewCounter(counter("released_total", "Locks given back.")),
		renewed:  prometheus.NewCounter(counter("renewed_total", "Leases extended.")),
		lost:     prometheus.NewCounterVec(counter("lost_total", "Locks lost while they were held, by reason: deadline, max-hold, taken, displaced, closed."), []string{"reason"}),
		failed:   prometheus.NewCounterVec(counter("failed_total", "Commands that failed, by operation and whether the outcome is unknown."), []string{"op", "unknown"}),
		last:     prometheus.NewGauge(gauge("last_acquired_timestamp_seconds", "When a lock was acquired last, by this host's clock; 0: never.")),
		held:     prometheus.NewGauge(gauge("held", "Locks held now.")),
		waits:    prometheus.NewHistogramVec(histogram("wait_seconds", "From the call to the lock, or to giving up.", o.Buckets), []string{"outcome"}),
		holds:    prometheus.NewHistogram(histogram("held_seconds", "How long locks were held.", o.Buckets)),
		renewals: prometheus.NewHistogram(histogram("renewal_seconds", "Round trip of renewals.", prometheus.ExponentialBuckets(0.0001, 4, 9))),
		mode:     prometheus.NewGaugeVec(gauge("waiting_mode", "1 for what wakes waiters at present: idle, polling, messages, tracking."), []string{"mode"}),
		stage:    prometheus.NewGaugeVec(gauge("stage", "1 for the stage that a Locker of package compat runs: legacy, bridge, modern; nothing while it runs none."), []string{"stage"}),
	}
	for r := lockmigrate.ReasonDeadline; r <= lockmigrate.ReasonClosed; r++ {
		c.lost.WithLabelValues(r.String()) // a series that begins with the first loss would have no increase
	}
	return c
}

// Observe implements lockmigrate.Observer.
func (c *Collector) Observe(e lockmigrate.Event) {
	switch e.Kind {
	case lockmigrate.EventAcquired:
		how := "try"
		switch {
		case e.Handed:
			how = "handed"
		case e.Queued:
			how = "wait"
		}
		c.acquired.WithLabelValues(how).Inc()
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
		reason := lockmigrate.Reason(0)
		if errors.As(e.Err, &lost) {
			reason = lost.Reason
		}
		c.lost.WithLabelValues(reason.String()).Inc()
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
		c.mode.WithLabelValues(e.Mode.String()).Set(1)
	case lockmigrate.EventStage:
		c.stage.Reset()
		if e.Err == nil {
			c.stage.WithLabelValues(e.Stage.String()).Set(1)
		}
	}
}

func (c *Collector) each(do func(prometheus.Collector)) {
	for _, m := range []prometheus.Collector{
		c.acquired, c.waited, c.released, c.renewed, c.lost, c.failed, c.last, c.held, c.waits, c.holds, c.renewals, c.mode, c.stage,
	} {
		do(m)
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	c.each(func(m prometheus.Collector) { m.Describe(ch) })
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.each(func(m prometheus.Collector) { m.Collect(ch) })
}
