// Package deploy_test tries what the folder deploy offers: the image's binary and its command lines, the manifests, alerts and dashboard.
package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/prommetrics"
)

var root = filepath.Join("..", "..", "..", "..")

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	return string(text)
}

// documents are the YAML documents of a file.
func documents(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(read(t, file))); ; {
		var doc map[string]any
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, file)
		all = append(all, doc)
	}
}

func manifests(t *testing.T) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(root, "deploy", "kubernetes", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, file := range all {
		files = append(files, "deploy/kubernetes/"+filepath.Base(file))
	}
	return files
}

// schema is what a document must look like; at names a definition in it. The schemas are Kubernetes 1.29's, the oldest version that
// sidecar.yaml works on, less what no manifest here uses; the one of compose-go 2.16.2; and the types of Grafana 13.2.3's dashboards. All
// are without descriptions.
func schema(t *testing.T, file, at string) *jsonschema.Schema {
	t.Helper()
	compiled, err := jsonschema.NewCompiler().Compile(filepath.Join("testdata", file) + at)
	require.NoError(t, err)
	return compiled
}

// fits judges a document as its JSON form.
func fits(t *testing.T, s *jsonschema.Schema, doc map[string]any) error {
	t.Helper()
	text, err := json.Marshal(doc)
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return s.Validate(value)
}

// TestManifests holds the Kubernetes examples and compose.yaml against their schemas. A field that the schema does not know is an error.
func TestManifests(t *testing.T) {
	kinds := map[string]string{"Deployment": "io.k8s.api.apps.v1.Deployment", "StatefulSet": "io.k8s.api.apps.v1.StatefulSet", "Job": "io.k8s.api.batch.v1.Job", "CronJob": "io.k8s.api.batch.v1.CronJob", "Service": "io.k8s.api.core.v1.Service"}
	for _, file := range manifests(t) {
		for _, doc := range documents(t, file) {
			s := schema(t, "kubernetes.schema.json", "#/$defs/"+kinds[doc["kind"].(string)])
			assert.NoError(t, fits(t, s, doc), file)
			doc["spec"].(map[string]any)["selektor"] = nil
			assert.Error(t, fits(t, s, doc), "%s: a field that nobody knows", file)
		}
	}
	compose := documents(t, "deploy/compose.yaml")[0]
	s := schema(t, "compose.schema.json", "")
	assert.NoError(t, fits(t, s, compose))
	compose["services"].(map[string]any)["page"].(map[string]any)["port"] = "8787"
	assert.Error(t, fits(t, s, compose), "a field that nobody knows")

	for _, file := range []string{".goreleaser.yaml", ".github/workflows/ci.yml", ".github/workflows/release.yml"} {
		assert.NotEmpty(t, documents(t, file), file) // make check runs actionlint; docs/deploy.md says who checked the rest
	}
	image := regexp.MustCompile(`FROM docker\.io/library/golang:([0-9.]+) AS`).FindStringSubmatch(read(t, "deploy/Dockerfile"))
	module := regexp.MustCompile(`(?m)^go ([0-9]+\.[0-9]+)`).FindStringSubmatch(read(t, "go.mod"))
	require.NotNil(t, image)
	assert.Equal(t, module[1], image[1], "the image is built with the Go version of go.mod")
}

// TestDashboard holds the dashboard against what Grafana knows. A field that it does not know is an error: Grafana would drop it.
func TestDashboard(t *testing.T) {
	s := schema(t, "grafana.schema.json", "")
	var dashboard map[string]any
	require.NoError(t, json.Unmarshal([]byte(read(t, "deploy/grafana/dashboard.json")), &dashboard))
	assert.NoError(t, fits(t, s, dashboard))
	panel := dashboard["panels"].([]any)[0].(map[string]any)
	panel["gridPoss"] = nil
	assert.Error(t, fits(t, s, dashboard), "a field that nobody knows")
	delete(panel, "gridPoss")
	delete(panel["gridPos"].(map[string]any), "w")
	assert.Error(t, fits(t, s, dashboard), "a panel without a width")
}

// promtool runs it in a folder.
func promtool(t *testing.T, folder string, args ...string) {
	t.Helper()
	command := exec.Command("promtool", args...)
	command.Dir = folder
	output, err := command.CombinedOutput()
	assert.NoError(t, err, "promtool %s: %s", strings.Join(args, " "), output)
}

// TestAlerts: each alert has a case, and the cases come out as promtool computes them. The configuration is one that Prometheus takes.
func TestAlerts(t *testing.T) {
	redistest.Need(t, redistest.Checkers)
	cases := read(t, "deploy/prometheus/alerts_test.yml")
	for _, rule := range alerts(t) {
		assert.NotEmpty(t, rule.Expr, rule.Alert)
		assert.Contains(t, cases, "alertname: "+rule.Alert+",", "a case for the alert")
	}
	folder := filepath.Join(root, "deploy", "prometheus")
	promtool(t, folder, "check", "rules", "alerts.yml")
	promtool(t, folder, "test", "rules", "alerts_test.yml")
	promtool(t, folder, "check", "config", "--syntax-only", "prometheus.yml")
}

// TestDashboardsQueries can be parsed, as recording rules of promtool.
func TestDashboardsQueries(t *testing.T) {
	redistest.Need(t, redistest.Checkers)
	type rule struct{ Record, Expr string }
	var rules []rule
	for _, query := range queries(t) {
		rules = append(rules, rule{"q", strings.ReplaceAll(query.Expr, "$namespace", ".+")})
	}
	require.Greater(t, len(rules), 10)
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	require.NoError(t, err)
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "queries.yml"), text, 0o600))
	promtool(t, folder, "check", "rules", "queries.yml")
}

// TestShell runs shellcheck over every shell script.
func TestShell(t *testing.T) {
	redistest.Need(t, redistest.Checkers)
	list := exec.Command("git", "grep", "-lE", `^#!.*\b(ba)?sh\b`, "--", ".", ":!*.md", ":!*.go", ":!*.txtar")
	list.Dir = root
	files, err := list.Output()
	require.NoError(t, err)
	scripts := strings.Fields(string(files))
	require.Greater(t, len(scripts), 4)
	command := exec.Command("shellcheck", scripts...)
	command.Dir = root
	output, err := command.CombinedOutput()
	assert.NoError(t, err, "%s", output)
}

type alert struct{ Alert, Expr string }

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "deploy/prometheus/alerts.yml")), &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

type query struct{ Expr, LegendFormat string }

func queries(t *testing.T) (all []query) {
	t.Helper()
	var board struct{ Panels []struct{ Targets []query } }
	require.NoError(t, json.Unmarshal([]byte(read(t, "deploy/grafana/dashboard.json")), &board))
	for _, panel := range board.Panels {
		all = append(all, panel.Targets...)
	}
	return all
}

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
		Locks:     serve.Locks{At: time.Now(), Summary: census.Summary{ByState: map[census.State]int64{"ghost": 1}}},
		Namespace: &stages.Document{Namespace: "orders", Stage: "bridge", Members: []stages.MemberDocument{{Info: stages.Info{Host: "h"}, Stage: "bridge"}}},
	}
	page := httptest.NewRecorder()
	serve.Handler(func() serve.State { return state }, "", []string{"localhost"}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
	all.scraped(page.Body.String())
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
