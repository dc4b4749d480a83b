package observe

import (
	"cmp"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// window is the time of a live observation. A quiet server sends nothing to measure it by.
type window struct {
	began time.Time
	took  time.Duration // 0 while it lasts
}

// end ends the window, once.
func (w *window) end() { w.took = cmp.Or(w.took, max(1, time.Since(w.began))) }

func (w *window) seconds() float64 { return cmp.Or(w.took, time.Since(w.began)).Seconds() }

// of makes a report one of this window.
func (w *window) of(r Report) Report {
	r.WindowSeconds = w.seconds()
	if r.Started.Unix() == 0 {
		r.Started = w.began.UTC()
	}
	return r
}

// profiled makes a profile one of this window.
func (w *window) profiled(p profile.Profile) profile.Profile {
	one := &p.Windows[0]
	one.Seconds = w.seconds()
	if one.Start.Unix() == 0 {
		one.Start = w.began.UTC()
	}
	return p
}
