package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

func newScriptsCommand(env *environment) *cobra.Command {
	out := ""
	cmd := &cobra.Command{
		Use:   "scripts [flags]",
		Short: "Print the server scripts of a member, for other languages",
		RunE: func(*cobra.Command, []string) error {
			var files []scriptFile
			for _, s := range []*scripts.Script{
				scripts.StageJoin, scripts.StageLeave, scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease,
				scripts.GatedWrite, scripts.GatedCompareSet, scripts.CompareDel,
			} {
				files = append(files, scriptFile{s.Name, s.Digest, len(s.Keys), s.Source})
			}
			if out != "" {
				return writeScripts(env, out, files)
			}
			return printScripts(env, files)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "write one file for each into the folder `DIR`, instead of printing")
	return cmd
}

// scriptFile is one script that another library needs.
type scriptFile struct {
	Name   string `json:"name"`
	Digest string `json:"sha1"` // for EVALSHA
	Keys   int    `json:"keys"`
	Text   string `json:"text,omitempty"` // none where it is written to a folder
}

// printScripts puts a line between two scripts that is no comment of Lua, so that nobody pipes them all into one file unawares.
func printScripts(env *environment, files []scriptFile) error {
	return env.print(map[string]any{"files": files}, func(b *strings.Builder) {
		for _, f := range files {
			fmt.Fprintf(b, "==> %s  (EVALSHA %s, %d keys) <==\n%s\n", f.Name, f.Digest, f.Keys, f.Text)
		}
		b.WriteString("Libraries that have them: clients/java (Jedis, Lettuce) and clients/python (redis-py, asyncio) of the repository.\n" +
			"What a port must do: docs/protocol.md.\n")
	})
}

func writeScripts(env *environment, dir string, files []scriptFile) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failedError("choose another --out", "create the folder: %w", err)
	}
	var names []string
	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		if err := os.WriteFile(path, []byte(f.Text), 0o644); err != nil {
			return failedError("choose another --out", "write a script: %w", err)
		}
		names, files[i].Text = append(names, path), ""
	}
	return env.print(map[string]any{"folder": dir, "files": files}, func(b *strings.Builder) { fmt.Fprintln(b, strings.Join(names, "\n")) })
}
