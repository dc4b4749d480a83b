package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"

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
			files := map[string]func(*bytes.Buffer) error{
				"completions/lockmigrate.bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
				"completions/_lockmigrate":     func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
				"completions/lockmigrate.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
			}
			addManuals(files, root)
			for name, write := range files {
				var b bytes.Buffer
				if err := write(&b); err != nil {
					return err
				}
				file := filepath.Join(out, name)
				err := os.MkdirAll(filepath.Dir(file), 0o755)
				if err == nil {
					err = os.WriteFile(file, b.Bytes(), 0o644)
				}
				if err != nil {
					return failedError("check the folder", "%w", err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "dist-docs", "the `FOLDER` to write into")
	return cmd
}

// addManuals adds the page of a command, and of those below it.
func addManuals(files map[string]func(*bytes.Buffer) error, cmd *cobra.Command) {
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return
	}
	files["man/"+strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = func(b *bytes.Buffer) error {
		var page bytes.Buffer
		header := &doc.GenManHeader{Section: "1", Source: "lockmigrate " + buildVersion().Version, Manual: "lockmigrate"}
		err := doc.GenMan(cmd, header, &page)
		b.WriteString(manual(page.String()))
		return err
	}
	for _, sub := range cmd.Commands() {
		addManuals(files, sub)
	}
}

// manOption is an option as cobra writes it: the name, its default, and behind a tab what it does.
var manOption = regexp.MustCompile(`(?m)^(?:\.PP\n)?((?:\\fB-\w\\fP, )?\\fB--[\w-]+\\fP)\[?=(.*?)\]?\n\t(.*)$`)

// manValue is what an option's value is called in what it does.
var manValue = regexp.MustCompile(`\\fB(.+?)\\fR`)

// manual writes options as manual pages do: the name and its value, what it does below it, and the default at the end.
func manual(page string) string {
	page = strings.Replace(page, ".SH NAME", ".ad l\n.nh\n.SH NAME", 1) // commands are copied: no word is broken
	return manOption.ReplaceAllStringFunc(page, func(option string) string {
		part := manOption.FindStringSubmatch(option)
		name, usual, does := part[1], strings.Trim(part[2], `"`), part[3]
		if value := manValue.FindStringSubmatch(does); value != nil {
			name += ` \fI` + value[1] + `\fP`
		} else if usual != "false" {
			name += ` \fIVALUE\fP`
		}
		does = manValue.ReplaceAllString(does, `\fI$1\fP`)
		switch usual {
		case "", "[", "[]", "false", "0", "0s":
		default:
			does += " (default " + usual + ")"
		}
		return ".TP\n" + name + "\n" + does
	})
}
