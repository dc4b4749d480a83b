package modern

import "time"

// SetClaim sets how long a hand-over lasts that the waiter does not confirm.
func (l *Locker) SetClaim(d time.Duration) { l.opts.claim = d }
