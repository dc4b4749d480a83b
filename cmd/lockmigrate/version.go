package main

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// versionInfo is what `version --json` prints.
type versionInfo struct {
	Version  string `json:"version"` // of a build without one: the commit, and whether the tree had changes of its own
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{buildVersion(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return env.print(v, func(b *strings.Builder) {
				fmt.Fprintf(b, "lockmigrate %s %s %s\n", v.Version, v.Go, v.Platform)
			})
		},
	}
}

func buildVersion() string { return cmp.Or(stages.Version(), "(devel)") }
