package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
)

// TestWhatIsNoDriver: a program that is no driver is named as one, with what it did, and ends; also one that goes on to talk, or to wait.
func TestWhatIsNoDriver(t *testing.T) {
	t.Parallel()
	for script, why := range map[string]string{
		"exit 3":                                 "the driver has ended",
		"echo no module >&2":                     `on stderr it said: "no module"`,
		"echo started; cat >/dev/null":           `no JSON object: "started"`,
		"while echo y; do :; done":               `no JSON object: "y"`,
		"read line; echo '{\"id\":1}'; sleep 60": "neither ok nor error",
		"head -c 2000000 /dev/zero; sleep 60":    "token too long",
	} {
		for range 20 { // its first line comes before the request, or after it
			k := &kit{Options: Options{Command: []string{"sh", "-c", script}}}
			_, err := k.process(t.Context())
			require.ErrorContains(t, err, why, script)
		}
	}
}

// grants gives its lock to whoever asks; it was lost before it was given, or lasts.
type grants struct{ held context.Context }

func (g grants) Context() context.Context      { return g.held }
func (g grants) Release(context.Context) error { return nil }

// granted is an actor who gets such locks.
func granted(name string, held context.Context) *actor {
	return &actor{name: name, client: client{acquire: func(context.Context, string, time.Duration) (fleet.Held, error) { return grants{held}, nil }}}
}

// A process that was stopped between a grant and its answer says "ok" when another holds the lock long since, and believes in nothing.
func TestWhoKnowsThatHisLockIsLostIsBesideNobody(t *testing.T) {
	t.Parallel()
	lasts := t.Context()
	over, end := context.WithCancel(lasts)
	end()
	for name, c := range map[string]struct {
		a, b context.Context
		seen string
	}{
		"both believe": {lasts, lasts, " overlaps, the first: "},
		"one knows":    {lasts, over, "no overlap"},
		"neither does": {over, over, "no overlap"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &play{actors: map[string]*actor{"a": granted("a", c.a), "b": granted("b", c.b)}}
			p.begin(t.Context(), "k", []string{"a", "b"})
			require.Eventually(t, func() bool { return p.load.referee.Turns("a") > 200 && p.load.referee.Turns("b") > 200 }, time.Minute, time.Millisecond)
			saw, err := p.load.halt(t.Context())
			require.NoError(t, err)
			assert.Contains(t, saw, c.seen)
		})
	}
}
