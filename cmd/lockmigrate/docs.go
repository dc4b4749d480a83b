package main

import (
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
			man, completions := filepath.Join(out, "man"), filepath.Join(out, "completions")
			for _, folder := range []string{man, completions} {
				if err := os.MkdirAll(folder, 0o755); err != nil {
					return failedError("check the folder", "%w", err)
				}
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "LOCKMIGRATE", Section: "1", Source: buildVersion().Version}, man); err != nil {
				return err
			}
			for file, write := range map[string]func(string) error{
				"lockmigrate.bash": func(f string) error { return root.GenBashCompletionFileV2(f, true) },
				"_lockmigrate":     root.GenZshCompletionFile,
				"lockmigrate.fish": func(f string) error { return root.GenFishCompletionFile(f, true) },
			} {
				if err := write(filepath.Join(completions, file)); err != nil {
					return failedError("check the folder", "%w", err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "dist-docs", "the `FOLDER` to write into")
	return cmd
}
