package profile_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

func TestRoundTrip(t *testing.T) {
	p := profile.Profile{Version: profile.Version, WindowSeconds: 10, Clients: []profile.Client{{
		Name: "10.0.0.1:4", Kind: "legacy", Dialect: "jedis-ms", Count: 1, LeaseMS: 30000, SkewMS: -4999.6, SkewKnown: true,
		HoldMS: []profile.Quantile{{Share: 0, MS: 1}, {Share: 1, MS: 2.5}}}}}
	var text bytes.Buffer
	require.NoError(t, p.Write(&text))
	got, err := profile.Read(&text)
	require.NoError(t, err)
	assert.Equal(t, p, got)
}

func TestRefused(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `{"version":2}`, `{"version":1,"clients":[{"count":0}]}`, `{"version":1,"clients":[{"count":1,"lease_ms":-1}]}`,
		`{"version":1,"clients":[{"count":1,"hold_ms":[{"share":0.5,"ms":3},{"share":0.4,"ms":4}]}]}`,
	} {
		_, err := profile.Read(strings.NewReader(text))
		assert.Error(t, err, text)
	}
}
