package terminal

import (
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// AppendJSON appends text as a JSON string in which every character is printable: what is not, from control
// characters to bidirectional overrides, is written as an escape. Bytes that are no UTF-8 become U+FFFD.
func AppendJSON[T string | []byte](buf []byte, text T) []byte {
	buf = append(buf, '"')
	for i := 0; i < len(text); {
		if c := text[i]; c >= ' ' && c < 0x7f && c != '"' && c != '\\' { // most are plain: no rune to decode
			buf = append(buf, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(string(text[i:min(len(text), i+utf8.UTFMax)]))
		i += size
		switch {
		case r == '"' || r == '\\':
			buf = append(buf, '\\', byte(r))
		case r == utf8.RuneError && size == 1:
			buf = append(buf, `\ufffd`...)
		case unicode.IsPrint(r):
			buf = utf8.AppendRune(buf, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			buf = fmt.Appendf(buf, `\u%04x\u%04x`, high, low)
		default:
			buf = fmt.Appendf(buf, `\u%04x`, r)
		}
	}
	return append(buf, '"')
}
