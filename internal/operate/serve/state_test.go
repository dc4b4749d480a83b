package serve

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
)

// Two kinds of clients of one host are two rows, and the next burst takes their place.
func TestRowsOfOneHost(t *testing.T) {
	b := newBoard("")
	b.rows([]observe.Row{{Addr: "10.0.0.1", Dialect: "jedis-ms"}, {Addr: "10.0.0.1", Dialect: "set-nx-px"}, {Addr: "10.0.0.2", Dialect: "jedis-ms"}})
	assert.Len(t, b.read().Clients, 3)
	b.rows([]observe.Row{{Addr: "10.0.0.1", Dialect: "jedis-ms"}})
	assert.Len(t, b.read().Clients, 2)
}
