package serve

import (
	"cmp"
	"math"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// metrics serves a state to Prometheus.
func metrics(state func() State) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(state))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// collector makes metrics of a state.
type collector func() State

// Describe implements prometheus.Collector. Which metrics there are depends on what was looked at.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (state collector) Collect(to chan<- prometheus.Metric) {
	c := state()
	var is send = func(name, help string, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		named := prometheus.Labels{}
		for i := 0; i < len(labels); i += 2 {
			named[labels[i]] = strings.ToValidUTF8(labels[i+1], "\uFFFD")
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("lockmigrate_"+name, help, nil, named), kind, value)
	}
	is("up", "1 while every master can be read, and the namespace if there is one.", one(c.Error == ""))
	each(is, "commands_total", "Calls of commands since the page began, by the server's own counters; denied: SETNX and GETSET that it refused, from Redis 6.2 on.", "command", c.Totals)
	is("monitor_running", "1 while MONITOR runs on every master.", one(c.Monitor == "on"))
	is("monitor_seconds_total", "For how long MONITOR ran. Acquisitions, hazards and overlaps are counted only then.", c.Monitored)
	if c.Monitored > 0 { // else nobody has looked: a zero would say that there were none
		each(is, "acquired_total", "Acquisitions seen by MONITOR, by kind of client.", "kind", c.Acquired)
		if c.Quiet != nil {
			is("quiet_seconds", "How long MONITOR has run since it saw the last acquisition: nobody has acquired for that long.", *c.Quiet)
		}
		each(is, "hazards_total", "Hazards that happened while MONITOR ran.", "hazard", c.Hazards)
		is("overlaps_total", "Times that two held one lock while MONITOR ran.", float64(c.Overlaps))
	}
	skews := map[[2]string]float64{} // by host and dialect: ports would make a new series with every connection
	for _, c := range c.Clients {
		if id := [2]string{c.Host, c.Dialect}; c.SkewMS != nil {
			skews[id] = farther(skews[id], *c.SkewMS/1000)
		}
	}
	for id, seconds := range skews {
		is("client_skew_seconds", "A host's clock less the server's; of several clients the one that is farthest off.", seconds, "host", id[0], "dialect", id[1])
	}
	if !c.Locks.At.IsZero() { // there was a census
		each(is, "locks", "Lock keys at the last census, by state.", "state", c.Locks.ByState)
		is("keys_unread", "Keys that the last census could not read.", float64(c.Locks.Unread))
		is("census_timestamp_seconds", "When the last census was, by this host's clock.", float64(c.Locks.At.Unix()))
	}
	n := c.Namespace
	if n == nil {
		return
	}
	for s := stages.Legacy; stages.Valid(s); s++ {
		is("stage", "1 for the namespace's stage, 0 for the others.", one(s.String() == n.Stage), "namespace", n.Namespace, "stage", s.String())
	}
	is("epoch", "The namespace's epoch.", float64(n.Epoch), "namespace", n.Namespace)
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
	each(is, "members", "Members by the stage that they run.", "stage", counts, "namespace", n.Namespace)
	is("members_silent", "Members that have not reported within their lease.", float64(silent), "namespace", n.Namespace)
	is("members_behind", "Members that live and do not run the namespace's epoch.", float64(behind), "namespace", n.Namespace)
	each(is, "member_seen_seconds", "Time since the last report of a member, the longest of each host.", "host", seen, "namespace", n.Namespace)
	each(is, "member_skew_seconds", "A member's clock less the server's, the largest of each host.", "host", clocks, "namespace", n.Namespace)
}

// send sends a sample. The labels are names, each before its value.
type send func(name, help string, value float64, labels ...string)

// each sends a sample for each entry of a map, whose keys are values of a label.
func each[K ~string, N int | int64 | float64](is send, name, help, label string, all map[K]N, labels ...string) {
	for key, n := range all {
		is(name, help, float64(n), append([]string{label, string(key)}, labels...)...)
	}
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
