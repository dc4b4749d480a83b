package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/overlaps"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
)

// mostHolds is how many holds one observation keeps: a file of 10 MB.
const mostHolds = 200_000

// heldSummary is what --json says of a file of holds.
type heldSummary struct {
	File         string    `json:"file"`
	Holds        int       `json:"holds"`
	From         time.Time `json:"from"`
	To           time.Time `json:"to"`
	ClockErrorMS float64   `json:"clock_error_ms"`
	NotSeen      []string  `json:"not_seen,omitempty"`
}

// writeHolds writes the holds to the file of --holds, with what else may be missing. It returns nil where there are none to be written.
func writeHolds(flags observeFlags, held *overlaps.Seen, missing []string) (*heldSummary, error) {
	if held == nil {
		return nil, nil
	}
	held.Match = flags.match
	held.NotSeen = append(held.NotSeen, missing...)
	if err := writeFile(flags.holds, held.Write); err != nil {
		return nil, err
	}
	return &heldSummary{flags.holds, len(held.Holds), held.From, held.To, float64(held.ClockErrorUS) / 1000, held.NotSeen}, nil
}

func (h *heldSummary) print(b *strings.Builder) {
	if h == nil {
		return
	}
	each(b, "NOT ALL HOLDS ARE KNOWN", h.NotSeen)
	file := terminal.Quoted(h.File)
	fmt.Fprintf(b, "wrote %s of %s to %s, on the server's clock within %s: lockmigrate observe overlaps %s OTHER-FILE\n",
		counted(int64(h.Holds), "hold"), short(h.To.Sub(h.From)), file, span(h.ClockErrorMS), file)
}

// missingHolds makes a failure of holds that are missing: nobody may take what is compared for all.
func missingHolds(held *overlaps.Seen) error {
	if held == nil || len(held.NotSeen) == 0 {
		return nil
	}
	return inconclusiveError("the report is complete; the file of --holds is not", "not all holds are known: %s", strings.Join(held.NotSeen, "; "))
}

func newObserveOverlapsCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "overlaps FILE FILE...",
		Short: "Find locks that clients of several captures held at once",
		Args:  cobra.ArbitraryArgs,
		RunE:  func(_ *cobra.Command, files []string) error { return findOverlaps(env, files) },
	}
}

func findOverlaps(env *environment, files []string) error {
	if len(files) < 2 {
		return usageError("name two files of holds or more", "one file has nothing to be compared with")
	}
	var all []overlaps.Seen
	for _, path := range files {
		seen, err := readFile(path, `"lockmigrate observe --pcap FILE --holds FILE" writes one`, overlaps.Read)
		if err != nil {
			return err
		}
		all = append(all, seen)
	}
	r, err := overlaps.Find(files, all)
	if err != nil {
		return failedError("compare files of one server and the same --match", "%w", err)
	}
	if env.global.json {
		err = json.NewEncoder(env.stdout).Encode(r)
	} else {
		err = env.show(overlapsText(env, len(files), r))
	}
	switch {
	case err != nil:
		return err
	case !r.To.After(r.From):
		return inconclusiveError("observe on all hosts at the same time", "there is no time that all files cover")
	case len(r.NotSeen) > 0:
		return inconclusiveError("what is printed is what the files have", "not all was seen: %s", strings.Join(r.NotSeen, "; "))
	case r.Undecided > 0:
		return inconclusiveError("compare the clocks more often, or capture on the server's host", "%s of holds: the clocks do not tell whether they overlap", counted(r.Undecided, "pair"))
	}
	return nil
}

func overlapsText(env *environment, files int, r overlaps.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d files, %s in common, %s, clocks within %s\n", files, short(max(0, r.To.Sub(r.From))), counted(r.Holds, "hold"), span(r.ClockErrorMS))
	found := fmt.Sprintf("overlaps of clients of different files: %d", r.Count)
	if r.Count > 0 {
		found = env.ink().Bad(found)
	}
	b.WriteString(found + "\n")
	for _, v := range r.Overlaps[:min(mostOverlaps, len(r.Overlaps))] {
		fmt.Fprintf(&b, "\nOVERLAP on %s for %s to %s\n", terminal.Quoted(v.Name), span(v.Least), span(v.Most))
		for _, h := range []overlaps.Holder{v.First, v.Second} {
			fmt.Fprintf(&b, "  %s %s in %s acquired %s\n", whoText(&observe.Who{Addr: h.Addr, Name: h.Name}), h.Dialect, terminal.Quoted(h.Source), clock(h.Acquired))
		}
	}
	more(&b, int(r.Count)-mostOverlaps, "overlaps")
	if r.Undecided > 0 {
		fmt.Fprintf(&b, "undecided: %s, none of them longer than %s\n", counted(r.Undecided, "pair"), span(r.UndecidedMS))
	}
	each(&b, "undecided", r.NotClear)
	if r.Twice > 0 {
		fmt.Fprintf(&b, "in two files: %s, counted once\n", counted(r.Twice, "hold"))
	}
	if r.Unended > 0 {
		fmt.Fprintf(&b, "no end was seen: %s before another file's client acquired the key; it crashed, or still believed to hold\n", counted(r.Unended, "hold"))
	}
	each(&b, "NOT LOOKED AT", r.NotSeen)
	if r.To.After(r.From) {
		fmt.Fprintf(&b, "not looked at: what was acquired before %s or after %s (UTC), and clients that no file has\n", clock(r.From), clock(r.To))
	} else {
		b.WriteString("NOT LOOKED AT: there is no time that all files cover\n")
	}
	return b.String()
}
