package protocol

import (
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Syntax is how a reader's language turns text into a number. Each is matched where it decides
// between held, expired and an exception: signs, blanks, overflow, exponents, underscores, digits of
// other scripts. The differential tests run the real Java and Python parsers against these.
type Syntax uint8

const (
	JavaLong     Syntax = iota // Long.parseLong (Java 7 and later: a leading + is allowed)
	PythonFloat                // float() of bytes, as redis-py hands them over on Python 3
	PlainInteger               // Go's strconv.Atoi and C programs: sign and ASCII digits
	RubyFloat                  // String#to_f
	RubyInteger                // String#to_i
	DotNetLong                 // long.TryParse: blanks around, a sign, trailing NULs
)

// parse reads the whole text or nothing.
func (s Syntax) parse(text string) (Number, bool) {
	switch s {
	case PythonFloat:
		f, ok := pythonFloat(text)
		return floating(f), ok
	case RubyFloat:
		f, rest := rubyFloat(text)
		return floating(f), rest == "" && text != ""
	case RubyInteger:
		n, rest := rubyInteger(text)
		return whole(n), rest == "" && text != ""
	case JavaLong:
		n, ok := javaLong(text)
		return whole(n), ok
	case DotNetLong:
		n, ok := dotNetLong(text)
		return whole(n), ok
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		return whole(n), err == nil
	}
}

// prefix reads the longest numeric prefix, 0 if there is none, as Ruby does.
func (s Syntax) prefix(text string, u Unit) Number {
	if u == FloatSeconds {
		f, _ := rubyFloat(text)
		return floating(f)
	}
	n, _ := rubyInteger(text)
	return whole(n)
}

// javaLong is Long.parseLong(text): an optional sign and at least one digit, within 64 bits. The
// digits may be of any script that has them in the basic plane: Character.digit looks at UTF-16
// units.
func javaLong(text string) (int64, bool) {
	digits, negative := cutSign(text)
	if digits == "" {
		return 0, false
	}
	var n uint64
	for _, r := range digits {
		d, ok := decimalDigit(r)
		if !ok || n > (1<<63)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	switch {
	case negative && n <= 1<<63:
		return -int64(n), true
	case !negative && n < 1<<63:
		return int64(n), true
	}
	return 0, false
}

// decimalDigit returns the value of a decimal digit of the basic plane. Every such script has its
// ten digits in a row, and each range of the table begins with a zero.
func decimalDigit(r rune) (uint64, bool) {
	if '0' <= r && r <= '9' {
		return uint64(r - '0'), true
	}
	if r < 0x80 || r > 0xffff {
		return 0, false
	}
	for _, span := range unicode.Nd.R16 {
		if r >= rune(span.Lo) && r <= rune(span.Hi) {
			return uint64(r-rune(span.Lo)) % 10, true
		}
	}
	return 0, false
}

// pythonFloat is float(text) for bytes: ASCII blanks around, an underscore between two digits, the
// words inf, infinity and nan in any case; too large a number is an infinity.
func pythonFloat(text string) (float64, bool) {
	s := strings.Trim(text, " \t\n\v\f\r")
	body, _ := cutSign(s)
	switch strings.ToLower(body) {
	case "nan":
		return math.NaN(), true
	case "inf", "infinity":
		return parseDecimal(s), true
	}
	if end := floatLength(body, true); end == 0 || end != len(body) {
		return 0, false
	}
	return parseDecimal(s), true
}

// rubyFloat is String#to_f: leading blanks, then the longest prefix that is a number, else 0. A point
// counts only with a digit after it.
func rubyFloat(text string) (f float64, rest string) {
	s := strings.TrimLeft(text, " \t\n\v\f\r")
	body, _ := cutSign(s)
	end := floatLength(body, false)
	if end == 0 {
		return 0, text
	}
	return parseDecimal(s[:len(s)-len(body)+end]), body[end:]
}

// rubyInteger is String#to_i: leading blanks, a sign, digits with single underscores between them.
func rubyInteger(text string) (n int64, rest string) {
	s := strings.TrimLeft(text, " \t\n\v\f\r")
	body, negative := cutSign(s)
	end := digitsLength(body)
	if end == 0 {
		return 0, text
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(body[:end], "_", ""), 10, 64)
	if err != nil { // Ruby's integers have no end; for a comparison with a clock the largest is enough
		n = math.MaxInt64
	}
	if negative {
		n = -n
	}
	return n, body[end:]
}

// dotNetLong is long.TryParse(text) in the invariant culture.
func dotNetLong(text string) (int64, bool) {
	s := strings.TrimRight(text, "\x00")
	s = strings.Trim(s, " \t\n\v\f\r")
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// floatLength returns how many bytes at the start of s are digits [. digits] [e sign digits]. Digits
// stand on one side of the point at least; after it they may lack only where bare is set.
func floatLength(s string, bare bool) int {
	before := digitsLength(s)
	end := before
	if strings.HasPrefix(s[end:], ".") {
		after := digitsLength(s[end+1:])
		if after > 0 || bare && before > 0 {
			end += 1 + after
		}
	}
	if end == 0 {
		return 0
	}
	if end < len(s) && (s[end] == 'e' || s[end] == 'E') {
		exponent, _ := cutSign(s[end+1:])
		if n := digitsLength(exponent); n > 0 {
			end = len(s) - len(exponent) + n
		}
	}
	return end
}

// digitsLength returns how many bytes at the start of s are digits with single underscores between.
func digitsLength(s string) int {
	end := 0
	for i := 0; i < len(s); i++ {
		switch {
		case '0' <= s[i] && s[i] <= '9':
			end = i + 1
		case s[i] == '_' && end == i && end > 0:
		default:
			return end
		}
	}
	return end
}

func parseDecimal(s string) float64 {
	f, _ := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64) // out of range gives the infinity
	return f
}

func cutSign(s string) (rest string, negative bool) {
	if s != "" && (s[0] == '+' || s[0] == '-') {
		return s[1:], s[0] == '-'
	}
	return s, false
}
