package fence

// Obligation is one thing that the yes of a tool needs: of a fence, a certificate of verify, or doctor. Each has to be discharged by
// evidence, and a tool starts from "no" or "inconclusive".
type Obligation struct {
	ID         string `json:"id"`
	Discharged bool   `json:"discharged"`
	Evidence   string `json:"evidence"` // what was seen, or why it could not be looked at
}

// Undischarged are the names of those that are not discharged.
func Undischarged(list []Obligation) (names []string) {
	for _, o := range list {
		if !o.Discharged {
			names = append(names, o.ID)
		}
	}
	return names
}
