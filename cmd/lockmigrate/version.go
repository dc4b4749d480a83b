package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// versionInfo is what `version --json` prints.
type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes of its own
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			return env.print(v, func(b *strings.Builder) {
				b.WriteString("lockmigrate " + v.Version)
				if v.Commit != "" {
					b.WriteString(" " + v.Commit[:min(12, len(v.Commit))])
				}
				fmt.Fprintf(b, " %s %s\n", v.Go, v.Platform)
			})
		},
	}
}

// buildVersion is the version that the build has set, or what the Go command recorded in the binary.
func buildVersion() versionInfo {
	v := versionInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(stages.Release(), info.Main.Version, v.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
