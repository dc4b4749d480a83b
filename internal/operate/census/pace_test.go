package census

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestPagesAdaptToTheServer(t *testing.T) {
	for _, c := range []struct {
		count     int
		roundTrip time.Duration
		cost      time.Duration
		want      int
	}{
		{100, 0, time.Millisecond, 200},
		{1000, 0, time.Millisecond, 1000},
		{100, 0, 5 * time.Millisecond, 100},
		{100, 0, 20 * time.Millisecond, 50},
		{10, 0, time.Second, 10},
		{100, 30 * time.Millisecond, 31 * time.Millisecond, 200}, // far away, and quick
		{100, 30 * time.Millisecond, 45 * time.Millisecond, 100},
		{100, 30 * time.Millisecond, 90 * time.Millisecond, 50},
	} {
		s := scanner{count: c.count, most: mostCount, roundTrip: c.roundTrip}
		s.adapt(c.cost)
		assert.Equal(t, c.want, s.count, "%+v", c)
	}
}

func TestScanKeepsTheRate(t *testing.T) {
	s := redistest.Mini(t)
	for i := range 300 {
		s.Mini.Set(fmt.Sprint("k", i), "v")
	}
	_, sum, err := scan(t, s, Options{Rate: 1000})
	require.NoError(t, err)
	assert.EqualValues(t, 300, sum.Scanned)
	assert.GreaterOrEqual(t, sum.Elapsed, 250*time.Millisecond)
}

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
