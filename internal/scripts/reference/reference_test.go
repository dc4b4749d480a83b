package reference

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// TestReferenceIsWhatTheHoldersRun: what users get printed is what the test suites run.
func TestReferenceIsWhatTheHoldersRun(t *testing.T) {
	root := filepath.Join("..", "..", "..", "testdata", "holders", "java", "current", "src", "main")
	files := map[string]string{filepath.Join(root, "java", "lockmigrate", "bridge", "BridgeLock.java"): Java}
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		files[filepath.Join(root, "resources", "lockmigrate", "bridge", s.Name)] = s.Source
	}
	for path, want := range files {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs; copy it: go run ./cmd/lockmigrate scripts --out DIR", path)
		}
	}
}
