package protocol

import (
	"reflect"
	"testing"
	"unsafe"
)

// settings are the fields of machines that a run does not change, so that AppendState may leave them out.
// Everything else must show in it: a search would otherwise take two different states for one.
var settings = map[string]bool{
	"Dialect": true, "Key": true, "Lease": true, "Poll": true, "Faithful": true, "Policy": true, "Guard": true,
	"Fence": true, "FenceTTL": true, "TTL": true, "Grace": true, "Settle": true, "Alone": true, "NotAfter": true,
	"Yield": true, "Passes": true, "Hand": true, "Queue": true, "Channel": true, "Claim": true, "QueueTTL": true, "MaxSleep": true,
	"Tries": true, "Owner": true, "Script": true, "Queues": true, "Redisson": true, "Native": true, "Share": true, "ConfirmGrant": true,
	"Leftover": true, "Behind": true, "Breath": true,
}

func TestAppendStateShowsEveryChange(t *testing.T) {
	machines := []interface{ AppendState([]byte) []byte }{
		&LegacyAcquire{}, &LegacyRenew{}, &LegacyRelease{}, &BridgeAcquire{}, &BridgeRenew{}, &BridgeRelease{},
		&ModernAcquire{}, &ModernQueue{}, &ModernRenew{}, &ModernRelease{},
	}
	for _, m := range machines {
		v := reflect.ValueOf(m).Elem()
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if settings[name] {
				continue
			}
			before := string(m.AppendState(nil))
			undo := change(v.Field(i))
			if string(m.AppendState(nil)) == before {
				t.Errorf("%T: a change of %s does not show", m, name)
			}
			undo()
		}
	}
}

// change sets a field, exported or not, to something else.
func change(f reflect.Value) (undo func()) {
	f = reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
	old := reflect.ValueOf(f.Interface())
	switch f.Kind() {
	case reflect.Bool:
		f.SetBool(!f.Bool())
	case reflect.String:
		f.SetString(f.String() + "x")
	case reflect.Int, reflect.Int64:
		f.SetInt(f.Int() + 1)
	case reflect.Uint8:
		f.SetUint(f.Uint() + 1)
	}
	return func() { f.Set(old) }
}
