package stages

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBuild(t *testing.T) {
	dep := func(version string, replaced *debug.Module) []*debug.Module {
		return []*debug.Module{{Path: "example.com/other", Version: "v9.0.0"}, {Path: library, Version: version, Replace: replaced}}
	}
	vcs := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"-":                               nil,
		"billing@v1.4.2 (library v0.3.0)": {Main: debug.Module{Path: "example.com/billing", Version: "v1.4.2"}, Deps: dep("v0.3.0", nil)},
		"billing@0123456789ab+dirty (library v0.3.0)":      {Main: debug.Module{Path: "example.com/billing", Version: "(devel)"}, Deps: dep("v0.3.0", nil), Settings: vcs("0123456789abcdef", "true")},
		"billing@v1.4.2 (library example.com/fork v0.3.1)": {Main: debug.Module{Path: "example.com/billing", Version: "v1.4.2"}, Deps: dep("v0.3.0", &debug.Module{Path: "example.com/fork", Version: "v0.3.1"})},
		"lockmigrate@v0.3.0":                               {Main: debug.Module{Path: library, Version: "v0.3.0"}},
		"job":                                              {Path: "example.com/billing/cmd/job"},
	} {
		assert.Equal(t, want, buildOf(info).String())
	}
}

// TestRelease: the version that a build sets stands before what the Go command recorded, for this repository's programs alone.
func TestRelease(t *testing.T) {
	release = "v1.2.3"
	t.Cleanup(func() { release = "" })
	ours := &debug.BuildInfo{Main: debug.Module{Path: library, Version: "(devel)"}}
	assert.Equal(t, "lockmigrate@v1.2.3", buildOf(ours).String())
	ours.Main.Version = "v1.2.2+dirty"
	assert.Equal(t, "lockmigrate@v1.2.3", buildOf(ours).String())
	service := &debug.BuildInfo{Main: debug.Module{Path: "example.com/billing", Version: "v2.0.0"}, Deps: []*debug.Module{{Path: library, Version: "v1.0.0"}}}
	assert.Equal(t, "billing@v2.0.0 (library v1.0.0)", buildOf(service).String())
}
