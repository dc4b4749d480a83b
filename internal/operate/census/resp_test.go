package census

import (
	"bytes"
	"io"
	"testing"
)

// FuzzReplies: no bytes make the reader panic, loop for ever or keep more than it was told to.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("$5\r\nhello\r\n:42\r\n"))
	f.Add([]byte("*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"))
	f.Add([]byte("-ERR no\r\n+OK\r\n$-1\r\n"))
	f.Add([]byte("$9223372036854775807\r\nx"))
	f.Add([]byte("$-9223372036854775808\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, read := range []func(p *replyReader) error{
			func(p *replyReader) error { _, err := p.integer(); return err },
			func(p *replyReader) error { _, err := p.array(); return err },
			func(p *replyReader) error {
				got, _, err := p.bulk(nil, 16)
				if len(got) > 16 {
					t.Fatalf("kept %d bytes", len(got))
				}
				return err
			},
			func(p *replyReader) error { _, _, err := p.bulk(nil, 0); return err },
		} {
			p := newReplyReader(io.LimitReader(bytes.NewReader(data), 1<<20))
			for range len(data) + 1 {
				if err := read(p); fatal(err) {
					break
				}
			}
		}
	})
}
