package modern

import (
	"time"

	"github.com/lockmigrate/lockmigrate"
)

// SetClaim sets how long a hand-over lasts that the waiter does not confirm.
func SetClaim(l lockmigrate.Locker, d time.Duration) { l.(*locker).opts.claim = d }
