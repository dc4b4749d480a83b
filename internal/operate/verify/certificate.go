package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/obligation"
)

// Verdict is what the evidence comes to.
type Verdict string

// The verdicts.
const (
	NoneSeen     Verdict = "none-seen"
	Seen         Verdict = "seen"
	Inconclusive Verdict = "inconclusive"
)

// Certificate is what was found, for which window, from which sources. All but Evidence is for readers: it
// follows from the evidence, and Supports derives it again.
type Certificate struct {
	Format        string                  `json:"format"` // lockmigrate-certificate-1
	Verdict       Verdict                 `json:"verdict"`
	Why           string                  `json:"why"`
	Obligations   []obligation.Obligation `json:"obligations"`
	Namespace     string                  `json:"namespace,omitempty"`
	Epoch         int64                   `json:"epoch,omitempty"`
	Patterns      []string                `json:"patterns,omitempty"`
	Started       time.Time               `json:"started"` // this host's clock
	Ended         time.Time               `json:"ended"`
	WindowSeconds float64                 `json:"window_seconds"`
	Servers       []Server                `json:"servers"`
	Sources       []Source                `json:"sources"`
	LegacyClients []Client                `json:"legacy_clients"`
	ResidualRisks []string                `json:"residual_risks"`
	Evidence      Evidence                `json:"evidence"`
}

// Format is the certificate's.
const Format = "lockmigrate-certificate-1"

// Server is one master over the window.
type Server struct {
	Addr     string `json:"addr"`
	RunID    string `json:"run_id"`
	Version  string `json:"version"`
	Is       string `json:"is,omitempty"` // such as Valkey 9.0.0
	SetNX    int64  `json:"setnx_calls"`  // within the window
	GetSet   int64  `json:"getset_calls"`
	Rejected int64  `json:"rejected_calls"` // of all commands that can take a lock, denied before they ran
}

// Certify writes the certificate that evidence amounts to.
func Certify(e Evidence) Certificate {
	c := Certificate{
		Format: Format, Patterns: e.Patterns, Started: e.Started, Ended: e.Ended, WindowSeconds: e.window().Seconds(),
		Servers: []Server{}, Sources: sourcesOf(&e), LegacyClients: append([]Client{}, e.Seen...), Evidence: e,
	}
	c.Verdict, c.Why, c.Obligations = Judge(e)
	c.ResidualRisks = risksOf(&e, c.Verdict)
	if e.Namespace != nil {
		c.Namespace, c.Epoch = e.Namespace.Name, e.Namespace.Epoch
	}
	for _, m := range e.Masters {
		s := Server{Addr: m.Addr, RunID: m.RunID, Version: m.Version, Is: m.Is}
		for _, command := range m.Commands {
			switch command.Name {
			case "setnx":
				s.SetNX = command.Run
			case "getset":
				s.GetSet = command.Run
			}
			s.Rejected += command.Denied
		}
		c.Servers = append(c.Servers, s)
	}
	return c
}

// Write writes the certificate as JSON.
func (c Certificate) Write(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(c)
}

// Load reads a certificate from a file.
func Load(file string) (Certificate, error) {
	return load(file, "certificate", Format, func(c Certificate) string { return c.Format })
}

// load reads a file of a format.
func load[T any](file, kind, format string, of func(T) string) (doc T, err error) {
	text, err := os.ReadFile(file)
	if err == nil && (json.Unmarshal(text, &doc) != nil || of(doc) != format) {
		err = fmt.Errorf("%s is no %s of lockmigrate verify", file, kind)
	}
	return doc, err
}

// What is wrong with a certificate for a purpose.
var (
	ErrVerdict   = errors.New("its verdict is not none-seen")
	ErrStale     = errors.New("it is too old")
	ErrShort     = errors.New("its window is too short")
	ErrNamespace = errors.New("it is about another namespace, or another epoch of it")
)

// Purpose is the step that a certificate is to support: from the stage that a record is at to modern.
type Purpose struct {
	Namespace string
	Epoch     int64
	Since     time.Time     // of this epoch, on the server's clock
	Patterns  []string      // of the record as it stands now
	Shortest  time.Duration // the shortest lease of a legacy client, as the record says
	Now       time.Time     // this host's clock
	MaxAge    time.Duration // of the certificate
}

// Supports tells whether the certificate supports a step. It does not trust the verdict or the obligations in
// the file: it judges the evidence again, with the patterns that the record has now.
func (c Certificate) Supports(p Purpose) error {
	e := c.Evidence
	n := e.Namespace
	switch {
	case n == nil || n.Name != p.Namespace || n.Epoch != p.Epoch:
		return ErrNamespace
	case !n.Since.Equal(p.Since):
		return fmt.Errorf("%w: a record of this name on another server", ErrNamespace)
	}
	now := *n
	now.Patterns = p.Patterns
	e.Namespace = &now
	verdict, _, obligations := Judge(e)
	if verdict != NoneSeen || c.Verdict != verdict {
		for _, o := range obligations {
			if !o.Discharged {
				return fmt.Errorf("%w: obligation %q is not discharged: %s", ErrVerdict, o.ID, o.Evidence)
			}
		}
		return fmt.Errorf("%w: it is %q, and the evidence in it comes to %q", ErrVerdict, c.Verdict, verdict)
	}
	switch {
	case p.Now.Sub(e.Ended) > p.MaxAge || e.Ended.After(p.Now.Add(time.Minute)):
		return ErrStale
	case seconds(e.LongestSeconds) < p.Shortest:
		return fmt.Errorf("%w: the longest silence was said to be %v, less than the record's shortest lease of %v", ErrShort, seconds(e.LongestSeconds), p.Shortest)
	}
	return nil
}

