package recognise

import "strings"

// IsRandom tells the usual forms of a random token: a UUID, also with a thread id behind it; 16 bytes or more
// in hexadecimal; in base64 with digits and letters of both cases among them; 16 to 21 mixed letters and
// digits, as Laravel writes.
func IsRandom(s string) bool {
	if len(s) >= 36 && isUUID(s[:36]) {
		return len(s) == 36 || len(s) > 37 && (s[36] == ':' || s[36] == '-' || s[36] == '_') && digits(s[37:])
	}
	if len(s) >= 32 && hexadecimal(s[:32]) {
		switch rest := s[32:]; {
		case len(rest) == 0 || (len(rest) == 8 || len(rest) == 32) && hexadecimal(rest):
			return true
		default:
			return (rest[0] == '-' || rest[0] == ':') && digits(rest[1:])
		}
	}
	return base64(s) || mixed(s)
}

// base64 tells 16 to 64 bytes in base64: the tokens of redsync, redislock and their like.
func base64(s string) bool {
	body := strings.TrimRight(s, "=")
	if len(body) < 22 || len(body) > 86 || len(s)-len(body) > 2 {
		return false
	}
	var lower, upper, digit bool
	for i := range len(body) {
		switch c := body[i]; {
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

// mixed tells 16 to 21 letters and digits that change between lower case, upper case and digits at least
// five times, or have two of each. Of random ones 99 of 100 do; words in camel case rarely do.
func mixed(s string) bool {
	if len(s) < 16 || len(s) > 21 {
		return false
	}
	changes, before, of := -1, byte(0), [128]int{}
	for i := range len(s) {
		class := byte('a')
		switch c := s[i]; {
		case c >= 'a' && c <= 'z':
		case c >= 'A' && c <= 'Z':
			class = 'A'
		case isDigit(c):
			class = '0'
		default:
			return false
		}
		if class != before {
			changes++
		}
		before = class
		of[class]++
	}
	return changes >= 5 || min(of['a'], of['A'], of['0']) >= 2
}

// RedissonHolder tells the field of Redisson's locks: client uuid:thread id.
func RedissonHolder(field string) bool {
	return len(field) > 37 && field[36] == ':' && isUUID(field[:36]) && digits(field[37:])
}

// LockName tells that a key's name holds lock (but not block, clock or unlock), mutex or lease, as a word or
// a part of one.
func LockName[T string | []byte](key T) bool {
	for i := 0; i+5 <= len(key)+1; i++ {
		switch key[i] | 0x20 {
		case 'l':
			if hasFold(key[i:], "lock") && !hasFold(key, "redisson_unlock") {
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

// BlindSetName tells the default names of keys that blind setters use: celery_once's, and those of the
// QueueLock of node-resque.
func BlindSetName(key string) bool {
	return strings.HasPrefix(key, "qo_") || strings.Contains(key, ":lock:") && strings.Contains(key, ":[")
}

func hasFold[T string | []byte](text T, word string) bool {
	if len(text) < len(word) {
		return false
	}
	for i := range len(word) {
		if word[i] != '_' && text[i]|0x20 != word[i] || word[i] == '_' && text[i] != '_' {
			return false
		}
	}
	return true
}

func isLetter(b byte) bool { b |= 0x20; return b >= 'a' && b <= 'z' }
func isDigit(b byte) bool  { return b >= '0' && b <= '9' }

func digits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

func hexadecimal(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) && (s[i]|0x20 < 'a' || s[i]|0x20 > 'f') {
			return false
		}
	}
	return true
}

// isUUID tells the canonical form: 8-4-4-4-12 hexadecimal digits.
func isUUID(s string) bool {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	return hexadecimal(s[:8]) && hexadecimal(s[9:13]) && hexadecimal(s[14:18]) && hexadecimal(s[19:23]) && hexadecimal(s[24:])
}
