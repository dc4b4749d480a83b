package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

func newVerifyCommand(env *environment) *cobra.Command {
	var opts verify.Options
	var noCensus bool
	var out string
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Gather evidence that no legacy client is left, as a certificate",
		Long: `verify looks for a window of time whether anybody still takes locks the old way: by the
server's own counters on every master; by MONITOR; by ACL LOG where a fence is up; by
the values on the keys; and by the members of the namespace. It only reads.

It starts from "inconclusive" and lists the obligations that none-seen needs. One of
them is yours: say with --longest how long a legacy client may be silent. That is the longest lease
or the longest pause between two runs of a job. The window must be longer.

Every SETNX, GETSET and SET must be accounted for, since each may take a lock. Where such
commands are in use, only MONITOR for the whole window (--monitor) can do that. It costs
the server: see "lockmigrate observe --help". Bursts name clients at little cost. They are
enough where these commands are not in use. They are also enough where ACL rules keep
them off the lock keys, for all users but those of --trust-user.

Verdicts and exit codes: none-seen 0, seen 3, inconclusive 4. An interrupt (SIGINT, SIGTERM,
SIGHUP) ends the window early and keeps the results so far.`,
		Example: `  lockmigrate verify --namespace orders --for 26h --longest 25h --monitor \
      --out orders.json
  lockmigrate verify --match 'lock:*' --for 10m --longest 5m`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkVerify(&opts); err != nil {
				return err
			}
			opts.Census = !noCensus
			opts.Whole = opts.Whole || opts.Burst > 0 && opts.Every == opts.Burst
			return runVerify(cmd.Context(), env, opts, out)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&opts.Window, "for", 10*time.Minute, "look for this `DURATION`")
	f.DurationVar(&opts.Longest, "longest", 0, "the longest lease, or pause between two runs of a job, of any legacy client: a `DURATION`; none-seen needs it")
	f.StringVar(&opts.Namespace, "namespace", "", "`NAME` of the namespace: its patterns are the lock keys, its members are looked at")
	f.StringArrayVar(&opts.Match, "match", nil, "glob `PATTERN` of the lock keys; repeatable; without it every key is one")
	f.BoolVar(&opts.Whole, "monitor", false, "MONITOR for the whole window, in place of bursts")
	f.StringArrayVar(&opts.Trusted, "trust-user", nil, "`NAME` of a user that only the new services have: with a fence for all others no MONITOR is needed; repeatable")
	f.DurationVar(&opts.Burst, "burst", 2*time.Second, "length of a MONITOR burst (0: none)")
	f.DurationVar(&opts.Every, "every", time.Minute, "time from one burst to the next")
	f.BoolVar(&noCensus, "no-census", false, "do not look at the keys' values: the run can then only be seen or inconclusive")
	f.StringVar(&out, "out", "", "write the certificate as JSON to `FILE`, for stage advance")
	return cmd
}

func checkVerify(o *verify.Options) error {
	switch {
	case o.Window <= 0:
		return usageError("give a duration such as 10m", "--for %v is no time", o.Window)
	case o.Longest < 0 || o.Burst < 0:
		return usageError("give a duration such as 30s, or 0", "--longest or --burst is negative")
	case o.Burst > 0 && o.Every < o.Burst:
		return usageError("MONITOR for the whole window is --monitor", "--every %v is shorter than --burst %v", o.Every, o.Burst)
	}
	for _, u := range o.Trusted {
		if u == "" {
			return usageError("give a name such as orders-go", "a --trust-user name is empty")
		}
	}
	for _, p := range o.Match {
		if p == "" {
			return usageError("give a pattern such as 'lock:*'", "a --match pattern is empty")
		}
	}
	return nil
}

