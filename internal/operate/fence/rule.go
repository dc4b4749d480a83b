package fence

import (
	"slices"
	"strings"
)

// permissions are what one part of a user's rule allows: the root, or a selector.
type permissions struct {
	other    []string // flags, passwords, keys, channels: everything but commands, in order
	commands []string // +get, -@all ...
}

// rule is a line of ACL LIST.
type rule struct {
	user      string
	root      permissions
	selectors []permissions
}

// Words splits what a server writes about rules. Only a space ends a word there: a key pattern may hold the blanks
// of Unicode, which strings.Fields splits at.
func Words(line string) []string {
	return strings.FieldsFunc(line, func(r rune) bool { return r == ' ' })
}

// parse reads a line of ACL LIST. A key pattern may hold parentheses: a selector begins with the
// parenthesis at the start of a word, and ends with the one that closes a word which is no pattern.
func parse(line string) rule {
	words := Words(line)
	r := rule{}
	if len(words) > 1 {
		r.user, words = words[1], words[2:]
	}
	inside := false
	for _, w := range words {
		if !inside {
			first, opens := strings.CutPrefix(w, "(")
			if !opens {
				r.root.add(w)
				continue
			}
			inside, w = true, first
			r.selectors = append(r.selectors, permissions{})
		}
		if last, closes := strings.CutSuffix(w, ")"); closes && !isPattern(w) {
			inside, w = false, last
		}
		r.selectors[len(r.selectors)-1].add(w)
	}
	return r
}

// isPattern tells that a word is a pattern of keys or channels.
func isPattern(w string) bool {
	return strings.HasPrefix(w, "~") || strings.HasPrefix(w, "%") || strings.HasPrefix(w, "&")
}

func (p *permissions) add(word string) {
	switch {
	case word == "":
	case word[0] == '+' || word[0] == '-':
		p.commands = append(p.commands, word)
	default:
		p.other = append(p.other, word)
	}
}

// keys are the patterns of keys that a part speaks of.
func (p permissions) keys() []string {
	var all []string
	for _, w := range p.other {
		if strings.HasPrefix(w, "~") || strings.HasPrefix(w, "%") {
			if _, pattern, found := strings.Cut(w, "~"); found {
				all = append(all, pattern)
			}
		}
	}
	return all
}

// grants tells that a part may allow one of the commands: by name, by a first argument, or by a category.
func (p permissions) grants(commands []string) bool {
	return slices.ContainsFunc(p.commands, func(w string) bool {
		name, _, _ := strings.Cut(w, "|")
		return strings.HasPrefix(w, "+@") || name[0] == '+' && slices.Contains(commands, name[1:])
	})
}

// has tells that one part has a word with each of the beginnings.
func (r rule) has(beginnings ...string) bool {
	return slices.ContainsFunc(r.parts(), func(p permissions) bool {
		words := slices.Concat(p.other, p.commands)
		return !slices.ContainsFunc(beginnings, func(begins string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return len(w) >= len(begins) && strings.EqualFold(w[:len(begins)], begins) })
		})
	})
}

// parts are the root and the selectors.
func (r rule) parts() []permissions { return append([]permissions{r.root}, r.selectors...) }

// patterns are the patterns of keys that any part speaks of.
func (r rule) patterns() (all []string) {
	for _, part := range r.parts() {
		all = append(all, part.keys()...)
	}
	return all
}

// text writes a selector as ACL SETUSER takes it.
func (p permissions) text() string {
	return "(" + strings.Join(append(slices.Clone(p.other), p.commands...), " ") + ")"
}

// words are the arguments of ACL SETUSER that make a user what the rule says, behind its name.
func (r rule) words() []string {
	out := append(slices.Clone(r.root.other), r.root.commands...)
	for _, s := range r.selectors {
		out = append(out, s.text())
	}
	return out
}

// rights are the words of a rule that allow or deny something: its keys, channels, commands and selectors, without the flags and passwords of its user.
func (r rule) rights() []string {
	var out []string
	for _, w := range r.root.other {
		if isPattern(w) || strings.HasPrefix(w, "db=") || strings.HasPrefix(w, "reset") || strings.HasPrefix(w, "all") {
			out = append(out, w)
		}
	}
	out = append(out, r.root.commands...)
	for _, s := range r.selectors {
		out = append(out, slices.Concat([]string{"("}, s.other, s.commands)...)
	}
	return out
}

// alike tells that two rules have the same words, in whatever order: 7.0 writes them in another one after a restart.
func alike(a, b rule) bool {
	return slices.Equal(slices.Sorted(slices.Values(a.rights())), slices.Sorted(slices.Values(b.rights())))
}
