package observe

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

func TestMain(m *testing.M) {
	holders.ServeIfAsked(nil)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
