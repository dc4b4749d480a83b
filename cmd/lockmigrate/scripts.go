package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

func newScriptsCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "scripts",
		Short: "Print the server scripts of a member, for other languages",
		RunE: func(*cobra.Command, []string) error {
			var files []scriptFile
			for _, s := range []*scripts.Script{
				scripts.StageJoin, scripts.StageLeave, scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease,
				scripts.GatedWrite, scripts.GatedCompareSet, scripts.CompareDel,
			} {
				files = append(files, scriptFile{s.Name, s.Digest, len(s.Keys), s.Source})
			}
			return printScripts(env, files)
		},
	}
}

// scriptFile is one script that another library needs.
type scriptFile struct {
	Name   string `json:"name"`
	Digest string `json:"sha1"` // for EVALSHA
	Keys   int    `json:"keys"`
	Text   string `json:"text"`
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
