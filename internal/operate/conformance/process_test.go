package conformance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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

// Between the look for a free port and the start another server may take it: what answers then is not ours, and holds other cases' keys.
func TestAnotherServerOnThePortIsNotOurs(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	other := redistest.Real(t, "--dbfilename", "theirs.rdb")
	s := &server{addr: other.Addr, name: "ours.rdb", ended: make(chan struct{})}
	assert.ErrorContains(t, s.answers(context.Background()), "another server")
	s.name = "theirs.rdb"
	assert.NoError(t, s.answers(context.Background()))
}
