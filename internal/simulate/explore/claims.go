package explore

import (
	_ "embed"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Verdict is what a search says of a claim.
type Verdict string

const (
	Exclusive  Verdict = "exclusive"  // no interleaving within the bounds violates it
	Violated   Verdict = "violated"   // a counterexample was found
	Incomplete Verdict = "incomplete" // neither, within the limits
)

// Claim is a statement about a small model, and what is known about it.
type Claim struct {
	ID          string  `json:"id"`
	Clients     string  `json:"clients"` // their kinds, as claims.txt has them
	Assumptions string  `json:"assumptions"`
	Expected    Verdict `json:"expected"`
	// Within bounds the server commands of the shortest counterexample; 0 does not.
	Within int    `json:"-"`
	Model  *Model `json:"-"`
}

// Finding is a claim with what the search found.
type Finding struct {
	Claim
	Outcome
}

// AsExpected tells that the verdict, and the length of the counterexample, are the expected ones.
func (f *Finding) AsExpected() bool {
	return f.Verdict == f.Expected && (f.Within == 0 || f.Ran <= f.Within)
}

//go:embed claims.txt
var claimsText string

// Claims are those of claims.txt: what an exhaustive study of the protocol showed, and more.
func Claims() []Claim {
	var lines []string
	for line := range strings.Lines(claimsText) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	var all []Claim
	for _, text := range strings.Split(strings.Join(lines, ""), "\nclaim ")[1:] {
		if !strings.Contains(text, "{dialect}") {
			all = append(all, claimOf(text))
			continue
		}
		for _, d := range protocol.Dialects() {
			all = append(all, claimOf(strings.NewReplacer("{dialect}", d.Name, "{letter}", d.Letter).Replace(text)))
		}
	}
	return all
}

// claimOf reads one claim without its first word.
func claimOf(text string) Claim {
	head, body, _ := strings.Cut(text, "\n")
	head, assumptions, _ := strings.Cut(head, ": ")
	words := strings.Fields(head)
	c := Claim{ID: words[0], Assumptions: assumptions, Expected: Verdict(words[1]), Model: world(body)}
	for _, word := range words[2:] {
		letters, except := strings.CutPrefix(word, "except=")
		switch letter, _, _ := strings.Cut(c.ID, "-"); {
		case !except:
			assign(word, &c.Within)
		case strings.Contains(letters, letter):
			c.Expected = map[Verdict]Verdict{Exclusive: Violated, Violated: Exclusive}[c.Expected]
		}
	}
	for i := range c.Model.Clients {
		c.Clients = strings.TrimSpace(c.Clients + " " + c.Model.Clients[i].Kind)
	}
	return c
}
