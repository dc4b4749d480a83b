package modern

import (
	"reflect"
	"time"

	"github.com/lockmigrate/lockmigrate"
)

// SetClaim sets how long a hand-over lasts that the waiter does not confirm.
func SetClaim(l lockmigrate.Locker, d time.Duration) { l.(*locker).opts.claim = d }

// Owned is how many holds a Locker keeps for owners.
func Owned(l lockmigrate.Locker) int {
	return reflect.ValueOf(&l.(*locker).Locker).Elem().FieldByName("owned").Len()
}
