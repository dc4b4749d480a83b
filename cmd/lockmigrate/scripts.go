package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/scripts/reference"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func newScriptsCommand(env *environment) *cobra.Command {
	lang, out := "all", ""
	flags := stageFlags{}
	cmd := &cobra.Command{
		Use:   "scripts [flags]",
		Short: "Print the bridge's server scripts, with uses from Java and Python",
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := scriptFiles(lang)
			if flags.namespace != "" {
				var err error
				if files, err = namespaceFiles(cmd, env, flags, lang); err != nil {
					return err
				}
			}
			if out != "" {
				return writeScripts(env, out, files)
			}
			return printScripts(env, files)
		},
	}
	f := cmd.Flags()
	choose(cmd, &lang, "lang", "what to print, `LANGUAGE`: lua, java, python or all", "lua", "java", "python", "all")
	f.StringVar(&flags.namespace, "namespace", "", "write the values of this namespace's record into the reference: its `NAME`")
	f.StringVar(&out, "out", "", "write one file for each into the folder `DIR`, instead of printing")
	return cmd
}

// scriptFile is one file that another service needs.
type scriptFile struct {
	Name   string `json:"name"`
	Digest string `json:"sha1,omitempty"` // for EVALSHA
	Keys   int    `json:"keys,omitempty"`
	Text   string `json:"text,omitempty"` // none where it is written to a folder
}

func scriptFiles(lang string) []scriptFile {
	var files []scriptFile
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		files = append(files, scriptFile{s.Name, s.Digest, len(s.Keys), s.Source})
	}
	return append(files, references(lang, reference.Java, reference.Python)...)
}

// references are the files of a language, or of all.
func references(lang, java, python string) (files []scriptFile) {
	if lang == "java" || lang == "all" {
		files = append(files, scriptFile{Name: "BridgeLock.java", Text: java})
	}
	if lang == "python" || lang == "all" {
		files = append(files, scriptFile{Name: "bridge_lock.py", Text: python})
	}
	return files
}

// namespaceFiles are the references with the values of a namespace's record.
func namespaceFiles(cmd *cobra.Command, env *environment, flags stageFlags, lang string) (files []scriptFile, err error) {
	if lang == "lua" {
		return nil, usageError("choose java, python or all", "--namespace has no part in --lang lua: the scripts are the same for every namespace")
	}
	err = onStore(env, &flags, func(at *place, ctx context.Context) error {
		view, err := at.store.Show(ctx)
		if err != nil {
			return err
		}
		if err := ofOldClients(view.Record, "scripts"); err != nil {
			return err
		}
		n, err := referenceOf(view.Record)
		if err != nil {
			return err
		}
		files = references(lang, n.Java(), n.Python())
		return nil
	})(cmd, nil)
	return files, err
}

// referenceTTL is how long a lock of a reference outlives its last renewal.
const referenceTTL = 10 * time.Second

// referenceOf says with which values a reference joins a namespace, as package compat says it of a Go service.
func referenceOf(r stages.Record) (reference.Namespace, error) {
	d, err := protocol.DialectNamed(r.Dialect)
	if err != nil {
		return reference.Namespace{}, err
	}
	const instead = "put a sidecar beside the service (docs/sidecar.md), or use package compat"
	switch {
	case d.Layout != protocol.Plain && d.Layout != protocol.MaybeQuoted:
		return reference.Namespace{}, unsafeError(instead, "the references write a number, and old clients of dialect %s do not read one as held for ever", d)
	case d.SettlesFree():
		return reference.Namespace{}, unsafeError(instead, "in dialect %s a loser may win on its own value, and the references do not watch for that", d)
	}
	lag, delay := cmp.Or(r.ClockLag, stages.DefaultClockLag), cmp.Or(r.CommandDelay, stages.DefaultCommandDelay)
	opts := compat.Options{Dialect: legacy.Dialect{Name: d.Name}, ShortestLease: r.Shortest, ClockLag: lag, CommandDelay: delay, Yield: r.Yield, TTL: referenceTTL}
	if err := opts.Validate(); err != nil {
		return reference.Namespace{}, unsafeError(`correct the record with "lockmigrate stage set"`, "%w", err)
	}
	clients, err := r.Clients()
	if err != nil {
		return reference.Namespace{}, err
	}
	return reference.Namespace{
		Name: r.Namespace, Record: stages.RecordKey(r.Namespace), Clients: clients, Says: knownClients(r), Unit: d.Unit.String(), Layout: d.Layout.String(),
		TTL: referenceTTL.Milliseconds(), Grace: (lag + delay).Milliseconds(), Settle: delay.Milliseconds(),
		Renew: max(d.RenewEvery(referenceTTL, r.Shortest, delay).Milliseconds(), 1), Yield: cmp.Or(r.Yield, d.Poll+d.Poll/5).Milliseconds(),
		Breath: d.Breath().Milliseconds(), Claim: max(min(time.Second, (r.Shortest-delay)/2).Milliseconds(), 1), FenceTTL: time.Minute.Milliseconds(),
	}, nil
}

// printScripts prints one file as it is, and several with a line between them that is a comment in none
// of the languages, so that nobody pipes them all into one file unawares.
func printScripts(env *environment, files []scriptFile) error {
	if env.global.json {
		return env.encode(map[string]any{"files": files})
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
	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		if err := os.WriteFile(path, []byte(f.Text), 0o644); err != nil {
			return failedError("choose another --out", "write a script: %w", err)
		}
		names, files[i].Text = append(names, path), ""
	}
	return env.print(map[string]any{"folder": dir, "files": files}, func(b *strings.Builder) { fmt.Fprintln(b, strings.Join(names, "\n")) })
}
