package forecast

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Number writes a number of double holds with two figures where it is small, and whole where it is large.
func Number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 0.001:
		return "< 0.001"
	case x < 0.1:
		return strconv.FormatFloat(x, 'g', 1, 64)
	case x < 1:
		return strconv.FormatFloat(x, 'g', 2, 64)
	case x < 10 && x != math.Trunc(x):
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(math.Round(x), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Hours writes a span: 90 minutes, 36 hours, 30 days.
func Hours(h float64) string {
	switch {
	case h < 2:
		return fmt.Sprintf("%.0f minutes", 60*h)
	case h <= 72:
		return fmt.Sprintf("%.0f hours", h)
	case h < 3*365*24:
		return fmt.Sprintf("%.0f days", h/24)
	}
	return fmt.Sprintf("%.0f years", h/24/365)
}

// Margin writes how far a clock may still move.
func Margin(ms float64) string {
	if ms <= 0 {
		return fmt.Sprintf("used up (%v)", millis(ms).Round(time.Millisecond))
	}
	if ms < 10_000 {
		return millis(ms).Round(time.Millisecond).String()
	}
	return millis(ms).Round(100 * time.Millisecond).String()
}

// Drift writes the drift of a clock and its error.
func (b Budget) Drift() string {
	switch {
	case b.DriftKnown:
		return fmt.Sprintf("%+.1f ppm ±%.1f", b.DriftPPM, b.DriftErrorPPM)
	case b.DriftErrorPPM > 0:
		return fmt.Sprintf("not known, within ±%.0f ppm", math.Abs(b.DriftPPM)+b.DriftErrorPPM)
	}
	return "not known"
}

// When writes when the first overlap comes.
func (b Budget) When() string {
	switch {
	case b.Hours == 0:
		return "now"
	case b.Hours > 0:
		return "in " + Hours(b.Hours)
	}
	return "not known"
}
