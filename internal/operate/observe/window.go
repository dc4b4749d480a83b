package observe

import (
	"cmp"
	"time"
)

// window is the time of a live observation. A quiet server sends nothing to measure it by.
type window struct {
	began time.Time
	took  time.Duration // 0 while it lasts
}

// end ends the window, once.
func (w *window) end() { w.took = cmp.Or(w.took, max(1, time.Since(w.began))) }

func (w *window) seconds() float64 { return cmp.Or(w.took, time.Since(w.began)).Seconds() }
