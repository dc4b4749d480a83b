package deploy_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/prommetrics"
)

// families are the metrics that are exported, each with its labels.
type families map[string][]string

func (f families) add(name string, labels ...string) {
	for _, label := range labels {
		if !slices.Contains(f[name], label) {
			f[name] = append(f[name], label)
		}
	}
	if f[name] == nil {
		f[name] = []string{}
	}
}

var (
	sample    = regexp.MustCompile(`(?m)^(lockmigrate_\w+)(?:\{(.*)\})? `)
	labelled  = regexp.MustCompile(`(\w+)="`)
	described = regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{(.*)\}\}`)
	selected  = regexp.MustCompile(`(lockmigrate_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*[=!]`)
	grouped   = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legend    = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// scraped adds the metrics of a page in Prometheus' text format.
func (f families) scraped(text string) {
	for _, m := range sample.FindAllStringSubmatch(text, -1) {
		f.add(m[1])
		for _, label := range labelled.FindAllStringSubmatch(m[2], -1) {
			f.add(m[1], label[1])
		}
	}
}

// exported are the metrics of package prommetrics, as its collector describes them, and of serve when everything has happened.
func exported(t *testing.T) families {
	t.Helper()
	all := families{}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		metrics, _ := prommetrics.New()
		metrics.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		m := described.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		all.add(m[1], strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })...)
		for _, suffix := range []string{"_bucket", "_sum", "_count"} { // of a histogram
			if strings.HasSuffix(m[1], "_seconds") {
				all.add(m[1]+suffix, append(all[m[1]], "le")...)
			}
		}
	}
	require.NotEmpty(t, all)
	skew, quiet := -5.0, 1.0
	state := serve.State{
		Monitored: 1, Quiet: &quiet, Overlaps: 1, Totals: map[string]float64{"denied": 1, "setnx": 1, "getset": 1}, Acquired: map[string]int64{"legacy": 1},
		Hazards: map[string]int64{"clobber": 1}, Clients: []observe.Row{{Host: "h", Dialect: "jedis-ms", SkewMS: &skew}},
		Locks:     serve.Locks{At: time.Now(), ByState: map[string]int64{"ghost": 1}},
		Namespace: &stages.Document{Namespace: "orders", Stage: "bridge", Members: []stages.MemberDocument{{Info: stages.Info{Host: "h"}, Stage: "bridge"}}},
	}
	var page bytes.Buffer
	require.NoError(t, serve.WriteMetrics(&page, state))
	all.scraped(page.String())
	return all
}

// asksForWhatExists: metrics and labels of alerts and dashboard are exported by somebody.
func asksForWhatExists(t *testing.T, all families) {
	t.Helper()
	type ask struct{ expr, legend string }
	var asks []ask
	for _, a := range alerts(t) {
		asks = append(asks, ask{a.Expr, ""})
	}
	for _, q := range queries(t) {
		asks = append(asks, ask{q.Expr, q.LegendFormat})
	}
	names := 0
	for _, a := range asks {
		known := []string{"job", "instance"} // Prometheus' own
		for _, m := range selected.FindAllStringSubmatch(a.expr, -1) {
			names++
			labels, found := all[m[1]]
			assert.True(t, found, "nobody exports %s: %s", m[1], a.expr)
			known = append(known, labels...)
			for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
				assert.Contains(t, labels, label[1], "%s has no such label: %s", m[1], a.expr)
			}
		}
		used := legend.FindAllStringSubmatch(a.legend, -1)
		for _, by := range grouped.FindAllStringSubmatch(a.expr, -1) {
			for _, label := range strings.Split(by[1], ",") {
				used = append(used, []string{"", strings.TrimSpace(label)})
			}
		}
		for _, label := range used {
			assert.Contains(t, known, label[1], "no metric has this label: %s %s", a.expr, a.legend)
		}
	}
	assert.Greater(t, names, 20)
}
