package sidecar_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
)

// Of each message there are 20 lines a minute. The first one of the next minute counts what was left out. Other messages are written.
func TestQuiet(t *testing.T) {
	var out strings.Builder
	log := sidecar.Quiet(slog.NewTextHandler(&out, nil)).WithAttrs([]slog.Attr{slog.String("sidecar", "one")})
	write := func(message string, at int) {
		assert.NoError(t, log.Handle(context.Background(), slog.NewRecord(time.Unix(int64(at), 0), slog.LevelWarn, message, 0)))
	}
	for range 50 {
		write("often", 1)
	}
	write("once", 2)
	write("often", 60)
	write("often", 61)
	write("often", 62)
	assert.Equal(t, 22, strings.Count(out.String(), "msg=often sidecar=one"))
	assert.Equal(t, 1, strings.Count(out.String(), "msg=often sidecar=one left_out=31\n"))
	assert.Equal(t, 1, strings.Count(out.String(), "msg=once sidecar=one\n"))
}
