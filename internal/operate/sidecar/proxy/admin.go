package proxy

import (
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler answers /healthz (the process lives), /readyz (ready returns nil; its error is the answer otherwise) and /metrics, with what collect sends.
func Handler(ready func() error, collect func(chan<- prometheus.Metric)) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(collect))
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

// collector is a function as a prometheus.Collector.
type collector func(chan<- prometheus.Metric)

func (collector) Describe(chan<- *prometheus.Desc)     {} // what there is, is known when it is collected
func (f collector) Collect(c chan<- prometheus.Metric) { f(c) }

// Metric is one of a sidecar: a counter where its name ends as a counter's does, else a gauge.
func Metric(name, help string, value float64, labels prometheus.Labels) prometheus.Metric {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	return prometheus.MustNewConstMetric(prometheus.NewDesc("lockmigrate_sidecar_"+name, help, nil, labels), kind, value)
}

// Collect sends what there is to tell of the connections.
func (s *Server) Collect(c chan<- prometheus.Metric) {
	send := func(name, help string, value int64) { c <- Metric(name, help, float64(value), nil) }
	up := int64(0)
	if s.Ready() == nil {
		up = 1
	}
	send("upstream_up", "1 while the server can be reached and clients can connect.", up)
	send("connections", "Clients that are connected.", int64(s.connections()))
	send("connections_total", "Clients that have connected.", s.ids.Load())
	send("upstream_failures_total", "Clients that could not be connected to the server.", s.failed.Load())
	send("turned_away_total", "Clients that were refused because no descriptors were left.", s.turned.Load())
	send("protocol_errors_total", "Connections that Redis refuses for what they sent.", s.broken.Load())
	send("cut_total", "Connections that were ended because a request on a lock's key was too long to be looked at.", s.tooLong.Load())
	for verdict, name := range []string{Pass: "passed", Replace: "translated", Refuse: "refused", Hold: "held", Apart: "apart", Cut: "cut"} {
		c <- Metric("requests_total", "Requests on keys of the namespace, by what became of them.", float64(s.rewritten[verdict].Load()), prometheus.Labels{"verdict": name})
	}
}

func (s *Server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
