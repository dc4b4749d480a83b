package fence

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestUnshown lists the rules where a denied trial does not stand for every key.
func TestUnshown(t *testing.T) {
	for line, want := range map[string]string{
		"user old on ~* resetchannels +@all":                           "",
		"user old on ~* resetchannels db=5,6 +@all":                    "databases",
		"user old on ~* -@all (~lock:* db=1 resetchannels +set)":       "databases",
		"user old on %R~a* %W~*b resetchannels +@all":                  "only write",
		"user old on %R~a* resetchannels +@all (%W~*b -@all +getset)":  "",
		"user old on ~* resetchannels -@all +getset|lock:1":            "first arguments",
		"user old on ~* resetchannels -@all +set|lock:1 (~x +@string)": "",
	} {
		why := parse(line).unshown("getset")
		if want == "" {
			assert.Empty(t, why, line)
		} else {
			assert.Contains(t, why, want, line)
		}
	}
}
