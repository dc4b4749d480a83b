package serve

import (
	"cmp"
	"io"
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// WriteMetrics writes a state in Prometheus' text format.
func WriteMetrics(w io.Writer, s State) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s})
	all, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, family := range all {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return err
		}
	}
	return nil
}

// collector makes metrics of a state.
type collector struct{ State }

// Describe implements prometheus.Collector. Which metrics there are depends on what was looked at.
func (collector) Describe(chan<- *prometheus.Desc) {}

// family is a metric's name, what it means, and its labels.
type family struct {
	to   chan<- prometheus.Metric
	kind prometheus.ValueType
	desc *prometheus.Desc
}

func (f family) is(value float64, labels ...string) {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
	}
	f.to <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

// each is a sample for each entry of a map, whose keys are values of the last label.
func each[N int | int64 | float64](f family, all map[string]N, labels ...string) {
	for key, n := range all {
		f.is(float64(n), append(labels[:len(labels):len(labels)], key)...)
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(name, help string, labels ...string) family {
		return family{to, prometheus.GaugeValue, prometheus.NewDesc(name, help, labels, nil)}
	}
	counter := func(name, help string, labels ...string) family {
		return family{to, prometheus.CounterValue, prometheus.NewDesc(name, help, labels, nil)}
	}
	gauge("lockmigrate_up", "1 while every master can be read, and the namespace if there is one.").is(one(c.Error == ""))
	each(counter("lockmigrate_commands_total", "Calls of commands since the page began, by the server's own counters; denied: SETNX and GETSET that it refused, from Redis 6.2 on.", "command"), c.Totals)
	gauge("lockmigrate_monitor_running", "1 while MONITOR runs on every master.").is(one(c.Monitor == "on"))
	counter("lockmigrate_monitor_seconds_total", "For how long MONITOR ran. Acquisitions, hazards and overlaps are counted only then.").is(c.Monitored)
	if c.Monitored > 0 { // else nobody has looked: a zero would say that there were none
		each(counter("lockmigrate_acquired_total", "Acquisitions seen by MONITOR, by kind of client.", "kind"), c.Acquired)
		if c.Quiet != nil {
			gauge("lockmigrate_quiet_seconds", "How long MONITOR has run since it saw the last acquisition: nobody has acquired for that long.").is(*c.Quiet)
		}
		each(counter("lockmigrate_hazards_total", "Hazards that happened while MONITOR ran.", "hazard"), c.Hazards)
		counter("lockmigrate_overlaps_total", "Times that two held one lock while MONITOR ran.").is(float64(c.Overlaps))
	}
	skews := map[[2]string]float64{} // by host and dialect: ports would make a new series with every connection
	for _, c := range c.Clients {
		if id := [2]string{c.Host, c.Dialect}; c.SkewMS != nil {
			skews[id] = farther(skews[id], *c.SkewMS/1000)
		}
	}
	skew := gauge("lockmigrate_client_skew_seconds", "A host's clock less the server's; of several clients the one that is farthest off.", "host", "dialect")
	for id, seconds := range skews {
		skew.is(seconds, id[0], id[1])
	}
	if !c.Locks.At.IsZero() { // there was a census
		each(gauge("lockmigrate_locks", "Lock keys at the last census, by state.", "state"), c.Locks.ByState)
		gauge("lockmigrate_keys_unread", "Keys that the last census could not read.").is(float64(c.Locks.Unread))
		gauge("lockmigrate_census_timestamp_seconds", "When the last census was, by this host's clock.").is(float64(c.Locks.At.Unix()))
	}
	n := c.Namespace
	if n == nil {
		return
	}
	stage := gauge("lockmigrate_stage", "1 for the namespace's stage, 0 for the others.", "namespace", "stage")
	for s := stages.Legacy; stages.Valid(s); s++ {
		stage.is(one(s.String() == n.Stage), n.Namespace, s.String())
	}
	gauge("lockmigrate_epoch", "The namespace's epoch.", "namespace").is(float64(n.Epoch), n.Namespace)
	var silent, behind int
	counts, seen, clocks := map[string]int{}, map[string]float64{}, map[string]float64{}
	for _, member := range n.Members {
		counts[cmp.Or(member.Stage, "none")]++
		if member.Left < 0 {
			silent++
		} else if member.Epoch != n.Epoch {
			behind++
		}
		seen[member.Host] = max(seen[member.Host], float64(member.Seen)/1000)
		clocks[member.Host] = farther(clocks[member.Host], float64(member.Skew)/1000)
	}
	each(gauge("lockmigrate_members", "Members by the stage that they run.", "namespace", "stage"), counts, n.Namespace)
	gauge("lockmigrate_members_silent", "Members that have not reported within their lease.", "namespace").is(float64(silent), n.Namespace)
	gauge("lockmigrate_members_behind", "Members that live and do not run the namespace's epoch.", "namespace").is(float64(behind), n.Namespace)
	each(gauge("lockmigrate_member_seen_seconds", "Time since the last report of a member, the longest of each host.", "namespace", "host"), seen, n.Namespace)
	each(gauge("lockmigrate_member_skew_seconds", "A member's clock less the server's, the largest of each host.", "namespace", "host"), clocks, n.Namespace)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// farther is the one of two numbers that is farther from zero.
func farther(a, b float64) float64 {
	if math.Abs(b) > math.Abs(a) {
		return b
	}
	return a
}
