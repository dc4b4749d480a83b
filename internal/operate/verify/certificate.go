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

	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Verdict is what the evidence comes to.
type Verdict string

// The verdicts.
const (
	NoneSeen     Verdict = "none-seen"
	Seen         Verdict = "seen"
	Inconclusive Verdict = "inconclusive"
)

// Certificate is what was found, and what it comes to. All but Evidence is for readers: it follows from the evidence, and Supports
// derives it again.
type Certificate struct {
	Format        string             `json:"format"` // lockmigrate-certificate-1
	Verdict       Verdict            `json:"verdict"`
	Why           string             `json:"why"`
	Obligations   []fence.Obligation `json:"obligations"`
	ResidualRisks []string           `json:"residual_risks"`
	Evidence      Evidence           `json:"evidence"`
}

// Format is the certificate's.
const Format = "lockmigrate-certificate-1"

// Certify writes the certificate that evidence amounts to.
func Certify(e Evidence) Certificate {
	verdict, why, obligations := Judge(e)
	return Certificate{Format, verdict, why, obligations, risksOf(&e, verdict), e}
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
	if err != nil {
		return doc, err
	}
	family := strings.TrimRight(format, "0123456789")
	switch {
	case json.Unmarshal(text, &doc) == nil && of(doc) == format:
		return doc, nil
	case strings.HasPrefix(of(doc), family):
		return doc, fmt.Errorf("%s is of format %s, and this build reads %s: use the build that wrote it, or a later one", file, of(doc), format)
	}
	return doc, fmt.Errorf("%s is no %s of lockmigrate verify", file, kind)
}

// What is wrong with a certificate for a purpose.
var (
	ErrVerdict   = errors.New("its verdict is not none-seen")
	ErrStale     = errors.New("it is too old")
	ErrFuture    = errors.New("it ended in the future by this host's clock: set the clock, or remove the file")
	ErrShort     = errors.New("its window is too short")
	ErrNamespace = errors.New("it is about another namespace, or another epoch of it")
)

// oldest is how long a certificate supports a step: traffic of the day before says little.
const oldest = 24 * time.Hour

// Supports tells whether the certificate supports a step of a namespace whose record is r, by this host's clock: the one to modern, or a handover's, from
// both to new. It does not trust the verdict or the obligations in the file: it judges the evidence again, with the patterns that the record has now.
// At stage modern a certificate is not too old: what was shown stays shown.
func (c Certificate) Supports(r stages.Record, now time.Time) error {
	e := c.Evidence
	n := e.Namespace
	switch {
	case n == nil || n.Name != r.Namespace || n.Epoch != r.Epoch:
		return ErrNamespace
	case e.OnlyMembers != (r.Handover != nil):
		return fmt.Errorf("%w: whether it asked for members only, or for old clients", ErrNamespace)
	case !n.Since.Equal(r.Since):
		return fmt.Errorf("%w: a record of this name on another server", ErrNamespace)
	case e.Ended.After(now.Add(time.Minute)):
		return ErrFuture
	}
	today := *n
	today.Patterns = r.Patterns
	e.Namespace = &today
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
	case now.Sub(e.Ended) > oldest && r.Stage != stages.Modern:
		return ErrStale
	case seconds(e.LongestSeconds) < r.Silence():
		return fmt.Errorf("%w: the longest silence was said to be %v, less than the %v that the record knows of", ErrShort, seconds(e.LongestSeconds), r.Silence())
	}
	return nil
}

// risksOf says what a certificate cannot know even when all obligations are discharged.
func risksOf(e *Evidence, verdict Verdict) []string {
	if e.OnlyMembers {
		return append(commonRisks(e),
			fmt.Sprintf("a process that does nothing for longer than %v was not seen", e.window().Round(time.Second)),
			"a process that is or was a member, and locks by Old over the same Locker without package handover, looks like its member",
			"a proxy that sends the commands of several clients over one connection, or answers CLIENT ID itself, can hide a client behind a member",
			"a connection that came and went between two looks, from an address that a member's connection had just left, looks like that one")
	}
	risks := []string{
		fmt.Sprintf("a client that does nothing for longer than %v (a monthly job, a cold standby) was not seen", e.window().Round(time.Second)),
		"a client that held a lock before the window may still send a DEL",
	}
	if verdict == NoneSeen {
		risks = append(risks, "quiet is not proof: put up the fence, then a forgotten client fails loudly instead of entering beside a holder")
	}
	risks = append(risks, commonRisks(e)...)
	if e.Values.Before > 0 {
		risks = append(risks, nouns(int64(e.Values.Before), "value")+" on the keys may be a legacy client's: modern clients wait for a legacy value for ever; see sweep")
	}
	return risks
}

// commonRisks are those of runs of both kinds.
func commonRisks(e *Evidence) (risks []string) {
	if len(e.Trusted) > 0 {
		risks = append(risks, "a legacy client that authenticates as "+strings.Join(e.Trusted, " or ")+" was not looked for where MONITOR was off")
	}
	if slices.ContainsFunc(e.Masters, Master.offersUncounted) {
		risks = append(risks, "a node that was offered slots for a while was not looked at: Redis before 6.2 does not count that")
	}
	for _, db := range e.Ignored {
		risks = append(risks, fmt.Sprintf("clients of database %d were not looked at, as was said", db))
	}
	for _, g := range e.Gaps {
		risks = append(risks, fmt.Sprintf("from %s to %s nobody looked, and the window does not count that: by the counters no command ran that rules do not account for",
			g.From.UTC().Format(time.RFC3339), g.To.UTC().Format(time.RFC3339)))
	}
	return risks
}
