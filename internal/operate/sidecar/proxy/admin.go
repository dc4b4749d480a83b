package proxy

import (
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler answers /healthz (the process lives), /readyz (ready returns nil; its error is the answer otherwise) and /metrics.
func Handler(ready func() error, collectors ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lockmigrate_sidecar_"+name, help, labels, nil)
}

var (
	connectionsDesc = desc("connections", "Clients that are connected.")
	acceptedDesc    = desc("connections_total", "Clients that have connected.")
	upDesc          = desc("upstream_up", "1 while the server can be reached and clients can connect.")
	failuresDesc    = desc("upstream_failures_total", "Clients that could not be connected to the server.")
	turnedDesc      = desc("turned_away_total", "Clients that were refused because no descriptors were left.")
	looksDesc       = desc("requests_total", "Requests on keys of the namespace, by what became of them.", "verdict")
	brokenDesc      = desc("protocol_errors_total", "Connections that Redis refuses for what they sent.")
	cutDesc         = desc("cut_total", "Connections that were ended because a request on a lock's key was too long to be looked at.")
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectionsDesc, acceptedDesc, upDesc, failuresDesc, turnedDesc, looksDesc, brokenDesc, cutDesc} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(c chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	up := 0.0
	if s.Ready() == nil {
		up = 1
	}
	gauge(upDesc, up)
	gauge(connectionsDesc, float64(s.connections()))
	counter(acceptedDesc, s.ids.Load())
	counter(failuresDesc, s.failed.Load())
	counter(turnedDesc, s.turned.Load())
	counter(brokenDesc, s.broken.Load())
	counter(cutDesc, s.tooLong.Load())
	for verdict, name := range []string{Pass: "passed", Replace: "translated", Refuse: "refused", Hold: "held", Apart: "apart", Cut: "cut"} {
		counter(looksDesc, s.rewritten[verdict].Load(), name)
	}
}

func (s *Server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
