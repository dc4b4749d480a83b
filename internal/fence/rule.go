package fence

import (
	"encoding/base64"
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
// of Unicode, of which strings.Fields thinks otherwise.
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

// grants tells that a part may allow SETNX or GETSET: by name, or by a category.
func (p permissions) grants() bool {
	return slices.ContainsFunc(p.commands, func(w string) bool {
		return strings.HasPrefix(w, "+@") || w == "+setnx" || w == "+getset"
	})
}

// names tells that a rule speaks of SETNX or GETSET by name.
func (p permissions) names() bool {
	return slices.ContainsFunc(p.commands, func(w string) bool { return isFence(w) || isFence("-"+w[1:]) })
}

func isFence(word string) bool { return word == "-setnx" || word == "-getset" }

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

// keeper writes the selector by which a fence keeps SETNX and GETSET for other keys.
func keeper(patterns []string) string {
	return "(+setnx +getset " + memoryKeep + " ~" + strings.Join(patterns, " ~") + ")"
}

// ours tells a selector that a fence has added.
func (p permissions) ours() bool {
	_, remembers := p.memory()
	return remembers || slices.Contains(p.other, memoryKeep)
}

// A fence remembers the rights of before in the rule itself, as a selector that allows nothing: its keys are
// the patterns below, it has no command. So a fence can be taken away exactly, on whichever server, also
// after ACL SAVE and a restart.
const (
	memoryRoot     = "%R~lockmigrate:fence:root:"     // + the commands of the root
	memorySelector = "%R~lockmigrate:fence:selector:" // + the words of a selector
	memoryKeep     = "%R~lockmigrate:fence:keep"      // marks the selector of what is kept
)

// memory is what a fence remembers.
type memory struct {
	root      []string
	selectors []permissions // of those that were changed, as they were
}

func (p permissions) memory() (m memory, ok bool) {
	for _, w := range p.other {
		if text, found := strings.CutPrefix(w, memoryRoot); found {
			m.root, ok = decode(text), true
		}
		if text, found := strings.CutPrefix(w, memorySelector); found {
			was := permissions{}
			for _, word := range decode(text) {
				was.add(word)
			}
			m.selectors, ok = append(m.selectors, was), true
		}
	}
	return m, ok
}

func (m memory) text() string {
	out := memoryRoot + encode(m.root)
	for _, s := range m.selectors {
		out += " " + memorySelector + encode(append(slices.Clone(s.other), s.commands...))
	}
	return "(" + out + " -@all)"
}

func encode(words []string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(words, " ")))
}

func decode(text string) []string {
	raw, _ := base64.RawURLEncoding.DecodeString(text)
	return Words(string(raw))
}

// memory finds what an earlier fence remembers.
func (r rule) memory() (memory, bool) {
	for _, s := range r.selectors {
		if m, ok := s.memory(); ok {
			return m, true
		}
	}
	return memory{}, false
}

// strip leaves out what speaks of SETNX and GETSET.
func strip(commands []string) []string {
	return slices.DeleteFunc(slices.Clone(commands), func(w string) bool { return isFence(w) || isFence("-"+w[1:]) })
}

// same compares commands without those that a fence changes, in whatever order the server writes them.
func same(a, b []string) bool {
	a, b = strip(a), strip(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// restored are the commands without the fence: those of before, or, where somebody changed other rights
// meanwhile, those of now with what was said by name of SETNX and GETSET before.
func restored(now, before []string) []string {
	if same(now, before) {
		return before
	}
	out := strip(now)
	for _, w := range before {
		if isFence(w) || isFence("-"+w[1:]) {
			out = append(out, w)
		}
	}
	return out
}
