package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
