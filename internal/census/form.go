package census

import (
	"bytes"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// soundsLikeLock tells that a name holds lock (but not block, clock or unlock), mutex or lease, as a word or
// a part of one.
func soundsLikeLock(key []byte) bool {
	for i := 0; i+5 <= len(key)+1; i++ {
		switch key[i] | 0x20 {
		case 'l':
			if hasFold(key[i:], "lock") && !bytes.HasPrefix(key, []byte("redisson_unlock")) {
				if i == 0 {
					return true
				}
				if before := key[i-1] | 0x20; before != 'b' && before != 'c' && (before != 'n' || i < 2 || key[i-2]|0x20 != 'u') {
					return true
				}
			}
			if hasFold(key[i:], "lease") && (i == 0 || !isLetter(key[i-1])) {
				return true // but not please, or release
			}
		case 'm':
			if hasFold(key[i:], "mutex") {
				return true
			}
		}
	}
	return false
}

func hasFold(text []byte, word string) bool {
	if len(text) < len(word) {
		return false
	}
	for i := range len(word) {
		if text[i]|0x20 != word[i] {
			return false
		}
	}
	return true
}

func isLetter(b byte) bool { b |= 0x20; return b >= 'a' && b <= 'z' }
func isDigit(b byte) bool  { return b >= '0' && b <= '9' }
func isHex(b byte) bool    { return isDigit(b) || b|0x20 >= 'a' && b|0x20 <= 'f' }

func digitsAt(b []byte) int {
	n := 0
	for n < len(b) && isDigit(b[n]) {
		n++
	}
	return n
}

func isDigits(b []byte) bool { return len(b) > 0 && digitsAt(b) == len(b) }

// isBridge tells that every legacy reader takes n for an expiry that never comes.
func isBridge(n uint64) bool { return n >= protocol.BridgeLow && n < protocol.BridgeHigh }

// isUUID tells the canonical form: 8-4-4-4-12 hexadecimal digits.
func isUUID(b []byte) bool {
	if len(b) != 36 {
		return false
	}
	for i, c := range b {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !isHex(c) {
			return false
		}
	}
	return true
}

// isRedissonHolder tells the field of Redisson's locks: client uuid:thread id.
func isRedissonHolder(field []byte) bool {
	return len(field) > 37 && field[36] == ':' && isUUID(field[:36]) && isDigits(field[37:])
}

// looksRandom tells the usual forms of a random token: a UUID, also with a thread id behind it, 16 bytes or
// more in hexadecimal, or in base64 with digits and letters of both cases among them.
func looksRandom(b []byte) bool {
	if len(b) >= 36 && isUUID(b[:36]) {
		return len(b) == 36 || len(b) > 37 && (b[36] == ':' || b[36] == '-' || b[36] == '_') && isDigits(b[37:])
	}
	if len(b) >= 32 && allHex(b[:32]) {
		switch rest := b[32:]; {
		case len(rest) == 0 || (len(rest) == 8 || len(rest) == 32) && allHex(rest):
			return true
		default:
			return (rest[0] == '-' || rest[0] == ':') && isDigits(rest[1:])
		}
	}
	return looksBase64(b)
}

func allHex(b []byte) bool {
	for _, c := range b {
		if !isHex(c) {
			return false
		}
	}
	return true
}

// looksBase64 tells 16 to 64 bytes in base64: the tokens of redsync, redislock and their like.
func looksBase64(b []byte) bool {
	body := bytes.TrimRight(b, "=")
	if len(body) < 22 || len(body) > 86 || len(b)-len(body) > 2 {
		return false
	}
	var lower, upper, digit bool
	for _, c := range body {
		switch {
		case c >= 'a' && c <= 'z':
			lower = true
		case c >= 'A' && c <= 'Z':
			upper = true
		case isDigit(c):
			digit = true
		case c == '+' || c == '/' || c == '-' || c == '_':
		default:
			return false
		}
	}
	return lower && upper && digit
}
