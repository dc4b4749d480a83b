package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gomodule/redigo/redis"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// buffer is a writer that goroutines may share, and that may be taken for a terminal.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// hung is for how long a command line runs in a test before it counts as one that never ends: a machine under load takes a minute for a forecast of
// five seconds.
const hung = 10 * time.Minute

// lockmigrateIn runs a command line within the test.
func lockmigrateIn(ctx context.Context, terminal bool, args ...string) (code int, stdout, stderr string) {
	var out, diagnostics buffer
	code = run(ctx, surroundings(&out, &diagnostics, terminal), args)
	return code, out.String(), diagnostics.String()
}

// surroundings are those of a command line within a test: no variables, 80 columns.
func surroundings(out, diagnostics io.Writer, terminal bool) *environment {
	return &environment{
		stdout: out, stderr: diagnostics,
		getenv:     func(string) string { return "" },
		isTerminal: func(io.Writer) bool { return terminal },
		width:      func(io.Writer) int { return 80 },
		now:        time.Now,
		sample:     10 * time.Millisecond,
	}
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	for i := range 400 {
		require.NoError(t, s.Mini.Set(fmt.Sprint("k", i), "v"))
	}
	code, _, stderr := lockmigrateIn(context.Background(), true, "scan", "--rate", "1000", "--redis", s.URL())
	assert.Equal(t, exitDone, code)
	assert.Regexp(t, `\rscan:( +[0-9]+%)? [0-9]+ keys, [0-9,]+ a second, 0 locks(, about \S+ left)?\x1b\[K`, stderr)
	assert.Regexp(t, `\r\x1b\[K$`, stderr, "the line is gone in the end")
}

func TestErrorsAreOneSafeLine(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		line string
	}{
		{errors.New("two\nlines\x1b[31m"), exitFailed, `lockmigrate: two; lines\x1b[31m`},
		{usageError("do this", "bad %d", 1), exitUsage, "lockmigrate: bad 1: do this"},
		{failedError("", "no hint"), exitFailed, "lockmigrate: no hint"},
		{unsafeError("stop", "overlapped"), exitUnsafe, "lockmigrate: overlapped: stop"},
		{inconclusiveError("look longer", "nothing seen"), exitInconclusive, "lockmigrate: nothing seen: look longer"},
		{fmt.Errorf("wrapped: %w", unsafeError("stop", "overlapped")), exitUnsafe, "lockmigrate: wrapped: overlapped: stop"},
		{&endpoint.Error{What: "bad URL", Advice: "mend it", BadInput: true}, exitUsage, "lockmigrate: bad URL: mend it"},
		{&endpoint.Error{What: "down", Advice: "start it"}, exitFailed, "lockmigrate: down: start it"},
		{fmt.Errorf("acquire: %w", redis.Error("READONLY no writes")), exitFailed, "lockmigrate: acquire: READONLY no writes: name the master in the URL, or use redis+sentinel://"},
		{fmt.Errorf("acquire: %w", io.EOF), exitFailed, "lockmigrate: acquire: EOF: see its log; if it wants TLS, write rediss:// instead of redis://"},
	} {
		assert.Equal(t, c.code, exitCode(c.err))
		assert.Equal(t, c.line, errorLine(c.err))
	}
}

// everyCommand visits the commands that the program has.
func everyCommand(visit func(c *cobra.Command)) {
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		visit(c)
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newRootCommand(processEnvironment()))
}

// TestHelpFitsTheScreen: every command's help, in 80 columns. Each section of help.txt is a command's; only what its name explains has none.
func TestHelpFitsTheScreen(t *testing.T) {
	sections := map[string]bool{}
	for line := range strings.Lines(helpText) {
		if path, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "== "); found {
			sections[path] = true
		}
	}
	everyCommand(func(c *cobra.Command) {
		if c.IsAvailableCommand() {
			stdout, _ := expect(t, exitDone, append(strings.Fields(c.CommandPath())[1:], "--help")...)
			for line := range strings.SplitSeq(stdout, "\n") {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), helpColumns, "%s: %s", c.CommandPath(), line)
			}
		}
		assert.Equal(t, sections[c.CommandPath()], c.Long != "" && strings.Contains(helpText, c.Long+"\n"), c.CommandPath())
		if !sections[c.CommandPath()] {
			assert.Contains(t, []string{"lockmigrate version", "lockmigrate help", "lockmigrate stage show"}, c.CommandPath())
		}
		delete(sections, c.CommandPath())
	})
	assert.Empty(t, sections, "sections of no command")
}

func TestWrap(t *testing.T) {
	assert.Equal(t, "one two", wrap("one two", 7, 2))
	assert.Equal(t, "one\n  two", wrap("one two", 6, 2))
	assert.Equal(t, "averylongword\n  two", wrap("averylongword two", 6, 2))
	assert.Equal(t, "  0.1 s  act\n         text", wrap("  0.1 s  act text", 13, 9))
}

func TestFold(t *testing.T) {
	assert.Equal(t, "plan: one two three\n    four\nshort\n", fold("plan: one two three four\nshort\n", 19))
	command := "  would run  ACL SETUSER old -setnx -getset '(+setnx +getset ~cache:*)'\n"
	assert.Equal(t, command, fold(command, 20), "a reader copies it")
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", 999 * time.Millisecond: "999ms", 1500 * time.Millisecond: "1.5s", 59 * time.Second: "59s",
		61 * time.Second: "1m01s", 90 * time.Minute: "1h30m", 25 * time.Hour: "1d01h", 200 * 24 * time.Hour: "200d",
		4 * 365 * 24 * time.Hour: "4.0y",
	} {
		assert.Equal(t, want, short(d))
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		assert.Equal(t, want, thousands(n))
	}
}

// TestNoNumberIsBelowZero gives each number of each command a value below zero: only those that say so take it.
func TestNoNumberIsBelowZero(t *testing.T) {
	asked := 0
	everyCommand(func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			value := map[string]string{"duration": "-1s", "int": "-1", "int64": "-1", "float64": "-0.5"}[f.Value.Type()]
			if _, allowed := f.Annotations[negative]; value == "" || allowed {
				return
			}
			args := append(strings.Fields(c.CommandPath())[1:], "--"+f.Name+"="+value, "--redis", "redis://127.0.0.1:1")
			if c.Args != nil && c.Args(c, nil) != nil {
				args = append(args, "no-such-file")
			}
			_, stderr := expect(t, exitUsage, args...)
			assert.Contains(t, stderr, "--"+f.Name+" "+value+" is negative: give 0 or more", "%v", args)
			asked++
		})
	})
	assert.Equal(t, 39, asked, "numbers in all: the walk reached every command; count a new one here")
}
