package observe

// Family names the kind of lock that a key belongs to: its name with numbers and ids taken out.
func Family(key string) string { return familyOf(key) }

// Compatible tells that clients of two dialects read each other's values.
func Compatible(a, b string) bool { return a == b || compatible(a, b) }
