package lifetime

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// TestAFailedReleaseIsTriedAgain: until it ran, the lease is over or the Locker is closed. The observer hears of one failure.
func TestAFailedReleaseIsTriedAgain(t *testing.T) {
	fails := func(b *bench) {
		b.Life.locker.Pause = time.Millisecond
		assert.ErrorIs(b, b.release(protocol.Failed, io.EOF), io.EOF)
		<-b.asked
		for _, v := range []protocol.Verdict{protocol.Failed, protocol.Unsure} {
			<-b.asked // by nobody but the Locker
			b.answers <- outcome(v, io.EOF)
		}
		assert.NoError(b, b.Life.Context().Err())
	}
	t.Run("it ran", func(t *testing.T) {
		b := newBench(t)
		fails(b)
		b.answers <- outcome(protocol.NotOurs, nil) // after one without an answer: by our own doing
		<-b.Life.Context().Done()
		b.group.Close()
		assert.Equal(t, []lockmigrate.EventKind{lockmigrate.EventFailed, lockmigrate.EventReleased}, b.seen())
		assert.NoError(t, b.Life.Release(t.Context()), "the caller was told of a failure before")
		assert.ErrorIs(t, b.Life.Release(t.Context()), lockmigrate.ErrReleased)
	})
	t.Run("the lease is over", func(t *testing.T) {
		b := newBench(t)
		fails(b)
		<-b.asked
		b.pass(lease)
		b.answers <- outcome(protocol.Failed, io.EOF)
		time.Sleep(50 * time.Millisecond)
		assert.Empty(t, b.asked)
	})
	t.Run("the Locker is closed", func(t *testing.T) {
		b := newBench(t)
		fails(b)
		<-b.asked
		b.Life.locker.Pause = 200 * time.Millisecond // before the next one
		b.answers <- outcome(protocol.Failed, io.EOF)
		b.group.Close()
		time.Sleep(300 * time.Millisecond)
		assert.Empty(t, b.asked)
	})
}
