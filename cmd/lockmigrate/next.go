package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
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
	oldErr      error          // what the profile does not show
	view        *stages.View   // nil: there is no record
	reserved    bool           // its keys are, and there is no record
	deleted     int64          // the last epoch of one of this name that was deleted
	refused     error          // why stage init could not create one
	server      string         // the flags of the command line that name the server
	others      string         // where there is no record: namespaces that there are
	known       *stages.Record // where there is no record: what is known of one that was lost
	keys        *keysSeen
	keysErr     error // why modern cannot be, by what stands on the keys
	blockers    []stages.Blocker
	certificate string // the newest file that verify wrote about this namespace; empty: none
	certErr     error  // why it does not support the step to modern
	seen        []verify.Client
	saved       *verify.Saved // a verify that has not ended; nil: none
	running     bool          // it was saved a moment ago
}

func profileName(namespace string) string     { return namespace + ".profile.json" }
func certificateName(namespace string) string { return namespace + ".certificate.json" }

// newestCertificate returns the newest certificate about a record in the working folder; where none is, about its namespace; or nothing.
func newestCertificate(record stages.Record) (newest string, found verify.Certificate) {
	files, _ := filepath.Glob("*.json")
	about := false
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() > 64<<20 {
			continue
		}
		c, err := verify.Load(file)
		n := c.Evidence.Namespace
		if err != nil || n == nil || n.Name != record.Namespace {
			continue
		}
		this := n.Epoch == record.Epoch && n.Since.Equal(record.Since)
		if this && !about || this == about && c.Evidence.Ended.After(found.Evidence.Ended) {
			newest, found, about = file, c, this
		}
	}
	return newest, found
}

// serverFlags are the flags that name the server, for another command line: what the environment says needs none, and no output holds a password.
func (at *place) serverFlags() (flags string) {
	g := at.env.global
	if u, err := url.Parse(g.redis); err != nil || u.User != nil {
		g.redis = "URL"
	}
	for _, f := range []struct{ name, value string }{{"redis", g.redis}, {"tls-ca", g.tls.CA}, {"tls-cert", g.tls.Cert}, {"tls-key", g.tls.Key}} {
		if at.flags.given(f.name) {
			flags += " --" + f.name + " " + shellWord(f.value)
		}
	}
	if at.flags.given("tls-insecure") {
		flags += " --tls-insecure"
	}
	return flags
}

// standing gathers the facts. It writes nothing.
func (at *place) standing(ctx context.Context) (*standing, error) {
	env, flags := at.env, at.flags
	s := &standing{namespace: at.store.Namespace, match: flags.match, profileFile: cmp.Or(flags.profile, profileName(at.store.Namespace)), server: at.serverFlags()}
	switch p, err := openProfile(s.profileFile); {
	case err == nil:
		s.profile = &p
		if s.old, s.oldErr = p.OldClients(); s.oldErr == nil {
			s.oldErr = aboutKeys(s.profileFile, p, s.match)
		}
	case flags.profile != "" || !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	view, err := at.store.Show(ctx)
	if errors.Is(err, stages.ErrNoRecord) {
		reserved, deleted, _ := at.store.Kept(ctx)
		if s.reserved = len(reserved) > 0; !s.reserved {
			names, _ := at.store.Names(ctx)
			s.others, s.deleted = firstFew(names), deleted
		}
		var c verify.Certificate
		s.certificate, c = newestCertificate(stages.Record{Namespace: s.namespace})
		s.lost(reserved, c)
		if s.profile != nil && s.oldErr == nil && len(s.patterns()) > 0 {
			to := *at
			to.flags.match, to.flags.profile = s.patterns(), s.profileFile
			record, seen, _, err := to.creation(ctx)
			if err == nil {
				err = seen.speak(record.Dialect)
			}
			s.refused = at.explain(ctx, err)
		}
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
	} else if len(view.Members) == 0 { // what is left is to delete it
		if s.blockers, err = at.store.Delete(ctx, view.Record.Epoch, false); err != nil {
			return nil, err
		}
	}
	if view.Record.Handover != nil {
		s.certified(env.now())
		return s, nil
	}
	if s.keys, err = at.look(ctx, view.Record.Patterns); err != nil {
		return nil, err
	}
	s.keysErr = s.keys.modernCan(view.Record.Patterns)
	s.certified(env.now())
	s.unfinished(env.now(), view.Record)
	return s, nil
}

// lost sets what is known of a record that this server may have lost: its keys by what is reserved for it, as stage set may have changed them since the
// certificate, and the rest by that.
func (s *standing) lost(reserved []string, c verify.Certificate) {
	known := stages.Record{Patterns: reserved}
	if s.certificate != "" && s.deleted == 0 {
		if c.Evidence.OnlyMembers { // what a handover moves between stands in no file
			return
		}
		n := c.Evidence.Namespace
		known.Longest, known.Stage = time.Duration(n.Longest*float64(time.Second)), stages.Bridge
		if !s.reserved {
			known.Patterns = n.Patterns
		}
	}
	if len(known.Patterns) > 0 {
		s.known = &known
	}
}

// certified looks for the newest certificate where one counts, what it says of the record, and whom it has seen if it is no evidence.
func (s *standing) certified(now time.Time) {
	r := s.view.Record
	file, c := newestCertificate(r)
	if s.certificate = file; file == "" || r.Stage == stages.Legacy || r.Stage == stages.Old {
		return
	}
	if _, s.certErr = shows(c, s.certificate, r, now); !errors.Is(s.certErr, verify.ErrVerdict) {
		return
	}
	switch {
	case r.Handover != nil:
		s.seen = c.Evidence.Unexplained
	case c.Verdict == verify.Seen:
		s.seen = c.Evidence.Seen
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

// measured says what is known of the old clients, and where from.
func (s *standing) measured() []string {
	switch {
	case s.profile == nil:
		return []string{fmt.Sprintf("nothing: there is no %s", s.profileFile)}
	case s.oldErr != nil:
		return []string{s.profileFile + ": " + s.oldErr.Error()}
	}
	what := fmt.Sprintf("%s, watched for %s", s.profileFile, short(time.Duration(s.profile.Window.Seconds*float64(time.Second))))
	if begun := s.profile.Window.Start; !begun.IsZero() {
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
		line := func(what, text string) { fmt.Fprintf(b, "%-12s%s\n", what, safe(text)) }
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
			fmt.Fprintf(b, "%s  %s\n", ink.Warn("in the way"), safe(w))
		}
		for _, c := range on.Costs {
			line("cost", c)
		}
		line(map[bool]string{true: "done", false: "next"}[on.Done], on.Do)
		line("read", on.Read)
		fmt.Fprintf(b, "\n  %s\n", ink.Head(safe(on.Command)))
	})
}
