package links

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/lockmigrate/lockmigrate"

// list is a line for each package of the workspace, bench left out.
func list(t *testing.T, format string, of ...string) string {
	t.Helper()
	command := exec.Command("go", append([]string{"list", "-f", format}, of...)...)
	command.Dir = root
	output, err := command.Output()
	require.NoError(t, err)
	return string(output)
}

// required is a line of a go.mod: a module and its version.
var required = regexp.MustCompile(`(?m)^(?:require |\t)(\S+) (v\S+)`)

// TestModulesAreInStep wants the suites to try what a user of the module gets. In a workspace the newest requirement of its
// modules counts, so a newer version in the suites' go.mod would be built into everything that they try.
func TestModulesAreInStep(t *testing.T) {
	ours, theirs := read(t, "go.mod"), read(t, "internal/evidence/suites/go.mod")
	versions, seen := map[string]string{}, 0
	for _, m := range required.FindAllStringSubmatch(ours, -1) {
		versions[m[1]] = m[2]
	}
	for _, m := range required.FindAllStringSubmatch(theirs, -1) {
		if version := versions[m[1]]; version != "" {
			seen++
			assert.Equal(t, version, m[2], "%s: give both modules one version, then run go mod tidy in both", m[1])
		}
	}
	assert.Greater(t, seen, 10, "requirements of both")
	language := regexp.MustCompile(`(?m)^go (\S+)$`)
	for _, text := range []string{theirs, read(t, "go.work")} {
		assert.Equal(t, language.FindString(ours), language.FindString(text), "the Go version")
	}
}
