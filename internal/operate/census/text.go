package census

import "strings"

// isRandom tells the usual forms of a random token: a UUID, also with a thread id behind it; 16 bytes or more
// in hexadecimal; random letters and digits, as base64 gives them.
func isRandom(s string) bool {
	if len(s) >= 36 && isUUID(s[:36]) {
		return len(s) == 36 || len(s) > 37 && (s[36] == ':' || s[36] == '-' || s[36] == '_') && Digits(s[37:])
	}
	if len(s) >= 32 && hexadecimal(s[:32]) {
		switch rest := s[32:]; {
		case len(rest) == 0 || (len(rest) == 8 || len(rest) == 32) && hexadecimal(rest):
			return true
		default:
			return (rest[0] == '-' || rest[0] == ':') && Digits(rest[1:])
		}
	}
	return scrambled(s)
}

// scrambled tells random letters and digits: 16 to 21 of them, as Laravel writes, or 16 to 64 bytes in base64,
// the tokens of redsync, redislock and their like. Random text changes its class at more than half of its
// places, and a quarter of its letters are rare ones; names in camel case do neither. It misses one of 3000
// of Laravel's, and one of 10,000 of 16 bytes in base64; of the names of 16 to 21 letters in Go's own source
// it takes one of five for random.
func scrambled(s string) bool {
	body := strings.TrimRight(s, "=")
	if len(body) < 16 || len(body) > 86 || len(s)-len(body) > 2 {
		return false
	}
	words, rare, run := 0, 0, 0 // run: how many of one class end here
	before, seen := byte(0), [256]bool{}
	for i := range len(body) {
		c := body[i]
		class := byte('-')
		switch {
		case c >= 'a' && c <= 'z':
			class = 'a'
		case c >= 'A' && c <= 'Z':
			class = 'A'
		case isDigit(c):
			class = '0'
		case len(body) < 22 || c != '+' && c != '/' && c != '-' && c != '_':
			return false
		}
		if class == before {
			run++
		} else {
			if class != '-' && (before != 'A' || class != 'a' || run > 1) { // a capital belongs to the small letters behind it
				words++
			}
			before, run = class, 1
		}
		if strings.IndexByte("jkqvwxyz", c|0x20) >= 0 {
			rare++
		}
		seen[class] = true
	}
	if len(body) >= 22 && !(seen['a'] && seen['A']) {
		return false
	}
	return 8*(2*words+rare) >= 5*len(body)
}

// RedissonHolder tells the field of Redisson's locks: client uuid:thread id.
func RedissonHolder(field string) bool {
	return len(field) > 37 && field[36] == ':' && isUUID(field[:36]) && Digits(field[37:])
}

// LockName tells that a key's name holds lock (but not block, clock or unlock), mutex or lease, as a word or
// a part of one.
func LockName(key string) bool {
	key = strings.ToLower(key)
	if strings.HasPrefix(key, "redisson_unlock") {
		return false
	}
	for at := range len(key) {
		switch before, rest := key[:at], key[at:]; {
		case strings.HasPrefix(rest, "mutex"):
			return true
		case strings.HasPrefix(rest, "lease") && (at == 0 || !isLetter(key[at-1])): // but not please, or release
			return true
		case strings.HasPrefix(rest, "lock") && !strings.HasSuffix(before, "b") && !strings.HasSuffix(before, "c") && !strings.HasSuffix(before, "un"):
			return true
		}
	}
	return false
}

// BlindSetName tells the default names of keys that blind setters use: celery_once's, and those of the
// QueueLock of node-resque.
func BlindSetName(key string) bool {
	return strings.HasPrefix(key, "qo_") || strings.Contains(key, ":lock:") && strings.Contains(key, ":[")
}

func isLetter(b byte) bool { b |= 0x20; return b >= 'a' && b <= 'z' }
func isDigit(b byte) bool  { return b >= '0' && b <= '9' }

// Digits tells a text of digits alone; an empty one is none.
func Digits(s string) bool {
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
