package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

func newNextCommand(env *environment) *cobra.Command {
	var flags stageFlags
	cmd := &cobra.Command{
		Use:   "next [flags]",
		Short: "Say where a migration stands, and the next command",
		RunE: onStore(env, &flags, func(at *place, ctx context.Context) error {
			s, err := at.standing(ctx)
			if err != nil {
				return err
			}
			return s.print(env, s.next())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&flags.namespace, "namespace", "default", "`NAME` of the namespace")
	f.StringArrayVar(&flags.match, "match", nil, "a key `PATTERN` of the namespace that is to be; repeatable")
	f.StringVar(&flags.profile, "profile", "", "the `FILE` that observe wrote; NAME.profile.json if not given")
	return cmd
}

// standing is where a migration stands: the facts. Method next depends on them alone.
type standing struct {
	namespace   string
	match       []string // of the command line
	profileFile string
	profile     *profile.Profile // nil: there is no such file
	old         profile.OldClients
	oldErr      error        // what the profile does not show
	view        *stages.View // nil: there is no record
	reserved    bool         // its keys are, and there is no record
	others      string       // where there is no record: namespaces that there are
	keys        *keysSeen
	keysErr     error // why modern cannot be, by what stands on the keys
	blockers    []stages.Blocker
	certificate string // the newest file that verify wrote about this namespace; empty: none
	certErr     error  // why it does not support the step to modern
	seen        []verify.Client
	saved       *verify.Saved // a verify that has not ended; nil: none
	running     bool          // it was saved a moment ago
}

// step is what to do next.
type step struct {
	Stands  string   `json:"stands_at"`
	InWay   []string `json:"in_the_way"`
	Do      string   `json:"do"`
	Command string   `json:"command,omitempty"`
	Costs   []string `json:"costs"`
	Read    string   `json:"read"` // a chapter
	Done    bool     `json:"done"`
}

// nextHandover leads from one lock to another.
func (s *standing) nextHandover(on step, living, unfit int, show string) step {
	name := s.namespace
	move := func(verb string, to stages.Stage) string {
		return fmt.Sprintf("lockmigrate stage %s --namespace %s --to %v --wait --execute", verb, name, to)
	}
	on.Read = "docs/handover.md"
	switch stage := s.view.Record.Stage; {
	case unfit > 0:
		on.Do, on.Command = fmt.Sprintf("correct or stop %s: they cannot run this record and acquire nothing", counted(int64(unfit), "member")), show
	case stage == stages.Old && living == 0:
		on.Do, on.Command = fmt.Sprintf("put package handover, with Options{Namespace: %q}, into every service that locks these keys, or a sidecar --handover beside it, and start them", name), show
		on.InWay = append(on.InWay, "no member lives: no service follows this record yet")
	case stage == stages.Old:
		on.Do, on.Command = "check that every process which locks these keys is a member, and move to both: the step does not wait for others", move("advance", stages.Both)
		on.Costs = append(on.Costs, "each lock takes both halves, one after the other, until the next step; back by "+move("rollback", stages.Old))
	case stage == stages.Both && len(s.blockers) == 0:
		s.toNew(&on, move("rollback", stages.Both))
	case stage == stages.New && len(s.blockers) == 0:
		on.Done = true
		on.Do = "all members hold New alone; when no rollback is wanted any more, take package handover and Old out of the services, and delete the record"
		on.Command = fmt.Sprintf("lockmigrate stage delete --namespace %s --execute", name)
	default:
		on.Do, on.Command = "wait for the members above, or stop them", show
	}
	return on
}

// toNew is stage both of a handover, whose members all run it: nobody else may lock by Old any more.
func (s *standing) toNew(on *step, back string) {
	name, old := s.namespace, s.view.Record.Handover.Old
	stated := fmt.Sprintf("lockmigrate stage advance --namespace %s --to new --force \"\" --wait --execute", name)
	shown := func(m stages.Member) bool { return len(m.Info.Connections) > 0 }
	s.named(on, func(c verify.Client) string { return "no member: " + c.String() })
	on.Costs = append(on.Costs, "at stage new nobody keeps out a process that locks by Old alone; back by "+back)
	switch {
	case s.certificate != "" && s.certErr == nil:
		on.Do = "only members lock by Old: move to new"
		on.Command = fmt.Sprintf("lockmigrate stage advance --namespace %s --to new --certificate %s --wait --execute", name, s.certificate)
	case old.Mark == "" && !slices.ContainsFunc(s.view.Members, shown):
		on.Do = fmt.Sprintf("make sure that no process locks by Old, %v, alone: say in --force how you know, and move to new", old)
		on.Command = stated
	default:
		if s.certErr != nil {
			on.InWay = append(on.InWay, s.certErr.Error())
		}
		on.Do = "show that nobody but the members locks by Old. How long a process that does may be silent you have to state: --longest-silence 25h where its job runs once a day, and --for longer than that. URL is Old's server"
		if len(s.seen) > 0 {
			on.Do = "make members of those that are named, or stop them, and look again"
		}
		on.Command = fmt.Sprintf("lockmigrate verify --only-members --namespace %s --old URL --longest-silence HOW-LONG --for LONGER --out %s", name, certificateName(name))
		on.Costs = append(on.Costs, "verify runs MONITOR on Old's server for the whole window")
	}
}

func profileName(namespace string) string     { return namespace + ".profile.json" }
func certificateName(namespace string) string { return namespace + ".certificate.json" }

// newestCertificate returns the newest certificate about a namespace in the working folder, or nothing.
func newestCertificate(namespace string) string {
	files, _ := filepath.Glob("*.json")
	var newest string
	var ended time.Time
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() > 64<<20 {
			continue
		}
		if c, err := verify.Load(file); err == nil && c.Evidence.Namespace != nil && c.Evidence.Namespace.Name == namespace && c.Evidence.Ended.After(ended) {
			newest, ended = file, c.Evidence.Ended
		}
	}
	return newest
}

// standing gathers the facts. It writes nothing.
func (at *place) standing(ctx context.Context) (*standing, error) {
	env, flags := at.env, at.flags
	s := &standing{namespace: at.store.Namespace, match: flags.match, profileFile: cmp.Or(flags.profile, profileName(at.store.Namespace))}
	switch p, err := openProfile(s.profileFile); {
	case err == nil:
		s.profile = &p
		s.old, s.oldErr = p.OldClients()
	case flags.profile != "" || !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	view, err := at.store.Show(ctx)
	if errors.Is(err, stages.ErrNoRecord) {
		names, _ := at.store.Names(ctx)
		if s.reserved = slices.Contains(names, s.namespace); s.reserved {
			return s, nil
		}
		s.others = firstFew(names)
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.view = &view
	if to := view.Record.Stage + 1; stages.Valid(to) {
		if s.blockers, err = at.store.Move(ctx, view.Record.Epoch, to, false); err != nil {
			return nil, err
		}
	}
	if view.Record.Handover != nil {
		s.certified(env.now(), stages.Both)
		return s, nil
	}
	if s.keys, err = at.look(ctx, view.Record.Patterns); err != nil {
		return nil, err
	}
	s.keysErr = s.keys.modernCan(view.Record.Patterns)
	if s.certified(env.now(), stages.Bridge); view.Record.Stage == stages.Bridge {
		s.unfinished(env.now(), view.Record)
	}
	return s, nil
}

// certified looks for the newest certificate at the stage that wants one, whether it supports the step, and whom it has seen if not.
func (s *standing) certified(now time.Time, before stages.Stage) {
	if s.certificate = newestCertificate(s.namespace); s.view.Record.Stage != before || s.certificate == "" {
		return
	}
	_, s.certErr = restsOn(now, s.view.Record, before+1, stageFlags{evidence: s.certificate})
	c, err := verify.Load(s.certificate)
	switch {
	case err != nil || !errors.Is(s.certErr, verify.ErrVerdict):
	case before == stages.Both:
		s.seen = c.Evidence.Unexplained
	case c.Verdict == verify.Seen:
		s.seen = c.Evidence.Seen
	}
}

// named puts those whom a certificate has seen in the way, each as say has it.
func (s *standing) named(on *step, say func(verify.Client) string) {
	for i, c := range s.seen {
		if i == mostClients {
			on.InWay = append(on.InWay, fmt.Sprintf("and %d more: %s names them", len(s.seen)-i, s.certificate))
			return
		}
		on.InWay = append(on.InWay, say(c))
	}
}

// longestSaving is how long ago the state of a verify that runs may have been saved.
const longestSaving = 5 * time.Minute

// unfinished looks for a verify of this record that has not ended.
func (s *standing) unfinished(now time.Time, record stages.Record) {
	saved, err := verify.LoadSaved(stateName(certificateName(s.namespace)))
	n := saved.Evidence.Namespace
	if err != nil || n == nil || n.Name != s.namespace || n.Epoch != record.Epoch || !n.Since.Equal(record.Since) || !slices.Equal(n.Patterns, record.Patterns) {
		return
	}
	s.saved, s.running = &saved, now.Sub(saved.At) < 5*time.Second || len(saved.Before) > 1000 && now.Sub(saved.At) < longestSaving
	if host, _ := os.Hostname(); host == saved.Host {
		s.running = s.running && lives(saved.PID)
	}
}

// lives tells that there is such a process. One of another user lives too.
func lives(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	err = p.Signal(syscall.Signal(0))
	return !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH)
}

// next is the runbook as a function of the facts.
func (s *standing) next() step {
	name := s.namespace
	if s.view == nil {
		return s.begin()
	}
	r := s.view.Record
	on := step{Stands: fmt.Sprintf("%v, epoch %d, for %s", r.Stage, r.Epoch, short(s.view.Now.Sub(r.Since))), InWay: []string{}, Costs: []string{}}
	for _, b := range s.blockers {
		on.InWay = append(on.InWay, b.String())
	}
	var living, unfit int
	for _, m := range s.view.Members {
		if m.Lives() {
			living++
			if m.Misfit != "" {
				unfit++
			}
		}
	}
	show := "lockmigrate stage --namespace " + name
	if r.Handover != nil {
		return s.nextHandover(on, living, unfit, show)
	}
	switch {
	case unfit > 0:
		on.Do = fmt.Sprintf("correct or stop %s: they cannot run this namespace and acquire nothing", counted(int64(unfit), "member"))
		on.Command, on.Read = show, "docs/runbook.md, step 2"
	case r.Stage == stages.Legacy && living == 0:
		on.Do = fmt.Sprintf("put package compat, with Options{Namespace: %q}, into every Go service, and start them", name)
		on.Command, on.Read = show, "docs/runbook.md, step 2"
		on.InWay = append(on.InWay, "no member lives: no Go service follows this record yet")
	case r.Stage == stages.Legacy:
		on.Do = "check that each process of every Go service is a member, and move to bridge: the step does not wait for others"
		on.Command, on.Read = fmt.Sprintf("lockmigrate stage advance --namespace %s --to bridge --wait --execute", name), "docs/runbook.md, step 3"
		on.Costs = append(s.waits(), whatToKnow(stages.Legacy, stages.Bridge)...)
	case s.keys.trusted() != nil: // what stands on the keys is not known: no step may rest on it
		err := s.keys.trusted()
		on.InWay = append(on.InWay, err.Error())
		on.Do, on.Command, on.Read = hintOf(err), "lockmigrate doctor"+matchFlags(r.Patterns), "docs/runbook.md, step 0"
	case r.Stage == stages.Bridge:
		s.toModern(&on)
	case s.keysErr != nil:
		on.InWay = append(on.InWay, s.keysErr.Error())
		on.Do, on.Command = "remove what dead old clients have left", s.sweep()
		on.Read = "docs/runbook.md, step 6"
	case len(s.view.Members) > 0:
		on.Do = fmt.Sprintf("the keys are migrated. Services may go from package compat to package modern when it suits them. The record has %s. Delete it when it has none", counted(int64(len(s.view.Members)), "member"))
		on.Command, on.Read, on.Done = show, "docs/runbook.md, The end", true
	default:
		on.Do, on.Done = "the keys are migrated and no member follows the record. Delete it: there is no way back without it", true
		on.Command, on.Read = fmt.Sprintf("lockmigrate stage delete --namespace %s --execute", name), "docs/runbook.md, The end"
	}
	return on
}

// begin is what comes before there is a record.
func (s *standing) begin() step {
	on := step{Stands: "there is no record", InWay: []string{}, Costs: []string{}}
	if s.reserved {
		on.Stands += ", and its keys are reserved: a stage init or stage delete was stopped, or the record was lost"
	} else if s.others != "" {
		on.Stands += " of this name; this server has " + s.others
	}
	match := s.match
	if len(match) == 0 && s.profile != nil {
		match = stages.UnescapeAll(s.profile.Match)
	}
	if len(match) == 0 {
		match = []string{"PATTERN"}
	}
	if s.profile != nil && s.oldErr == nil {
		on.Do, on.Read = "create the record, at stage legacy: nothing changes for anybody", "docs/runbook.md, step 1"
		on.Command = fmt.Sprintf("lockmigrate stage init --namespace %s%s --profile %s --execute", s.namespace, matchFlags(match), s.profileFile)
		return on
	}
	length := "10m"
	on.Do = "watch the traffic: which clients lock, in which dialect, for how long, and with which clock"
	if s.profile != nil {
		on.InWay = append(on.InWay, s.oldErr.Error())
		on.Do, length = "watch again, for longer, and while every old client works", (3 * time.Duration(s.profile.Seconds()) * time.Second).Round(time.Minute).String()
		length = strings.TrimSuffix(length, "0s")
		if s.profile.Seconds() < 200 {
			length = "10m"
		}
	}
	on.Command = fmt.Sprintf("lockmigrate observe%s --for %s --profile %s", matchFlags(match), length, s.profileFile)
	on.Read = "docs/runbook.md, step 0"
	on.Costs = []string{"MONITOR sends a copy of every command: it can halve a busy server's throughput while it runs; observe ends by itself above --max-load"}
	return on
}

// toModern is stage bridge: the old clients go, evidence that they have gone, what they left, the move.
func (s *standing) toModern(on *step) {
	r := s.view.Record
	held, _, first := s.keys.these(heldKind)
	var late []string
	for _, m := range s.view.Members {
		if m.Lowest == stages.Legacy || m.Stage == stages.Legacy {
			late = append(late, m.ID)
		}
	}
	switch {
	case len(late) > 0: // verify would see them, whatever the window
		on.Do = fmt.Sprintf("wait: %s may still run stage legacy, or hold its locks (%s)", counted(int64(len(late)), "member"), strings.Join(late[:min(3, len(late))], ", "))
		on.Command, on.Read = "lockmigrate stage --namespace "+s.namespace, "docs/runbook.md, step 3"
	case held > 0:
		on.InWay = append(on.InWay, fmt.Sprintf("old clients hold %s: %s", counted(held, "lock"), listKeys(first, held, true)))
		on.Do = "move the old clients, one service at a time: put a sidecar beside those that nobody will change (docs/sidecar.md), port the others. This names them"
		on.Command = fmt.Sprintf("lockmigrate observe%s --for 10m", matchFlags(r.Patterns))
		on.Read = "docs/runbook.md, step 4"
	case s.saved != nil && s.certErr == nil && s.certificate != "": // an old state beside a newer certificate
		s.toModernNow(on)
	case s.saved != nil && s.running:
		on.Do = fmt.Sprintf("a verify is looking (process %d on %s). Wait for its end; this says how far it is", s.saved.PID, s.saved.Host)
		on.Command = "lockmigrate verify --ask " + stateName(certificateName(s.namespace))
		on.Read = "docs/runbook.md, step 5"
	case s.saved != nil && len(s.saved.Known().Seen) == 0 && len(s.saved.Lost()) == 0:
		looked := time.Duration(s.saved.Evidence.LookedSeconds * float64(time.Second)).Round(time.Second)
		on.InWay = append(on.InWay, fmt.Sprintf("a verify was ended after %v of %v", looked, s.saved.Options.Window))
		on.Do = "go on with it. Where a command ran in between that writes, its window begins again"
		on.Command = "lockmigrate verify --resume " + stateName(certificateName(s.namespace))
		on.Read = "docs/runbook.md, step 5"
	case len(s.seen) > 0:
		on.InWay = append(on.InWay, s.certificate+" has seen old clients")
		s.named(on, whatToDoAbout)
		on.Do = "deal with each of them, and then look again"
		on.Command = s.verify()
		on.Read = "docs/runbook.md, step 4"
		on.Costs = []string{verifyCosts}
	case s.certificate == "" || s.certErr != nil:
		on.Do = "no old client holds a lock at this moment. "
		if n := s.oldClients(); n > 0 {
			on.Do += fmt.Sprintf("Move the %s that %s names (docs/runbook.md, step 4). Then prove", counted(int64(n), "old client"), s.profileFile)
		} else {
			on.Do += "Prove"
		}
		on.Do += " that none is left"
		if r.Longest == 0 {
			on.Do += ". How long one may be silent you have to state: --longest-silence 25h where its job runs once a day, and --for longer than that"
		}
		if s.certErr != nil {
			on.InWay = append(on.InWay, s.certErr.Error())
		}
		on.Command = s.verify()
		on.Read = "docs/runbook.md, step 5"
		on.Costs = []string{verifyCosts}
	default:
		s.toModernNow(on)
	}
}

// oldClients is how many the profile names. They may have moved since.
func (s *standing) oldClients() (n int) {
	if s.profile != nil {
		for _, c := range s.profile.Clients {
			if c.Kind == observe.Legacy {
				n++
			}
		}
	}
	return n
}

const verifyCosts = "--monitor runs MONITOR for the whole window; docs/operator.md says when you can do without"

// verify is the command that proves it. How long an old client may be silent is the operator's statement: where the record does not have it, the
// command has a hole, so that it fails until somebody has thought.
func (s *standing) verify() string {
	silence := "--longest-silence HOW-LONG --for LONGER"
	if longest := s.view.Record.Longest; longest > 0 {
		silence = "--for " + strings.TrimSuffix(strings.TrimSuffix((longest+max(longest/20, time.Minute)).Round(time.Second).String(), "0s"), "0m")
	}
	return fmt.Sprintf("lockmigrate verify --namespace %s %s --monitor --out %s", s.namespace, silence, certificateName(s.namespace))
}

// whatToDoAbout says who an old client is, and what to do about it.
func whatToDoAbout(c verify.Client) string {
	who := strings.Join(strings.Fields(c.Addr+" "+c.Name+" "+c.User), " ")
	keys := ""
	if len(c.Keys) > 0 {
		keys = fmt.Sprintf(" on %q", c.Keys[0])
	}
	source, _, _ := strings.Cut(c.Evidence, ":")
	switch source {
	case "MONITOR", "capture":
		return fmt.Sprintf("%s: %s%s. Put a sidecar beside this service (docs/sidecar.md), or port it", who, c.Evidence, keys)
	case "ACL LOG":
		return fmt.Sprintf("%s: %s%s. The fence stopped it: port it, put a sidecar beside it, or switch it off", who, c.Evidence, keys)
	case "census":
		return fmt.Sprintf("nobody was named: %s%s. lockmigrate observe while it works names the client", c.Evidence, keys)
	}
	return fmt.Sprintf("%s: %s. Restart this Go service, or stop it: lockmigrate stage shows it", who, c.Evidence)
}

// toModernNow is stage bridge with a certificate that no old client is left.
func (s *standing) toModernNow(on *step) {
	switch {
	case s.keysErr != nil:
		on.InWay = append(on.InWay, s.keysErr.Error())
		on.Do, on.Command = "remove what dead old clients have left", s.sweep()
		on.Read = "docs/runbook.md, step 6"
	default:
		on.Do = "shut the door with a fence, if the server has users (lockmigrate fence names them), and move to modern"
		on.Command = fmt.Sprintf("lockmigrate stage advance --namespace %s --to modern --certificate %s --wait --execute", s.namespace, s.certificate)
		on.Read = "docs/runbook.md, steps 6 and 7"
		on.Costs = whatToKnow(stages.Bridge, stages.Modern)
	}
}

func (s *standing) sweep() string {
	return fmt.Sprintf("lockmigrate sweep%s --ghost-after 1m --execute", matchFlags(s.view.Record.Patterns))
}

// waits says what the old clients waited when the profile was measured.
func (s *standing) waits() (lines []string) {
	if s.profile == nil {
		return nil
	}
	for _, c := range s.profile.Clients {
		if c.Kind != "legacy" {
			continue
		}
		for _, u := range c.Uses {
			at := func(share float64) time.Duration { return time.Duration(u.Wait.At(share) * float64(time.Millisecond)) }
			if at(0.9) >= 10*time.Millisecond {
				lines = append(lines, fmt.Sprintf("when measured, %s waited %s at the median for %s, and one time in ten longer than %s", c.Name, short(at(0.5)), u.Family, short(at(0.9))))
			}
		}
	}
	return lines
}

// measured says what is known of the old clients, and where from.
func (s *standing) measured() []string {
	switch {
	case s.profile == nil:
		return []string{fmt.Sprintf("nothing: there is no %s", s.profileFile)}
	case s.oldErr != nil:
		return []string{s.profileFile + ": " + s.oldErr.Error()}
	}
	what := fmt.Sprintf("%s, watched for %s", s.profileFile, short(time.Duration(s.profile.Seconds()*float64(time.Second))))
	if n := len(s.profile.Windows); n > 0 && !s.profile.Windows[n-1].Start.IsZero() {
		begun := s.profile.Windows[n-1].Start
		what += ", last on " + begun.UTC().Format(time.DateOnly)
		if s.view != nil && s.view.Record.Epoch > 1 && begun.Before(s.view.Record.Since) {
			what += ", before the present stage"
		}
	}
	return append([]string{what}, s.old.Why...)
}

func (s *standing) print(env *environment, on step) error {
	doc := struct {
		Namespace string   `json:"namespace"`
		Measured  []string `json:"measured"`
		Keys      string   `json:"on_the_keys,omitempty"`
		step
	}{s.namespace, s.measured(), "", on}
	if s.keys != nil {
		doc.Keys = s.keys.String()
	}
	return env.print(doc, func(b *strings.Builder) {
		ink := env.ink()
		line := func(what, text string) { fmt.Fprintf(b, "%-12s%s\n", what, terminal.Safe(text)) }
		line("namespace", s.namespace)
		line("stands at", on.Stands)
		line("measured", doc.Measured[0])
		for _, why := range doc.Measured[1:] {
			if s.view == nil { // the record has its own figures
				line("", why)
			}
		}
		if doc.Keys != "" {
			line("keys", doc.Keys)
		}
		for _, w := range on.InWay {
			fmt.Fprintf(b, "%s  %s\n", ink.Warn("in the way"), terminal.Safe(w))
		}
		for _, c := range on.Costs {
			line("cost", c)
		}
		line(map[bool]string{true: "done", false: "next"}[on.Done], on.Do)
		line("read", on.Read)
		fmt.Fprintf(b, "\n  %s\n", ink.Head(terminal.Safe(on.Command)))
	})
}
