package links

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`\blockmigrate_[a-z_]+\b`)

// TestDeployment keeps the files below deploy true: they can be read, the metrics that alerts and dashboards ask for exist in
// the code, every alert has a case in alerts_test.yml, and the command lines in them are accepted.
func TestDeployment(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		return string(text)
	}
	code := read("internal/operate/serve/metrics.go")
	service := read("prommetrics/prommetrics.go")
	sidecar := read("internal/operate/sidecar/counts.go") + read("internal/operate/sidecar/proxy/admin.go") + read("cmd/lockmigrate/sidecar.go")

	alerts, dashboard := read("deploy/prometheus/alerts.yml"), read("deploy/grafana/dashboard.json")
	names := append(metricName.FindAllString(alerts, -1), metricName.FindAllString(dashboard, -1)...)
	assert.Greater(t, len(names), 20)
	for _, name := range names {
		short := strings.TrimPrefix(name, "lockmigrate_")
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			short = strings.TrimSuffix(short, suffix)
		}
		ofSidecar := strings.TrimPrefix(name, "lockmigrate_sidecar_")
		known := strings.Contains(sidecar, `"`+ofSidecar+`"`) || strings.Contains(sidecar, `"`+strings.TrimSuffix(ofSidecar, "_total")+`"`)
		assert.True(t, strings.Contains(code, `"`+name+`"`) || strings.Contains(service, `("`+short+`"`) || ofSidecar != name && known, "no code writes %s", name)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(alerts), &rules))
	cases := read("deploy/prometheus/alerts_test.yml")
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			assert.NotEmpty(t, rule.Expr, rule.Alert)
			assert.Contains(t, cases, "alertname: "+rule.Alert+",", "a case for the alert")
		}
	}
	assert.True(t, json.Valid([]byte(dashboard)))

	program := filepath.Join(t.TempDir(), "lockmigrate")
	build := exec.Command("go", "build", "-o", program, "./cmd/lockmigrate")
	build.Dir = root
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	lines := 0
	files, err := filepath.Glob(filepath.Join(root, "deploy", "*", "*.y*ml"))
	require.NoError(t, err)
	files = append(files, filepath.Join(root, "deploy", "compose.yaml"), filepath.Join(root, ".goreleaser.yaml"))
	more, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	require.NoError(t, err)
	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var doc any
			if err := documents.Decode(&doc); errors.Is(err, io.EOF) {
				break
			} else if !assert.NoError(t, err, file) {
				break
			}
			for _, args := range commandLines(doc) {
				lines++
				out, err := exec.Command(program, append(args, "--help")...).CombinedOutput()
				assert.NoError(t, err, "%s: %q: %s", file, args, out)
			}
		}
	}
	assert.GreaterOrEqual(t, lines, 4, "command lines that were tried")
}

// commandLines finds the arguments of this program's containers.
func commandLines(doc any) (lines [][]string) {
	switch v := doc.(type) {
	case []any:
		for _, item := range v {
			lines = append(lines, commandLines(item)...)
		}
	case map[string]any:
		image, _ := v["image"].(string)
		_, built := v["build"]
		for _, name := range []string{"args", "command"} {
			list, ok := v[name].([]any)
			if !ok || !strings.HasPrefix(image, "lockmigrate:") && !built {
				continue
			}
			var words []string
			for _, word := range list {
				words = append(words, word.(string))
			}
			lines = append(lines, words)
		}
		for _, item := range v {
			lines = append(lines, commandLines(item)...)
		}
	}
	return lines
}
