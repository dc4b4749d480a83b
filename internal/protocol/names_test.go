package protocol

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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
		for _, of := range companions {
			name := of(key)
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

// companions name the keys that may stand beside a lock's.
var companions = []func(key string) string{GuardKey, FenceKey, YieldKey, QueueKey, ShareKey, SidecarKey}

// Owner leads from every companion back to its lock, and from nothing else.
func TestOwner(t *testing.T) {
	require.Len(t, companions, len(companionRoles), "a function for each role")
	keys := []string{"orders", "a:b", "{7}orders", "x{tag}y", "a}b", "{}a", "a:guard", "lock", "{a", "a:", "a::", "}{", "lock.\x00\xff"}
	keys = append(keys, braced()...)
	for _, key := range keys {
		for _, of := range companions {
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

// FuzzReadMessage: whatever is published on a waiter's channel, nothing but a well-formed grant is one.
func FuzzReadMessage(f *testing.F) {
	for _, seed := range []string{"1 2 token", "head token", "token", "", "1 2 ", "1 2 a token", "x 2 token", "9223372036854775808 1 token"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, said, ok := ReadMessage(text)
		switch {
		case !ok:
		case said.Kind == Woke:
			assert.Equal(t, text, "head "+token)
		default:
			assert.Equal(t, Granted, said.Kind)
			assert.True(t, strings.HasSuffix(text, " "+token))
		}
	})
}
