package waiting

// Stirs returns how often this turn, which is the front, has been told that its key has changed or that anything
// may have happened to it, and whether every change of the key is told of at present, once the key has been read
// over Advance. A caller that reads the same number twice, and true both times, has heard of everything in
// between but for what is still on its way: also of a listener that was replaced. That the listener's connection
// is dead without anybody's knowing is found out by its pings only.
func (t *Turn) Stirs() (n uint64, listening bool) {
	t.mu.Lock()
	n = t.stirs
	t.mu.Unlock()
	return n, t.Mode() == Tracking
}

// stir counts an event. The caller holds mu.
func (t *Turn) stir(k Kind) {
	if k == Changed || k == Reset {
		t.stirs++
	}
}

// Listen has the next question go over the tracked line, so that it watches the key from that moment on.
func (w *Watch) Listen() { w.wanted = true }

// Listened tells that the last question went over the tracked line.
func (w *Watch) Listened() bool { return w.set }
