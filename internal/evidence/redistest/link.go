package redistest

import (
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/operate/link"
)

// Link is a network path that can fail.
type Link = link.Link

// NewLink starts a link to an address and ends it with the test.
func NewLink(t testing.TB, target string) *Link { return newLink(t, target, false) }

// NewProxy is NewLink for a test that puts something between two commands of a client that nobody can change.
func NewProxy(t testing.TB, s *Server) *Link { return newLink(t, s.Addr, true) }

func newLink(t testing.TB, target string, commands bool) *Link {
	t.Helper()
	l, err := link.Start(target, commands)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}
