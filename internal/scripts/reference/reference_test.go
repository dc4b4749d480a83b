package reference

import (
	"strings"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// TestReferencesKnowEveryName: both references have each key and argument of the bridge's scripts that cannot be left out.
func TestReferencesKnowEveryName(t *testing.T) {
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		for _, a := range append(s.Keys[:len(s.Keys):len(s.Keys)], s.Args...) {
			for language, text := range map[string]string{"Java": Java, "Python": Python} {
				if !a.Optional && !strings.Contains(text, `"`+a.Name+`"`) {
					t.Errorf("%s needs %s, and the reference in %s does not have it", s.Name, a.Name, language)
				}
			}
		}
	}
}
