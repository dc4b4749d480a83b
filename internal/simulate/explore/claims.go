package explore

import (
	_ "embed"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

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
		c.Clients = strings.TrimSpace(c.Clients + " " + c.Model.Clients[i].letter())
	}
	return c
}

// letter names what a client is: L legacy, B bridge, M modern, S behind a sidecar, H in a handover.
func (c *Client) letter() string {
	switch {
	case c.New != nil:
		return "H"
	case c.Scheme == model.GoLegacy:
		return "L"
	case c.Behind != "":
		return "S"
	case c.Grace < 0: // it takes nothing over
		return "M"
	}
	return strings.ToUpper(c.Scheme.String()[:1])
}
