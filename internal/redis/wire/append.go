package wire

import "strconv"

// Append appends a request as a client writes it. Words are strings and byte slices.
func Append[W string | []byte](buf []byte, words ...W) []byte {
	buf = strconv.AppendInt(append(buf, '*'), int64(len(words)), 10)
	buf = append(buf, "\r\n"...)
	for _, w := range words {
		buf = AppendWord(buf, w)
	}
	return buf
}

// AppendWord appends one word of a request.
func AppendWord[W string | []byte](buf []byte, word W) []byte {
	buf = strconv.AppendInt(append(buf, '$'), int64(len(word)), 10)
	buf = append(buf, "\r\n"...)
	buf = append(buf, word...)
	return append(buf, "\r\n"...)
}
