package main

import (
	"cmp"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newDocsCommand writes what a package of this program installs beside it: manual pages and completions.
func newDocsCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "docs [flags]", Short: "Write manual pages and shell completions", Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true
			man, completions := filepath.Join(out, "man"), filepath.Join(out, "completions")
			header := &doc.GenManHeader{Section: "1", Source: "lockmigrate " + buildVersion().Version, Manual: "lockmigrate"}
			err := cmp.Or(os.MkdirAll(man, 0o755), os.MkdirAll(completions, 0o755))
			if err == nil {
				err = cmp.Or(doc.GenManTree(root, header, man), root.GenBashCompletionFileV2(filepath.Join(completions, "lockmigrate.bash"), true),
					root.GenZshCompletionFile(filepath.Join(completions, "_lockmigrate")), root.GenFishCompletionFile(filepath.Join(completions, "lockmigrate.fish"), true))
			}
			if err != nil {
				return failedError("check the folder", "%w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "dist-docs", "the `FOLDER` to write into")
	return cmd
}
