// Package handover is the evidence for package handover on real servers: the examples of Wrap, and fleets of processes that move from one lock to
// another while they are killed, stopped and cut off.
package handover

import (
	"os"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(memberOf); text != "" {
		serve(text)
		return
	}
	redistest.Main(m, redistest.Redis)
}
