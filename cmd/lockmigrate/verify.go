package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

func newVerifyCommand(env *environment) *cobra.Command {
	var opts verify.Options
	var out, resume, old string
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Gather evidence that no legacy client is left, as a certificate",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkVerify(&opts, old); err != nil {
				return err
			}
			if resume != "" {
				if err := goOn(env, &opts, &out, resume, len(given(cmd)) == 1); err != nil {
					return err
				}
			}
			return runVerify(cmd.Context(), env, opts, old, out)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&opts.Window, "for", 10*time.Minute, "look for this `DURATION`")
	f.DurationVar(&opts.Longest, "longest-silence", 0, "your statement: the longest `DURATION` that any legacy client is silent, its lease or the pause between two runs of its job; none-seen needs it; without it the record's")
	f.StringVar(&opts.Namespace, "namespace", "", "`NAME` of the namespace: its patterns are the lock keys, its members are looked at")
	f.StringArrayVar(&opts.Match, "match", nil, "glob `PATTERN` of the lock keys; repeatable; without it every key is one")
	f.BoolVar(&opts.Whole, "monitor", false, "MONITOR for the whole window: it names who sends what, and accounts for each write")
	f.StringArrayVar(&opts.Trusted, "trust-user", nil, "`NAME` of a user that only the new services have: with a fence for all others no MONITOR is needed; repeatable")
	f.StringVar(&out, "out", "", "write the certificate as JSON to `FILE`, for stage advance; until then FILE.state is what --resume wants")
	f.IntSliceVar(&opts.Ignore, "ignore-db", nil, "your statement: `NUMBER` of a database that another fleet uses; its clients are not looked at; repeatable")
	f.BoolVar(&opts.OnlyMembers, "only-members", false, "of a handover: show that whoever touches a lock key on Old's server is a member; it runs MONITOR for the whole window and cannot be resumed")
	f.StringVar(&old, "old", "", "with --only-members: `URL` of Old's server, where --redis leads to the record")
	f.StringVar(&resume, "resume", "", "go on with a run that was ended, from its state `FILE`; beside the run's own flags it begins where there is no state: for a Job that is started again")
	return cmd
}

func checkVerify(o *verify.Options, old string) error {
	switch {
	case o.OnlyMembers && o.Namespace == "":
		return usageError("name the handover", "--only-members needs --namespace")
	case !o.OnlyMembers && old != "":
		return usageError("it says where a handover's Old is", "--old needs --only-members")
	case o.Window <= 0:
		return usageError("give a duration such as 10m", "--for %v must be positive", o.Window)
	case slices.Contains(o.Trusted, ""):
		return usageError("give a name such as orders-go", "a --trust-user name is empty")
	}
	return nil
}

func runVerify(ctx context.Context, env *environment, opts verify.Options, old, file string) error {
	if err := writable(file); err != nil {
		return err
	}
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	if old != "" {
		opts.Record = end
		if end, stop, err = env.endpointOf(old); err != nil {
			return err
		}
		defer stop()
	}
	status := env.status()
	opts.Progress = func(left time.Duration, seen int) {
		status.Update("%s, %s", countdown("verify", opts.Window-left, opts.Window), counted(int64(seen), "finding"))
	}
	opts.Reading = func(p census.Progress) { status.Update("%s", scanProgress("verify reads the keys", p)) }
	if file != "" && !isDevice(file) && !opts.OnlyMembers {
		opts.Save = func(s verify.Saved) {
			s.Out, s.PID = file, os.Getpid()
			s.Host, _ = os.Hostname()
			if err := writeFile(stateName(file), s.Write); err != nil {
				opts.Warn("the state cannot be saved, so nothing can go on with this run: " + err.Error())
			}
		}
	}
	opts.Warn = func(text string) { env.note("%s", safe(text)) }
	cert, err := verify.Run(ctx, end, opts)
	status.Clear()
	if err != nil {
		return missing(ctx, cmp.Or(opts.Record, end), opts.Namespace, err, usageError, `"lockmigrate stage list" shows them; or verify by --match alone`)
	}
	return concludeVerify(env, cert, file)
}

// concludeVerify writes the certificate, and makes the verdict an exit code.
func concludeVerify(env *environment, cert verify.Certificate, file string) error {
	var unwritten error
	if file != "" { // before anything is printed: the terminal may be gone
		if unwritten = writeFile(file, cert.Write); unwritten == nil && cert.Evidence.Finished && !isDevice(file) {
			_ = os.Remove(stateName(file))
		}
	}
	printed := printCertificate(env, cert)
	switch { // what a window has shown is printed at least, and an old client counts more than a file
	case unwritten != nil && cert.Verdict == verify.Seen:
		env.say(errorLine(unwritten))
	case unwritten != nil || printed != nil:
		return cmp.Or(unwritten, printed)
	}
	switch cert.Verdict {
	case verify.Seen:
		return unsafeError("find it by its address, or put up the fence to have it named: lockmigrate fence", "a legacy client is still there")
	case verify.Inconclusive:
		return inconclusiveError("see what each of them wants, and look again", "no verdict: not discharged: %s", strings.Join(fence.Undischarged(cert.Obligations), ", "))
	}
	return nil
}

