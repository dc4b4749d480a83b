package census

import (
	"context"
	"fmt"
	"io"
	"net"
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

// TestScanOfAFarServer: what takes time is the way, so pages stay large.
func TestScanOfAFarServer(t *testing.T) {
	s := redistest.Real(t) // the embedded one has a single page
	const keys = 5000
	conn := s.Conn()
	for i := range keys {
		require.NoError(t, conn.Send("SET", fmt.Sprint("k", i), "v"))
	}
	_, err := conn.Do("")
	require.NoError(t, err)
	near, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	pages := 0
	c := New(Options{Progress: func(Progress) { pages++ }})
	require.NoError(t, c.Scan(context.Background(), newFarConn(near, 20*time.Millisecond)))
	assert.EqualValues(t, keys, c.Summary().Scanned)
	assert.Less(t, pages, keys/100, "no page became smaller than the first")
}

// farConn delivers what it reads later, as a long line does.
type farConn struct {
	net.Conn
	pieces chan piece
	rest   []byte
}

type piece struct {
	data []byte
	due  time.Time
}

func newFarConn(near net.Conn, delay time.Duration) *farConn {
	far := &farConn{Conn: near, pieces: make(chan piece, 10_000)}
	go func() {
		defer close(far.pieces)
		for {
			buf := make([]byte, 64<<10)
			n, err := near.Read(buf)
			if n > 0 {
				far.pieces <- piece{buf[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	return far
}

func (f *farConn) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		next, ok := <-f.pieces
		if !ok {
			return 0, io.EOF
		}
		time.Sleep(time.Until(next.due)) // the line's delay is what is simulated
		f.rest = next.data
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
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
