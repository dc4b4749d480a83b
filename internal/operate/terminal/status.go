package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
)

// Status is one line of progress on a terminal, rewritten in place. It is silent where there is no terminal.
// It is safe for concurrent use; what else writes to the same screen calls Clear before.
type Status struct {
	w     io.Writer
	width func() int

	mu    sync.Mutex
	last  time.Time
	shown bool
}

// everyStatus is how often the line changes: often enough to look alive.
const everyStatus = 100 * time.Millisecond

// NewStatus returns a status line on w; width is asked for each line. A nil w makes it silent.
func NewStatus(w io.Writer, width func() int) *Status { return &Status{w: w, width: width} }

// Update shows a new line, unless the last one is younger than a tenth of a second. The text is made only if
// it will be shown.
func (s *Status) Update(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil || time.Since(s.last) < everyStatus {
		return
	}
	s.last, s.shown = time.Now(), true
	fmt.Fprintf(s.w, "\r%s\x1b[K", Cut(fmt.Sprintf(format, args...), s.width()-1))
}

// Clear removes the line; the next Update brings it back.
func (s *Status) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil || !s.shown {
		return
	}
	s.shown, s.last = false, time.Time{}
	fmt.Fprint(s.w, "\r\x1b[K")
}

// Cut shortens text to a number of columns, with an ellipsis for what is missing. Escape sequences take no column,
// and East Asian characters take two.
func Cut(line string, columns int) string { return text.Snip(line, columns, "…") }

// Bar draws the share that is done, 0 to 1, in twenty columns.
func Bar(done float64) string {
	const columns = 20
	full := int(min(max(done, 0), 1) * columns)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", columns-full) + "]"
}
