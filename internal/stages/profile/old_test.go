package profile

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOldClients reads testdata/old.txt: profiles, and behind ---- what the record of a namespace takes from each, or what is missing. A client is JSON over
// java-1, an old client with a clock that is 100 ms ahead, give or take 20, and a lease of 30 s.
func TestOldClients(t *testing.T) {
	text, err := os.ReadFile("testdata/old.txt")
	require.NoError(t, err)
	var told []string
	for part := range strings.SplitSeq(string(text), "\n\n") {
		given, _, found := strings.Cut(part, "----")
		require.True(t, found, part)
		p := Profile{Version: Version, Window: Window{Seconds: 600}}
		for line := range strings.Lines(given) {
			if why, missing := strings.CutPrefix(strings.TrimSpace(line), "not seen: "); missing {
				p.NotSeen = append(p.NotSeen, why)
			}
			if strings.HasPrefix(line, "{") {
				c := Client{Name: "java-1", Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewKnown: true, SkewMS: 100, SkewErrorMS: 20}
				require.NoError(t, json.Unmarshal([]byte(line), &c), line)
				if c.Uses == nil {
					c.Uses = []Use{{Family: "lock.#", Lease: Lease{LeaseMS: 30_000, LeaseFrom: "written"}}}
				}
				p.Clients = append(p.Clients, c)
			}
		}
		require.NoError(t, p.Validate())
		o, err := p.OldClients()
		if err != nil {
			o.Why = []string{err.Error()}
		}
		told = append(told, given+"----\n"+strings.Join(o.Why, "\n"))
	}
	assert.Equal(t, strings.TrimSpace(string(text)), strings.Join(told, "\n\n"))
}
