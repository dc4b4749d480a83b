package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Topologies are what a topology needs besides the use of a lock package.
var Topologies = table["topologies"]

// inOrder are the uses in the order of the table of SECURITY.md.
func inOrder() []Use { return slices.Concat(Packages, Topologies, Commands, Sidecars) }

// names lists the rights of a kind, those that a use can do without in brackets.
func (u Use) names(kind Kind) string {
	var out []string
	for _, r := range u.Rights {
		if r.Kind != kind {
			continue
		}
		name := r.Name
		if kind == Key {
			switch {
			case r.Name[0] == ':':
				name = "{KEY}" + r.Name
			case r.Name == Lock:
				name = "KEY"
			}
		}
		if r.Without != "" {
			name = "[" + name + "]"
		}
		out = append(out, name)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

// Markdown is the table of SECURITY.md. A row has what its use needs beside the rights of an earlier row.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| use | as the row | keys | channels | commands |\n|---|---|---|---|---|\n")
	for i, u := range inOrder() {
		name := u.Name
		if at := i - len(Packages); at >= 0 && at < len(Topologies) {
			name = "in addition, over package " + name
		}
		var base Use
		for _, o := range inOrder()[:i] {
			if strings.Fields(o.Name)[0] == strings.Fields(u.Name)[0] && len(o.Rights) > max(len(base.Rights), 4) && u.includes(o.Rights) {
				base = o
			}
		}
		more := Use{Rights: slices.DeleteFunc(slices.Clone(u.Rights), func(r Right) bool { return base.includes([]Right{r}) })}
		row := func(kind Kind) string {
			if text := more.names(kind); text != "none" {
				return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
			}
			return ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, base.Name, row(Key), row(Channel), row(Command))
	}
	return b.String()
}

// includes tells whether a use has these rights, and can do without the same ones.
func (u Use) includes(rights []Right) bool {
	return !slices.ContainsFunc(rights, func(r Right) bool {
		return !slices.ContainsFunc(u.Rights, func(o Right) bool { return o.Kind == r.Kind && o.Name == r.Name && o.Without == r.Without })
	})
}

// Losses lists what is lost without a right in brackets.
func Losses() string {
	var order []string
	names, seen := map[string][]string{}, map[string]bool{}
	for _, u := range inOrder() {
		for _, r := range u.Rights {
			if r.Without == "" || seen[r.Name] {
				continue
			}
			if seen[r.Name] = true; names[r.Without] == nil {
				order = append(order, r.Without)
			}
			names[r.Without] = append(names[r.Without], "`"+r.Name+"`")
		}
	}
	var b strings.Builder
	for _, lost := range order {
		fmt.Fprintf(&b, "- %s: %s.\n", strings.Join(names[lost], ", "), lost)
	}
	return b.String()
}

// PackageDoc is the part of a package's documentation about rights, as a file of its own.
func PackageDoc(pkg string) string {
	var b strings.Builder
	b.WriteString("// # Least rights\n//\n")
	b.WriteString("// An ACL user needs these rights, for its locks' keys and the keys beside them. What is in brackets may be missing:\n")
	b.WriteString("// SECURITY.md says what is lost then. Every other right that is missing makes an operation fail, and the error names it.\n")
	b.WriteString("// `lockmigrate doctor` tries them. This text is made from internal/operate/doctor/rights.txt, and a test compares it.\n")
	for _, u := range slices.Concat(Packages, Topologies) {
		if first, _, _ := strings.Cut(u.Name, " "); first == pkg {
			fmt.Fprintf(&b, "//\n//   - %s. Keys: %s. Channels: %s.\n//     Commands: %s.\n", u.Name, u.names(Key), u.names(Channel), u.names(Command))
		}
	}
	fmt.Fprintf(&b, "package %s\n", pkg)
	return b.String()
}
