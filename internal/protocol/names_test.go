package protocol

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCompanionKeysLieInTheirKeysSlot(t *testing.T) {
	for key, slot := range map[string]int{"foo": 12182, "bar": 5061, "{foo}bar": 12182, "123456789": 12739} {
		assert.True(t, Slot(key) == slot, "Slot(%q) = %d, want %d", key, Slot(key), slot)
	}
	keys := []string{"a", "{a}", "{a}b", "a}b", "{}a", "a{", "{a", "a{}{b}", "{{a}}", "a{b}c{d}", "}{", "\x00"}
	keys = append(keys, braced()...)
	names := map[string]string{}
	for _, key := range keys {
		for _, name := range CompanionNames(key) {
			assert.True(t, Slot(name) == Slot(key), "%q lies in slot %d, its key %q in %d", name, Slot(name), key, Slot(key))
			if other, taken := names[name]; taken && other != key {
				t.Errorf("%q belongs to %q and to %q", name, other, key)
			}
			names[name] = key
		}
	}
	if got, want := fmt.Sprint(GuardKey("orders"), " ", GuardKey("{7}orders")), "{orders}:guard {7}orders:guard:"; got != want {
		t.Errorf("guards are named %s, want %s", got, want)
	}
}

// Companions are named alike, one by one and together.
func TestCompanionsOf(t *testing.T) {
	for _, key := range []string{"orders", "{7}orders", "a}b", "{}a", "", "lock.\x00\xff"} {
		want := Companions{GuardKey(key), FenceKey(key), YieldKey(key), QueueKey(key)}
		assert.Equal(t, want, CompanionsOf(key), "%q", key)
	}
}

// Owner leads from every companion back to its lock, and from nothing else.
func TestOwner(t *testing.T) {
	names := []func(string) string{GuardKey, FenceKey, YieldKey, QueueKey, ShareKey, SidecarKey}
	require.True(t, len(names) == len(companionRoles), "%d roles, %d functions", len(companionRoles), len(names))
	keys := []string{"orders", "a:b", "{7}orders", "x{tag}y", "a}b", "{}a", "a:guard", "lock", "{a", "a:", "a::", "}{", "lock.\x00\xff"}
	keys = append(keys, braced()...)
	for _, key := range keys {
		assert.True(t, len(CompanionNames(key)) == len(names), "%q: %q", key, CompanionNames(key))
		for _, of := range names {
			if owner, role, ok := Owner([]byte(of(key))); !ok || owner != key || role == "" {
				t.Errorf("%q belongs to %q (%s), %v; want %q", of(key), owner, role, ok, key)
			}
		}
	}
	for _, name := range []string{"", "guard", ":guard", "the:guard", "body:guard", "orders:fence:1", "printer:queue", "{a:guard", "::::", "a:share:"} {
		if owner, _, ok := Owner([]byte(name)); ok {
			t.Errorf("%q is said to belong to %q", name, owner)
		}
	}
}

// An entry's claim is in whole milliseconds, as the server counts it (testdata/machines.txt has who relies on it).
func TestAnEntrysClaim(t *testing.T) {
	entry, ok := ParseEntry((Entry{Claim: 2 * time.Second / 3, Channel: "c", Token: "t"}).String())
	assert.True(t, ok)
	assert.Equal(t, 666*time.Millisecond, entry.Claim)
}

// braced returns short keys of letters, braces and colons.
func braced() (keys []string) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		key := make([]byte, 1+rng.IntN(6))
		for i := range key {
			key[i] = "ab{}:"[rng.IntN(5)]
		}
		keys = append(keys, string(key))
	}
	return keys
}

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
			assert.False(t, string(m.AppendState(nil)) == before, "%T: a change of %s does not show", m, name)
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
