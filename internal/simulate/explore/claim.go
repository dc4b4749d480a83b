package explore

import (
	"context"
	"time"
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
	Clients     string  `json:"clients"` // L legacy, B bridge, M modern
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
	Took time.Duration `json:"-"`
}

// AsExpected tells that the verdict, and the length of the counterexample, are the expected ones.
func (f *Finding) AsExpected() bool {
	return f.Verdict == f.Expected && (f.Within == 0 || f.Ran <= f.Within)
}

// Check explores one claim.
func Check(ctx context.Context, c Claim, states int) Finding {
	return Finding{Claim: c, Outcome: Search(ctx, c.Model, states)}
}
