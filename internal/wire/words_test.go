package wire

import (
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// TestGraceIsRoundedUp: a grace that is cut to whole milliseconds would be a shorter one.
func TestGraceIsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{-1: -1, -time.Hour: -1, 0: 0, 1: 1, time.Millisecond: 1, 1500 * time.Microsecond: 2, time.Second: 1000} {
		if got := grace(d); got != want {
			t.Errorf("%v: %d, not %d", d, got, want)
		}
	}
}

// What a waiter is to hear of goes to the server behind a command that has an answer at once.
func TestWantedReleaseIsAnsweredLast(t *testing.T) {
	r, err := RequestOf(protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: "a", Queue: "{k}:q", Wanted: true})
	if err != nil || !r.AnswerLast {
		t.Errorf("%+v, %v", r, err)
	}
	if r, _ = RequestOf(protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: "a", Queue: "{k}:q"}); r.AnswerLast {
		t.Error("though nobody waits")
	}
}