// State says whether a source did its work.
type State string

// The states of a source.
const (
	Whole  State = "whole"  // it covers the window
	Part   State = "part"   // it covers a part of it
	Broken State = "broken" // it was to cover the window and did not
	Unused State = "unused"
)

// Source is one kind of evidence.
type Source struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
}

// sourcesOf says of each kind of evidence how much of the window it covers, and what it found.
func sourcesOf(e *Evidence) []Source {
	counters, _ := countersProveThemselves(e)
	var run, denied, other, hits int64
	var watched float64
	var logless, breaks []string
	for _, m := range e.Masters {
		for _, c := range m.Commands {
			if c.Name == "setnx" || c.Name == "getset" {
				run += c.Run
			}
			denied += c.Denied
			hits += c.Elsewhere
		}
		if !m.LogRead {
			logless = append(logless, m.Addr)
		}
		other += m.OtherSeen
		watched += m.WatchedSeconds
		breaks = append(breaks, m.WatchBreaks...)
	}
	all := []Source{{"commandstats", Whole, fmt.Sprintf("%d SETNX or GETSET ran, %d commands that can take a lock were denied", run, denied)}}
	if !counters {
		all[0].State = Broken
	}
	if len(logless) > 0 || len(e.Masters) == 0 {
		all = append(all, Source{"acl-log", Unused, "cannot be read on " + strings.Join(logless, ", ")})
	} else {
		all = append(all, Source{"acl-log", Whole, fmt.Sprintf("%d commands that can take a lock denied on other keys", hits)})
	}
	if n := e.Namespace; n == nil {
		all = append(all, Source{"members", Unused, "no --namespace"})
	} else {
		all = append(all, Source{"members", Part, fmt.Sprintf("read at the start and at the end, epoch %d", n.Epoch)})
	}
	switch v := e.Values; {
	case v.StartWhole && v.EndWhole:
		all = append(all, Source{"census", Part, fmt.Sprintf("%s at the start that a legacy client may have written", nouns(int64(v.Before), "value"))})
	case slices.Equal(v.Why, []string{leftOut}):
		all = append(all, Source{"census", Unused, leftOut})
	default:
		all = append(all, Source{"census", Broken, strings.Join(v.Why, "; ")})
	}
	monitor := Source{"monitor", Unused, "off"}
	average := time.Duration(0)
	if len(e.Masters) > 0 {
		average = seconds(watched / float64(len(e.Masters)))
	}
	switch {
	case len(breaks) > 0:
		monitor = Source{"monitor", Broken, fmt.Sprintf("on for %v: %s", average.Round(100*time.Millisecond), strings.Join(breaks, "; "))}
	case watched > 0:
		monitor = Source{"monitor", Part, fmt.Sprintf("on for %v of %v: %d SETNX or GETSET on other keys", average.Round(100*time.Millisecond), e.window().Round(100*time.Millisecond), other)}
		if average >= e.window() {
			monitor.State = Whole
		}
	}
	if len(e.Masters) > 0 && e.Masters[0].Capture != nil {
		c := *e.Masters[0].Capture
		all = append(all, Source{"capture", Whole, c.String()})
		if why := c.open(); why != "" {
			all[len(all)-1] = Source{"capture", Broken, why}
		}
	}
	if c := e.Recorded; c != nil {
		found := c.String()
		if len(c.NotSeen) > 0 {
			found += "; not seen: " + strings.Join(c.NotSeen, "; ")
		}
		all = append(all, Source{"capture", Part, found})
	}
	return append(all, monitor)
}

// risksOf says what a certificate cannot know even when all obligations are discharged.
func risksOf(e *Evidence, verdict Verdict) []string {
	risks := []string{
		fmt.Sprintf("a client that does nothing for longer than %v (a monthly job, a cold standby) was not seen", e.window().Round(time.Second)),
		"a client that takes locks with other commands was not looked for: WATCH, INCR, APPEND, hashes, RESTORE, COPY, RENAME",
		"a client that held a lock before the window may still send a DEL",
	}
	if verdict == NoneSeen {
		risks = append(risks, "quiet is not proof: put up the fence, then a forgotten client fails loudly instead of entering beside a holder")
	}
	if len(e.Trusted) > 0 {
		risks = append(risks, "a legacy client that authenticates as "+strings.Join(e.Trusted, " or ")+" was not looked for where MONITOR was off")
	}
	for _, g := range e.Gaps {
		if g.Restarted == "" {
			risks = append(risks, fmt.Sprintf("from %s to %s nobody looked: the counters show that no command ran that can take a lock", g.From.UTC().Format(time.RFC3339), g.To.UTC().Format(time.RFC3339)))
		}
	}
	if e.Values.Before > 0 {
		risks = append(risks, nouns(int64(e.Values.Before), "value")+" on the keys may be a legacy client's: modern clients wait for a legacy value for ever; see sweep")
	}
	return risks
}
