package census

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func isDigits(b []byte) bool {
	for _, c := range b {
		if !isDigit(c) {
			return false
		}
	}
	return len(b) > 0
}
