package terminal

import (
	"unicode"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendJSON appends text as a JSON string in which every character is printable: what is not, from control
// characters to bidirectional overrides, is written as an escape. Bytes that are no UTF-8 become U+FFFD.
func AppendJSON[T string | []byte](buf []byte, text T) []byte {
	buf = append(buf, '"')
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == '"' || c == '\\':
				buf = append(buf, '\\', c)
			case c < 0x20 || c == 0x7f:
				buf = append(buf, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			default:
				buf = append(buf, c)
			}
			continue
		}
		r, size := utf8.DecodeRuneInString(string(text[i:min(len(text), i+utf8.UTFMax)]))
		i += size
		switch {
		case r == utf8.RuneError && size == 1:
			buf = append(buf, `\ufffd`...)
		case unicode.IsPrint(r):
			buf = utf8.AppendRune(buf, r)
		case r > 0xffff:
			r -= 0x10000
			buf = appendEscape(appendEscape(buf, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			buf = appendEscape(buf, r)
		}
	}
	return append(buf, '"')
}

func appendEscape(buf []byte, r rune) []byte {
	return append(buf, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}
