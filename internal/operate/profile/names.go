package profile

import (
	"regexp"
	"slices"
	"strings"
)

// plain are names that mean the same in a shell, in a key pattern, and on a terminal.
var plain = regexp.MustCompile(`^[A-Za-z0-9._:/{}@=+,#-]+$`)

// mostPatterns is how many patterns Patterns gives.
const mostPatterns = 8

// Patterns are key patterns of what the old clients lock: those that observe was given, else the measured families with a *
// for each number. There are none where the names need quoting, begin with an id, or are too many kinds.
func (p Profile) Patterns() []string {
	if len(p.Match) > 0 {
		return p.Match
	}
	var all []string
	for _, family := range p.old() {
		pattern := strings.ReplaceAll(family, "#", "*")
		switch {
		case !plain.MatchString(family) || strings.HasPrefix(pattern, "*"):
			return nil
		case !slices.Contains(all, pattern):
			all = append(all, pattern)
		}
	}
	if len(all) > mostPatterns {
		return nil
	}
	slices.Sort(all)
	return all
}

// old are the families that old clients use, the most used first.
func (p Profile) old() []string {
	var all []string
	n := map[string]int64{}
	for _, c := range p.Clients {
		if c.Kind != "legacy" {
			continue
		}
		for _, u := range c.Uses {
			if n[u.Family] == 0 {
				all = append(all, u.Family)
			}
			n[u.Family] += max(u.Tries, 1)
		}
	}
	slices.SortStableFunc(all, func(a, b string) int { return int(n[b] - n[a]) })
	return all
}

// Namespace is a name for the namespace of these keys: the words of the kind that is used most. It is empty where there are
// none.
func (p Profile) Namespace() string {
	for _, family := range p.old() {
		words := strings.FieldsFunc(family, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
		words = slices.DeleteFunc(words, func(w string) bool {
			w = strings.ToLower(w)
			return w == "lock" || w == "locks" || w == "lck" || len(w) > 30
		})
		if len(words) > 0 {
			return strings.Join(words[:min(len(words), 3)], "-")
		}
	}
	return ""
}
