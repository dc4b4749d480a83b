package rights

import (
	"fmt"
	"slices"
	"strings"
)

// Topologies are what a topology needs besides the use of a lock package.
var Topologies = []Use{
	use("cluster", "cluster|slots"),
	use("sentinel", "?role"),
}

// all are the uses in the order of the table.
func all() []Use { return slices.Concat(Packages, Topologies, Commands, Sidecars) }

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

// Markdown is the table of SECURITY.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| use | keys | channels | commands |\n|---|---|---|---|\n")
	for i, u := range all() {
		name := u.Name
		if at := i - len(Packages); at >= 0 && at < len(Topologies) {
			name = "in addition, over package " + name
		}
		row := func(kind Kind) string {
			if text := u.names(kind); text != "none" {
				return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
			}
			return "none"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, row(Key), row(Channel), row(Command))
	}
	return b.String()
}

// Losses lists what is lost without a right in brackets.
func Losses() string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, u := range all() {
		for _, r := range u.Rights {
			if r.Without != "" && !seen[r.Name] {
				seen[r.Name] = true
				fmt.Fprintf(&b, "- `%s`: %s.\n", r.Name, r.Without)
			}
		}
	}
	return b.String()
}

// PackageDoc is the part of a package's documentation about rights, as a file of its own.
func PackageDoc(pkg string) string {
	var b strings.Builder
	b.WriteString("// # Least rights\n//\n")
	b.WriteString("// An ACL user needs these rights, for its locks' keys and the keys beside them. What is in brackets may be missing:\n")
	b.WriteString("// SECURITY.md says what is lost then. Every other right that is missing makes an operation fail, and the error names it.\n")
	b.WriteString("// `lockmigrate doctor` tries them. This text is made from internal/operate/rights, and a test compares it.\n")
	for _, u := range slices.Concat(Packages, Topologies) {
		if first, _, _ := strings.Cut(u.Name, " "); first == pkg {
			fmt.Fprintf(&b, "//\n//   - %s. Keys: %s. Channels: %s.\n//     Commands: %s.\n", u.Name, u.names(Key), u.names(Channel), u.names(Command))
		}
	}
	fmt.Fprintf(&b, "package %s\n", pkg)
	return b.String()
}
