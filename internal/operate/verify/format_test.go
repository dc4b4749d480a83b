package verify

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoadOfAnotherFormat: a later format is refused by its name, and any other file as what it is not.
func TestLoadOfAnotherFormat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.json")
	for text, says := range map[string]string{
		`{"format":"lockmigrate-certificate-2","verdict":7}`:           "of format lockmigrate-certificate-2",
		`{"format":"lockmigrate-certificate-2","verdict":"none-seen"}`: "of format lockmigrate-certificate-2, and this build reads lockmigrate-certificate-1",
		`{"format":"lockmigrate-verify-state-1"}`:                      "no certificate",
		`{`: "no certificate",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := Load(file)
		require.ErrorContains(t, err, says, text)
	}
}
