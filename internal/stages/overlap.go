package stages

// Overlap tells whether some key matches both patterns, in which * and ? are special.
func Overlap(a, b string) bool {
	type state struct{ i, j int }
	seen := map[state]bool{}
	var walk func(i, j int) bool
	walk = func(i, j int) bool {
		s := state{i, j}
		if seen[s] {
			return false
		}
		seen[s] = true
		switch {
		case i == len(a) && j == len(b):
			return true
		case i < len(a) && a[i] == '*':
			return walk(i+1, j) || j < len(b) && walk(i, j+1)
		case j < len(b) && b[j] == '*':
			return walk(i, j+1) || i < len(a) && walk(i+1, j)
		case i == len(a) || j == len(b):
			return false
		default:
			return (a[i] == b[j] || a[i] == '?' || b[j] == '?') && walk(i+1, j+1)
		}
	}
	return walk(0, 0)
}
