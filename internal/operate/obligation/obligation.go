// Package obligation is how a tool that vouches says why: a "yes" is a list of obligations, and each of them
// has to be discharged by evidence. A tool starts from "no" or "inconclusive".
package obligation

// Obligation is one thing that a yes needs.
type Obligation struct {
	ID         string `json:"id"`
	Discharged bool   `json:"discharged"`
	Evidence   string `json:"evidence"` // what was seen, or why it could not be looked at
}

// All tells whether every obligation is discharged. An empty list proves nothing: it is false.
func All(list []Obligation) bool { return len(list) > 0 && len(Open(list)) == 0 }

// Open are the names of those that are not discharged.
func Open(list []Obligation) (names []string) {
	for _, o := range list {
		if !o.Discharged {
			names = append(names, o.ID)
		}
	}
	return names
}

// Mark is the word that stands before an obligation in text.
func (o Obligation) Mark() string {
	if o.Discharged {
		return "yes"
	}
	return "NO"
}
