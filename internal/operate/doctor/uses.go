package doctor

import (
	_ "embed"
	"slices"
	"strings"
)

// Kind is what a right is about.
type Kind string

// The kinds.
const (
	Command Kind = "command" // as ACL writes it: get, client|id
	Key     Kind = "key"     // a role: the lock, a companion such as :queue, or one of the two below
	Channel Kind = "channel" // a pattern
)

const (
	Lock       = "lock"                   // the role of the lock's key
	Namespace  = "lockmigrate:{*}:*"      // the record and the members of a namespace
	Namespaces = "lockmigrate:namespaces" // the list of them

	invalidate = "__redis__:invalidate" // the channel of client tracking
)

// Right is one right.
type Right struct {
	Kind    Kind
	Name    string
	Without string // what is lost without it; empty: the operation is refused, and says which right is missing
	Frees   bool   // a release needs it and an acquisition does not: without it the lock stays until its TTL or expiry
}

// Use is one way to use a package, or one command of lockmigrate.
type Use struct {
	Name   string // legacy, modern FenceTTL, lockmigrate scan
	Rights []Right
}

//go:embed rights.txt
var rightsText string

var table = readUses(rightsText)

// Packages are the uses of the lock packages, Commands those of the operator's command, Sidecars those of a sidecar and the service behind it.
var Packages, Commands, Sidecars = table["packages"], table["commands"], table["sidecars"]

// readUses reads the uses by their sections.
func readUses(text string) map[string][]Use {
	uses, without, lists, section := map[string][]Use{}, map[string]string{}, map[string][]string{}, ""
	for line := range strings.Lines(text) {
		name, words, row := strings.Cut(strings.TrimSpace(line), " | ")
		switch {
		case strings.HasPrefix(name, "["):
			section = strings.Trim(name, "[]")
		case !row || strings.HasPrefix(name, "#"):
		case section == "without":
			for right := range strings.FieldsSeq(name) {
				without[right] = words
			}
		case section == "lists":
			lists[name] = withLists(words, lists)
		default:
			uses[section] = append(uses[section], Use{name, rightsIn(withLists(words, lists), without)})
		}
	}
	return uses
}

// withLists puts the lists in the places of their names.
func withLists(text string, lists map[string][]string) (words []string) {
	for word := range strings.FieldsSeq(text) {
		if name, isList := strings.CutPrefix(word, "$"); isList {
			words = append(words, lists[name]...)
		} else {
			words = append(words, word)
		}
	}
	return words
}

// rightsIn are the rights that words name, each as the first of them has it.
func rightsIn(words []string, without map[string]string) (all []Right) {
	for _, word := range words {
		word, optional := strings.CutPrefix(word, "?")
		word, frees := strings.CutPrefix(word, "!")
		if slices.ContainsFunc(all, func(r Right) bool { return r.Name == word }) {
			continue
		}
		r := Right{Kind: kindOf(word), Name: word, Frees: frees}
		if optional {
			r.Without = without[word]
		}
		all = append(all, r)
	}
	return all
}

func kindOf(word string) Kind {
	switch {
	case word == Lock || word == Namespace || word == Namespaces || word[0] == ':':
		return Key
	case strings.Contains(word, ":"):
		return Channel
	}
	return Command
}

// Uses are those that doctor can try.
func Uses() []Use { return slices.Concat(Packages, Commands) }

// FindUse returns one of them by its name.
func FindUse(name string) (Use, bool) {
	all := Uses()
	if i := slices.IndexFunc(all, func(u Use) bool { return u.Name == name }); i >= 0 {
		return all[i], true
	}
	return Use{}, false
}

// Has tells whether a use needs a command.
func (u Use) Has(command string) bool {
	return slices.ContainsFunc(u.Rights, func(r Right) bool { return r.Kind == Command && r.Name == command })
}

// Patterns are the ACL key patterns of a role, for locks whose keys match a pattern: a companion lies in its
// lock's slot, so its name is {key}:queue, or key:queue: where the key has a hash tag.
func Patterns(role, pattern string) []string {
	switch {
	case role == Lock:
		return []string{pattern}
	case role == Namespace || role == Namespaces:
		return []string{role}
	case strings.Contains(pattern, "{"):
		return []string{pattern + role + ":"}
	default:
		return []string{"{" + pattern + "}" + role, pattern + role + ":"}
	}
}

// Rules are the words of ACL SETUSER that grant a use, for locks whose keys match the patterns; skip is a
// right that is left out, nil for none.
func (u Use) Rules(patterns []string, skip *Right) []string {
	out := []string{"resetkeys", "resetchannels", "-@all"}
	for _, r := range u.Rights {
		if skip != nil && r == *skip {
			continue
		}
		switch r.Kind {
		case Command:
			out = append(out, "+"+r.Name)
		case Channel:
			out = append(out, "&"+r.Name)
		default:
			for _, p := range patterns {
				for _, k := range Patterns(r.Name, p) {
					out = append(out, "~"+k)
				}
			}
		}
	}
	return out
}
