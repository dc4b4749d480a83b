package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// TestServersThatRefuseWrites has INFO and CONFIG say what makes a server refuse every lock, or nearly so.
func TestServersThatRefuseWrites(t *testing.T) {
	for _, row := range redistest.Rows(t, "testdata/info.txt") {
		said := endpoint.Fields(strings.Join(row[2:], " "))
		i := slices.IndexFunc(checks(Options{}), func(c check) bool { return c.id == row[0] })
		require.GreaterOrEqual(t, i, 0, row)
		got, found, _ := checks(Options{})[i].ask(t.Context(), &patient{info: said, config: said})
		assert.EqualValues(t, row[1], got, "%v: %s", row, found)
	}
}

func TestClock(t *testing.T) {
	for off, want := range map[time.Duration]Verdict{0: Pass, 90 * time.Millisecond: Pass, -200 * time.Millisecond: Warn, 7 * time.Second: Fail, -time.Hour: Fail} {
		got, found, _ := clock(t.Context(), &patient{clocks: endpoint.Clocks{Ahead: off, Trip: time.Millisecond}})
		assert.Equal(t, want, got, found)
		assert.Contains(t, found, map[bool]string{true: "ahead of", false: "behind"}[off >= 0])
	}
	here := &patient{addr: "a:1"}
	ahead, unknown := &patient{clocks: endpoint.Clocks{Ahead: time.Second}}, &patient{addr: "b:1", clocksErr: assert.AnError}
	assert.Equal(t, Pass, clocksAgree([]*patient{here, here}).Verdict)
	assert.Equal(t, Warn, clocksAgree([]*patient{here, ahead}).Verdict)
	assert.Equal(t, Skip, clocksAgree([]*patient{here, unknown}).Verdict, "nobody knows whether they agree")
}
