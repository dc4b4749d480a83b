package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/scripts/reference"
)

func newScriptsCommand(env *environment) *cobra.Command {
	var lang, out string
	cmd := &cobra.Command{
		Use:   "scripts [flags]",
		Short: "Print the bridge's server scripts, with uses from Java and Python",
		Long: `scripts prints the Lua scripts of the bridge lock as the server gets them. With
them services in other languages can take the bridge too. It also prints
reference uses from Java and Python, which wait, renew and release. The header of each
script documents its keys, arguments and replies, and why it must be atomic. The
Java class and the Python module need the scripts beside them: --lang java and
--lang python give both.

It connects to no server.`,
		Example: `  lockmigrate scripts
  lockmigrate scripts --lang java --out ./scripts
  lockmigrate scripts --lang python --out ./scripts`,
		RunE: func(*cobra.Command, []string) error {
			files, err := scriptFiles(lang)
			if err != nil {
				return err
			}
			if out != "" {
				return writeScripts(env, out, files)
			}
			return printScripts(env, files)
		},
	}
	f := cmd.Flags()
	f.StringVar(&lang, "lang", "all", "what to print, `LANGUAGE`: lua, java, python or all")
	f.StringVar(&out, "out", "", "write one file for each into the folder `DIR`, instead of printing")
	return cmd
}

// scriptFile is one file that another service needs.
type scriptFile struct {
	Name   string `json:"name"`
	Digest string `json:"sha1,omitempty"` // for EVALSHA
	Keys   int    `json:"keys,omitempty"`
	Text   string `json:"text"`
}

func scriptFiles(lang string) ([]scriptFile, error) {
	var files []scriptFile
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		files = append(files, scriptFile{s.Name, s.Digest, len(s.Keys), s.Source})
	}
	java := scriptFile{Name: "BridgeLock.java", Text: reference.Java}
	python := scriptFile{Name: "bridge_lock.py", Text: reference.Python}
	switch lang {
	case "all":
		return append(files, java, python), nil
	case "lua":
		return files, nil
	case "java":
		return append(files, java), nil
	case "python":
		return append(files, python), nil
	default:
		return nil, usageError("choose lua, java, python or all", "--lang %q is no language that there is a reference for", lang)
	}
}

// printScripts prints one file as it is, and several with a line between them that is a comment in none
// of the languages, so that nobody pipes them all into one file unawares.
func printScripts(env *environment, files []scriptFile) error {
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"files": files})
	}
	if len(files) == 1 {
		_, err := io.WriteString(env.stdout, files[0].Text)
		return err
	}
	for i, f := range files {
		title := f.Name
		if f.Digest != "" {
			title += fmt.Sprintf("  (EVALSHA %s, %d keys)", f.Digest, f.Keys)
		}
		if i > 0 {
			fmt.Fprintln(env.stdout)
		}
		if _, err := fmt.Fprintf(env.stdout, "==> %s <==\n%s", title, f.Text); err != nil {
			return err
		}
	}
	return nil
}

func writeScripts(env *environment, dir string, files []scriptFile) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failedError("choose another --out", "create the folder: %w", err)
	}
	var names []string
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		if err := os.WriteFile(path, []byte(f.Text), 0o644); err != nil {
			return failedError("choose another --out", "write a script: %w", err)
		}
		names = append(names, path)
	}
	_, err := fmt.Fprintln(env.stdout, strings.Join(names, "\n"))
	return err
}
