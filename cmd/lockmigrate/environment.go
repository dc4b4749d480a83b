package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
)

// environment is all that a command touches of the process, so that a test can be the process.
type environment struct {
	stdout     io.Writer
	stderr     io.Writer
	getenv     func(string) string
	isTerminal func(io.Writer) bool
	width      func(io.Writer) int // of a terminal, in columns
	now        func() time.Time
	sample     time.Duration // for how long rates are measured

	grace atomic.Int64 // nanoseconds that the command may take to end after an interrupt, where that is more than leaveWithin

	global globalFlags // what every command understands, valid once a command runs
}

// globalFlags are the flags of the root.
type globalFlags struct {
	redis string
	tls   endpoint.TLSFiles
	json  bool
}

func processEnvironment() *environment {
	return &environment{
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		getenv:     os.Getenv,
		isTerminal: isTerminal,
		width:      widthOf,
		now:        time.Now,
		sample:     time.Second,
	}
}

// status returns the line of progress: on stderr where that is a terminal, silent otherwise.
func (env *environment) status() *statusLine {
	if !env.isTerminal(env.stderr) {
		return newStatusLine(nil, nil)
	}
	return newStatusLine(env.stderr, func() int { return env.width(env.stderr) })
}

// screen is how many columns results have; 0 where they go to a file or a pipe, which have no width.
func (env *environment) screen() int {
	if !env.isTerminal(env.stdout) {
		return 0
	}
	return env.width(env.stdout)
}

// ink is what colours results: on a terminal, unless NO_COLOR is set or TERM is dumb.
func (env *environment) ink() palette {
	return palette(env.isTerminal(env.stdout) && env.getenv("NO_COLOR") == "" && env.getenv("TERM") != "dumb")
}

// print writes a result: as JSON with --json, else as text.
func (env *environment) print(doc any, text func(b *strings.Builder)) error {
	if env.global.json {
		return env.encode(doc)
	}
	var b strings.Builder
	text(&b)
	return env.show(b.String())
}

// encode prints a document as one line of JSON, or indented where it is pretty.
func (env *environment) encode(doc any) error { return encode(env.stdout, doc) }

func encode(w io.Writer, doc any) error {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	if p, ok := doc.(pretty); ok {
		out.SetIndent("", "  ")
		doc = p.doc
	}
	if err := out.Encode(doc); err != nil {
		return err
	}
	_, err := w.Write(printableJSON(b.Bytes()))
	return err
}

// pretty is a document that is indented.
type pretty struct{ doc any }

// show writes results.
func (env *environment) show(lines string) error {
	_, err := io.WriteString(env.stdout, fold(lines, env.screen()))
	return err
}

// note writes one line of diagnostics.
func (env *environment) note(format string, args ...any) {
	env.say("lockmigrate: " + fmt.Sprintf(format, args...))
}

// say writes a line to stderr; on a terminal it is broken between words.
func (env *environment) say(line string) {
	if env.isTerminal(env.stderr) {
		line = wrap(line, env.width(env.stderr), len("lockmigrate: "))
	}
	fmt.Fprintln(env.stderr, line)
}

// fold breaks the lines of a text that are wider than a screen, where there is one.
func fold(lines string, width int) string {
	if width == 0 {
		return lines
	}
	var b strings.Builder
	for line := range strings.Lines(lines) {
		b.WriteString(wrap(line, width, 4))
	}
	return b.String()
}

// endpoint returns where --redis or a setting leads, fallback if neither is given, and a function
// that ends what it started. Nothing is connected yet, except that an embedded server runs.
func (env *environment) endpoint(fallback string) (*endpoint.Endpoint, func(), error) {
	url := cmp.Or(env.global.redis, fallback)
	if url == "" {
		return nil, nil, usageError("give --redis redis://host:6379/0, or set LOCKMIGRATE_REDIS", "no server is named")
	}
	return env.endpointOf(url)
}

// endpointOf is the server that a URL names, by the TLS files of the command line. The word embedded is one in this process.
func (env *environment) endpointOf(url string) (*endpoint.Endpoint, func(), error) {
	stop := func() {}
	if url == "embedded" {
		server, err := fleet.StartServer()
		if err != nil {
			return nil, nil, err
		}
		url, stop = "redis://"+server.Addr(), server.Close
	}
	end, err := endpoint.Parse(url, env.global.tls)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return end, stop, nil
}

// onServer makes a command of work on the server that --redis or a setting names, fallback if neither does.
func (env *environment) onServer(fallback string, work func(ctx context.Context, end *endpoint.Endpoint) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		end, stop, err := env.endpoint(fallback)
		if err != nil {
			return err
		}
		defer stop()
		return work(cmd.Context(), end)
	}
}

const aServerURL = "a server URL"

// shown makes a stray argument safe to repeat in an error: a server URL may hold a password.
func shown(argument string) string {
	if strings.Contains(argument, "://") || strings.Contains(argument, "@") {
		return aServerURL
	}
	return strconv.Quote(argument)
}
