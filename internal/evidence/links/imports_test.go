package links

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// layers lists the packages from the lowest layer up. A folder stands for everything below it, except where a longer name has a
// layer of its own. A package imports packages of its own folder, and of lower layers; never of higher ones.
var layers = [][]string{
	{".", "internal/glob", "internal/servers", "internal/page", "internal/protocol", "internal/scripts", "pool/rawconn", "internal/operate/profile"},
	{"internal/topology", "internal/simulate"},
	{"internal/wire"},
	{"internal/client", "internal/stages", "pool", "prommetrics"},
	{"legacy", "modern"},
	{"compat"},
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
	for line := range strings.Lines(list(t, "{{.ImportPath}} {{join .Imports \" \"}}")) {
		paths := strings.Fields(line)
		from, _ := folder(paths[0])
		from = name(from)
		above, own := layerOf(from)
		if !assert.GreaterOrEqual(t, above, 0, "%s has no layer", from) {
			continue
		}
		public := above <= 5 && !strings.HasPrefix(from, "internal/simulate") && from != "prommetrics"
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