func stateName(file string) string { return file + ".state" }

// goOn has a run go on from a state. The state has the run's options; flags beside it must be the same, and then a run without a state begins.
func goOn(env *environment, opts *verify.Options, out *string, resume string, alone bool) error {
	s, err := verify.LoadSaved(resume)
	switch {
	case !alone && (resume != stateName(*out) || opts.OnlyMembers):
		return usageError("give --resume alone, or with the run's own flags, where it names the state beside --out; a run with --only-members has none", "--resume %s does not go with these flags", resume)
	case !alone && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return failedError("name the state that \"lockmigrate verify --out FILE\" keeps, FILE.state; without one a run begins anew", "%w", err)
	}
	was := s.Options
	was.Look = opts.Look      // the run's own
	if len(opts.Match) == 0 { // the namespace's were filled in
		was.Match = nil
	}
	if before := asJSON(was); !alone && asJSON(*opts) != before {
		return usageError("give the same options, or remove it, and the run begins anew", "%s is the state of a run with other options: %s", resume, before)
	}
	env.note("goes on with the run of %s", resume)
	if *opts = s.Options; alone {
		*out = s.Out
	}
	opts.Resume = &s
	return nil
}

func asJSON(o verify.Options) string {
	text, _ := json.Marshal(o)
	return string(text)
}

// mostClients is how many findings are printed.
const mostClients = 20

// indented wraps a text to the screen, or to 80 columns in a file. The lines after the first begin at a column.
func (env *environment) indented(text string, column int) string {
	width := helpColumns
	if screen := env.screen(); screen > 0 {
		width = min(screen, 120) // longer lines read badly
	}
	return strings.ReplaceAll(wrap(safe(text), width-column, 0), "\n", "\n"+strings.Repeat(" ", column))
}

func printCertificate(env *environment, c verify.Certificate) error {
	return env.print(pretty{c}, func(b *strings.Builder) {
		ink, e := env.ink(), &c.Evidence
		upper := func(v verify.Verdict) string { return strings.ToUpper(string(v)) }
		fmt.Fprintf(b, "verdict: %s\n  %s\n\nwindow   %s to %s (%.1f s)\n", ink.Verdict(upper(c.Verdict), upper(verify.NoneSeen), upper(verify.Seen)), env.indented(c.Why, 2),
			e.Started.Format(time.RFC3339), e.Ended.Format(time.RFC3339), e.LookedSeconds)
		if n := e.Namespace; n != nil {
			fmt.Fprintf(b, "of       namespace %s, epoch %d\n", n.Name, n.Epoch)
		}
		if len(e.Patterns) > 0 {
			var shown []string
			for _, p := range e.Patterns {
				shown = append(shown, quoted(p))
			}
			fmt.Fprintf(b, "keys     %s\n", strings.Join(shown, " "))
		}
		for _, m := range e.Masters {
			fmt.Fprintf(b, "server   %s run %.8s %s: ", m.Addr, m.RunID, safe(m.Is))
			var writes, old, denied int64
			for _, c := range m.Commands {
				if writes, denied = writes+c.Run, denied+c.Denied; c.Name == "setnx" || c.Name == "getset" {
					old += c.Run
				}
			}
			fmt.Fprintf(b, "%s, %d of them SETNX or GETSET; %d denied\n", counted(writes, "write"), old, denied)
		}
		b.WriteString("\nobligations\n")
		for _, o := range c.Obligations {
			fmt.Fprintf(b, "  %s %-9s %s\n", map[bool]string{true: ink.Good("yes"), false: ink.Bad("NO ")}[o.Discharged], o.ID, env.indented(o.Evidence, 16))
		}
		printClients(b, "legacy clients", e.Seen)
		unexplained := "clients on such keys that nothing explains"
		if e.OnlyMembers {
			unexplained = "clients on such keys that are no members"
		}
		printClients(b, unexplained, e.Unexplained)
		b.WriteString("\nwhat this cannot know\n")
		for _, r := range c.ResidualRisks {
			fmt.Fprintf(b, "  - %s\n", env.indented(r, 4))
		}
	})
}

// printClients names the clients that were seen.
func printClients(b *strings.Builder, what string, clients []verify.Client) {
	if len(clients) > 0 {
		b.WriteString("\n" + what + "\n")
	}
	for i, l := range clients {
		if i == mostClients {
			fmt.Fprintf(b, "  ... and %d more: --json shows all\n", len(clients)-i)
			break
		}
		fmt.Fprintf(b, "  %s  %s", cmp.Or(safe(l.Who()), "(not named)"), safe(l.Evidence))
		if l.Dialect != "" {
			fmt.Fprintf(b, "; %s", l.Dialect)
		}
		for _, k := range l.Keys[:min(3, len(l.Keys))] {
			fmt.Fprintf(b, " %s", quoted(k))
		}
		b.WriteByte('\n')
	}
}
