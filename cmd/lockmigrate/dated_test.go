package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestDated: a ghost of another day than the report has its date.
func TestDated(t *testing.T) {
	report := time.Date(2026, 3, 5, 0, 10, 0, 0, time.UTC)
	assert.Equal(t, "00:09:59.500000", dated(report, report.Add(-500*time.Millisecond)))
	assert.Equal(t, "2026-03-04 23:59:00", dated(report, report.Add(-11*time.Minute)))
	assert.Equal(t, "2025-03-05 00:10:00", dated(report, report.AddDate(-1, 0, 0)), "the same day of another year")
	east := time.FixedZone("east", 8*3600)
	assert.Equal(t, "00:09:00.000000", dated(report.In(east), report.Add(-time.Minute)), "both are read as UTC")
}
