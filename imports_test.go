package lockmigrate_test

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// layers lists the packages from the lowest layer up. A folder stands for everything below it, except where a longer name has a
// layer of its own. A package imports packages of its own folder, and of lower layers; never of higher ones.
var layers = [][]string{
	{".", "internal/protocol", "internal/redis/scripts", "pool/rawconn", "internal/stages/profile"},
	{"internal/redis", "internal/simulate"},
	{"internal/client", "internal/stages", "pool", "prommetrics"},
	{"legacy", "modern", "locktest"},
	{"compat", "handover"},
	{"examples"},
	{"internal/operate"},
	{"cmd"},
	{"internal/evidence"},
}

func layerOf(folder string) (layer int, own string) {
	layer = -1
	for i, folders := range layers {
		for _, r := range folders {
			if (folder == r || r != "." && strings.HasPrefix(folder, r+"/")) && len(r) > len(own) {
				layer, own = i, r
			}
		}
	}
	return layer, own
}

// TestImportsPointDown keeps the layers, and two rules beside them: a lock package needs redigo and the standard library
// only, and nothing but the commands and tests uses the simulator.
func TestImportsPointDown(t *testing.T) {
	folder := func(path string) (string, bool) {
		rest, ours := strings.CutPrefix(path, module)
		return "." + rest, ours
	}
	name := func(folder string) string { return strings.TrimPrefix(folder, "./") }
	seen := 0
	for line := range strings.Lines(list(t, "{{.ImportPath}} {{join .Imports \" \"}}", "work")) {
		paths := strings.Fields(line)
		from, _ := folder(paths[0])
		from = name(from)
		above, own := layerOf(from)
		if !assert.GreaterOrEqual(t, above, 0, "%s has no layer", from) {
			continue
		}
		public := above <= 4 && !strings.HasPrefix(from, "internal/simulate") && from != "prommetrics" &&
			from != "pool/goredis" && from != "pool/rueidis" // modules of their own, for another client
		for _, path := range paths[1:] {
			to, ours := folder(path)
			if to = name(to); !ours {
				if strings.Contains(strings.SplitN(path, "/", 2)[0], ".") && public {
					assert.True(t, strings.HasPrefix(path, "github.com/gomodule/redigo/"), "%s imports %s", from, path)
				}
				continue
			}
			seen++
			below, other := layerOf(to)
			assert.True(t, below < above || below == above && (own == other || above == 0), "%s imports %s, which is not below it", from, to)
			if strings.HasPrefix(to, "internal/simulate") {
				assert.True(t, strings.HasPrefix(from, "internal/simulate") || strings.HasPrefix(from, "cmd/") || strings.HasPrefix(from, "internal/evidence"), "%s imports the simulator", from)
			}
		}
	}
	assert.Greater(t, seen, 100, "imports that were looked at")
}

// folderName is a folder in the first column of the table of packages.
var folderName = regexp.MustCompile("`([^`]+)`")

// TestEveryPackageHasARow wants a row of ARCHITECTURE.md for each folder that holds Go code of the workspace, and a
// folder for each row.
func TestEveryPackageHasARow(t *testing.T) {
	_, table, found := strings.Cut(read(t, "ARCHITECTURE.md"), "| folder |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	named := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		for _, m := range folderName.FindAllStringSubmatch(cells[min(1, len(cells)-1)], -1) {
			folder := path.Clean(m[1])
			assert.False(t, named[folder], "two rows for %s", folder)
			named[folder] = true
			info, err := os.Stat(folder)
			assert.True(t, err == nil && info.IsDir(), "ARCHITECTURE.md has a row for %s, which is no folder", folder)
		}
	}
	packages := packagesOf(t)
	assert.Greater(t, len(packages), 40)
	for _, folder := range packages {
		assert.True(t, named[folder], "ARCHITECTURE.md has no row for %s", folder)
	}
}

// packagesOf lists the folders of the workspace that hold Go code, tests included.
func packagesOf(t *testing.T) (folders []string) {
	t.Helper()
	for line := range strings.Lines(list(t, "{{.ImportPath}}", "work")) {
		folders = append(folders, path.Clean("."+strings.TrimPrefix(strings.TrimSpace(line), module)))
	}
	return folders
}

const module = "github.com/lockmigrate/lockmigrate"

// list is a line for each package of the workspace, bench left out.
func list(t *testing.T, format string, of ...string) string {
	t.Helper()
	output, err := exec.Command("go", append([]string{"list", "-f", format}, of...)...).Output()
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
	newest := regexp.MustCompile(`(?m)^## (\S+),`).FindStringSubmatch(read(t, "CHANGELOG.md"))
	for _, module := range []string{"pool/goredis", "pool/rueidis"} { // which are released with this one, and name it
		assert.Contains(t, read(t, module+"/go.mod"), "\tgithub.com/lockmigrate/lockmigrate v"+newest[1]+"\n")
	}
	language := regexp.MustCompile(`(?m)^go (\S+)$`)
	for _, text := range []string{theirs, read(t, "go.work")} {
		assert.Equal(t, language.FindString(ours), language.FindString(text), "the Go version")
	}
}