func runVerify(ctx context.Context, env *environment, opts verify.Options, file string) error {
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	status := env.status()
	opts.Progress = func(left time.Duration, seen int) {
		status.Update(func() string {
			return fmt.Sprintf("verify: %v left, %d findings", max(0, left).Round(time.Second), seen)
		})
	}
	opts.Warn = func(text string) { fmt.Fprintln(env.stderr, "lockmigrate: "+terminal.Safe(text)) }
	cert, err := verify.Run(ctx, end, opts)
	status.Clear()
	if err != nil {
		return err
	}
	if file != "" { // before anything is printed: the terminal may be gone
		if err := writeFile(file, cert.Write); err != nil {
			return err
		}
	}
	if err := printCertificate(env, cert); err != nil {
		return err
	}
	switch cert.Verdict {
	case verify.Seen:
		return unsafeError("find it by its address, or put up the fence to have it named: lockmigrate fence", "a legacy client is still there")
	case verify.Inconclusive:
		var missing []string
		for _, o := range cert.Obligations {
			if !o.Discharged {
				missing = append(missing, o.ID)
			}
		}
		return inconclusiveError("see what each of them wants, and look again", "no verdict: not discharged: %s", strings.Join(missing, ", "))
	}
	return nil
}

// writeFile writes beside a file's place and moves it there, so that no reader finds half of it.
func writeFile(file string, write func(io.Writer) error) error {
	temp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return failedError("check the folder", "%w", err)
	}
	defer os.Remove(temp.Name())
	err = errors.Join(write(temp), temp.Close())
	if err == nil {
		err = os.Chmod(temp.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		return failedError("check the folder and the space on the disk", "%w", err)
	}
	return nil
}

// mostClients is how many findings are printed.
const mostClients = 20

// indented wraps a text to the screen. The lines after the first begin at a column.
func indented(text string, column int) string {
	return strings.ReplaceAll(wrap(terminal.Safe(text), helpColumns-column, 0), "\n", "\n"+strings.Repeat(" ", column))
}

func printCertificate(env *environment, c verify.Certificate) error {
	if env.global.json {
		return c.Write(env.stdout)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "verdict: %s\n  %s\n\nwindow   %s to %s (%.1f s)\n", strings.ToUpper(string(c.Verdict)), indented(c.Why, 2),
		c.Started.Format(time.RFC3339), c.Ended.Format(time.RFC3339), c.WindowSeconds)
	if c.Namespace != "" {
		fmt.Fprintf(&b, "of       namespace %s, epoch %d\n", c.Namespace, c.Epoch)
	}
	if len(c.Patterns) > 0 {
		var shown []string
		for _, p := range c.Patterns {
			shown = append(shown, terminal.Quoted(p))
		}
		fmt.Fprintf(&b, "keys     %s\n", strings.Join(shown, " "))
	}
	for _, s := range c.Servers {
		fmt.Fprintf(&b, "server   %s run %.8s %s: %d SETNX, %d GETSET, %d denied\n", s.Addr, s.RunID, terminal.Safe(s.Is), s.SetNX, s.GetSet, s.Rejected)
	}
	b.WriteString("\nobligations\n")
	for _, o := range c.Obligations {
		fmt.Fprintf(&b, "  %-3s %-9s %s\n", map[bool]string{true: "yes", false: "NO"}[o.Discharged], o.ID, indented(o.Evidence, 16))
	}
	b.WriteString("\nsources\n")
	for _, s := range c.Sources {
		fmt.Fprintf(&b, "  %-13s %-7s %s\n", s.Name, s.State, indented(s.Found, 24))
	}
	if len(c.LegacyClients) > 0 {
		b.WriteString("\nlegacy clients\n")
	}
	for i, l := range c.LegacyClients {
		if i == mostClients {
			fmt.Fprintf(&b, "  ... and %d more: --json shows all\n", len(c.LegacyClients)-i)
			break
		}
		who := terminal.Safe(strings.Join(strings.Fields(l.Addr+" "+l.Name+" "+l.User), " "))
		if who == "" {
			who = "(not named)"
		}
		fmt.Fprintf(&b, "  %s  %s", who, terminal.Safe(l.Evidence))
		if l.Dialect != "" {
			fmt.Fprintf(&b, "; %s", l.Dialect)
		}
		for _, k := range l.Keys[:min(3, len(l.Keys))] {
			fmt.Fprintf(&b, " %s", terminal.Quoted(k))
		}
		b.WriteByte('\n')
	}
	b.WriteString("\nwhat this cannot know\n")
	for _, r := range c.ResidualRisks {
		fmt.Fprintf(&b, "  - %s\n", indented(r, 4))
	}
	_, err := io.WriteString(env.stdout, b.String())
	return err
}
