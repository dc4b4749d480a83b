package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// TestExplain names what a server's refusal leaves out: the keys, the command of a script, the channel.
func TestExplain(t *testing.T) {
	var release Request
	release.call(scripts.CompareDel, &protocol.Command{Key: "lock:a", Value: "token"})
	source, _, _ := strings.Cut(scripts.CompareDel.Source, "'DEL'")
	line := fmt.Sprintf("@user_script:%d", strings.Count(source, "\n")+1)
	get := Plain("GET", "lock:a")
	publish := Plain("PUBLISH", "lockmigrate:wake:x", "m")
	for _, c := range []struct {
		request Request
		refusal redis.Error
		names   string
	}{
		{get, "NOPERM this user has no permissions to access one of the keys used as arguments", `"lock:a"`},
		{release, "NOPERM this user has no permissions to access one of the keys used as arguments", `"lock:a"`},
		{release, "ERR The user executing the script can't run this command or subcommand script: x, on " + redis.Error(line) + ".", "compare_del.lua runs DEL"},
		{release, "ERR Error running script (call to f_x): " + redis.Error(line) + ": The user executing the script can't run this command or subcommand", "compare_del.lua runs DEL"},
		{release, "ERR The user executing the script can't run this command or subcommand", "one of them the user may not run"},
		{publish, "NOPERM this user has no permissions to access one of the channels used as arguments", `"lockmigrate:wake:x"`},
	} {
		got := c.request.Explain(c.refusal)
		assert.ErrorContains(t, got, c.names)
		var refused redis.Error
		assert.True(t, errors.As(got, &refused))
		assert.Equal(t, c.refusal, refused)
	}
	other := redis.Error("WRONGTYPE Operation against a key holding the wrong kind of value")
	assert.Equal(t, error(other), release.Explain(other))
	assert.NoError(t, release.Explain(nil))
}
