package holders_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

// doomed is a holder that ends by itself in the way that its kind says.
func doomed(in *bufio.Scanner, say func(holders.Event), args map[string]string) error {
	say(holders.Event{Event: "ready", ID: args["id"]})
	in.Scan()
	switch in.Text() {
	case "panic":
		done := make(chan struct{})
		go func() {
			say(holders.Event{Message: strings.Fields(in.Text())[len(args)]})
		}()
		<-done
	case "error":
		return fmt.Errorf("no server")
	case "talk": // more than is kept, around why
		fmt.Fprintln(os.Stderr, "it began with this")
		fmt.Fprintln(os.Stderr, strings.Repeat("and so on\n", 10_000))
		return fmt.Errorf("and ended with that")
	}
	return nil
}

func TestMain(m *testing.M) {
	holders.RunIfAsked(doomed)
	os.Exit(m.Run())
}

// Whatever a holder dies of, its harness can tell: by the time its events are over, its last words are complete.
func TestLastWords(t *testing.T) {
	for end, wanted := range map[string][]string{
		"panic": {"exit status 2", "panic: runtime error: index out of range", "holders_test.doomed"},
		"error": {"exit status 1", "go holder: no server"},
		"talk":  {"exit status 1", "it began with this", "bytes ...", "go holder: and ended with that"},
		"":      {"exit status 0", "the input has ended, or said quit"},
	} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			h := holders.StartGo(t, "doomed", "redis://nowhere")
			assert.Contains(t, h.LastWords(), "running")
			h.Send("%s", end)
			for open := true; open; {
				select {
				case _, open = <-h.Events():
				case <-time.After(20 * time.Second):
					t.Fatal("it has not ended")
				}
			}
			for _, w := range wanted {
				assert.Contains(t, h.LastWords(), w)
			}
		})
	}
}

func TestKilledHolder(t *testing.T) {
	h := holders.StartGo(t, "doomed", "redis://nowhere")
	h.Kill()
	assert.Contains(t, h.LastWords(), "signal: killed")
}
