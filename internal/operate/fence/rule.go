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

// names tells that a rule speaks of one of the commands by name.
func (p permissions) names(commands []string) bool {
	return len(strip(p.commands, commands)) < len(p.commands)
}

// byArgument tells that a part allows a command for one first argument only, which may be a key of the locks.
func (r rule) byArgument(command string) bool {
	return slices.ContainsFunc(r.parts(), func(p permissions) bool {
		return slices.ContainsFunc(p.commands, func(w string) bool { return strings.HasPrefix(strings.ToLower(w), "+"+command+"|") })
	})
}

// split tells that a part has patterns that only read and others that only write. A key may then be readable by
// one and writable by the other, and no key that stands for one pattern shows that.
func (r rule) split() bool {
	return slices.ContainsFunc(r.parts(), func(p permissions) bool {
		reads := slices.ContainsFunc(p.other, func(w string) bool { return strings.HasPrefix(w, "%R~") })
		return reads && slices.ContainsFunc(p.other, func(w string) bool { return strings.HasPrefix(w, "%W~") })
	})
}

// databases tells that a part holds in some databases only, which Valkey has since 9.1.
func (r rule) databases() bool {
	return slices.ContainsFunc(r.parts(), func(p permissions) bool {
		return slices.ContainsFunc(p.other, func(w string) bool { return strings.HasPrefix(w, "db=") })
	})
}

// parts are the root and the selectors.
func (r rule) parts() []permissions { return append([]permissions{r.root}, r.selectors...) }

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

// keeper writes the selector by which a fence keeps commands for other keys.
func keeper(commands, patterns []string) string {
	return "(+" + strings.Join(commands, " +") + " " + memoryKeep + " ~" + strings.Join(patterns, " ~") + ")"
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
	memoryKeys     = "lockmigrate:fence:"             // no key begins so
	memoryRoot     = "%R~" + memoryKeys + "root:"     // + the commands of the root
	memorySelector = "%R~" + memoryKeys + "selector:" // + the words of a selector
	memoryDenied   = "%R~" + memoryKeys + "denied:"   // + the commands that the fence denies
	memoryKeep     = "%R~" + memoryKeys + "keep"      // marks the selector of what is kept
)

// memory is what a fence remembers.
type memory struct {
	root      []string
	denied    []string      // commands
	selectors []permissions // of those that were changed, as they were
}

func (p permissions) memory() (m memory, ok bool) {
	for _, w := range p.other {
		if text, found := strings.CutPrefix(w, memoryRoot); found {
			m.root, ok = decode(text), true
		}
		if text, found := strings.CutPrefix(w, memoryDenied); found {
			m.denied = decode(text)
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
	out := memoryRoot + encode(m.root) + " " + memoryDenied + encode(m.denied)
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

// strip leaves out what speaks of the commands by name.
func strip(words, commands []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool {
		name, _, _ := strings.Cut(w[1:], "|")
		return slices.Contains(commands, name)
	})
}

// same compares words without those that a fence changes, in whatever order the server writes them.
func (m memory) same(a, b []string) bool {
	a, b = strip(a, m.denied), strip(b, m.denied)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// restored are the words without the fence: those of before, or, where somebody changed other rights meanwhile,
// those of now with what was said by name of the fence's commands before.
func (m memory) restored(now, before []string) []string {
	if m.same(now, before) {
		return before
	}
	out := strip(now, m.denied)
	for _, w := range before {
		if len(strip([]string{w}, m.denied)) == 0 {
			out = append(out, w)
		}
	}
	return out
}
