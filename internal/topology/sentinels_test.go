package topology

import (
	"errors"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
)

// Answers of sentinels, and of servers that are none.
func TestAskSentinel(t *testing.T) {
	words := func(of ...string) (all []any) {
		for _, w := range of {
			all = append(all, []byte(w))
		}
		return all
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		master, address any // replies, or errors
		addr            string
		epoch           int64
		want            error
	}{
		"a master":             {words("ip", "old", "config-epoch", "7"), words("::1", "6379"), "[::1]:6379", 7, nil},
		"no such master":       {redis.Error("ERR No such master with that name"), nil, "", 0, ErrNoMaster},
		"it is gone meanwhile": {words("config-epoch", "7"), nil, "", 0, ErrNoMaster},
		"half an address":      {words("config-epoch", "7"), words("::1"), "", 0, ErrNoMaster},
		"no epoch":             {words("ip", "old"), words("::1", "6379"), "", 0, ErrNoEpoch},
		"an epoch below 0":     {words("config-epoch", "-1"), words("::1", "6379"), "", 0, ErrNoEpoch},
		"no sentinel":          {redis.Error("ERR unknown command"), nil, "", 0, redis.Error("ERR unknown command")},
		"no second reply":      {words("config-epoch", "7"), broken, "", 0, broken},
	} {
		t.Run(name, func(t *testing.T) {
			addr, epoch, err := AskSentinel(func(_ string, args ...any) (any, error) {
				reply := c.address
				if args[0] == "MASTER" {
					reply = c.master
				}
				if err, is := reply.(error); is {
					return nil, err
				}
				return reply, nil
			}, "orders")
			assert.Equal(t, c.want, err)
			assert.Equal(t, c.addr, addr)
			assert.Equal(t, c.epoch, epoch)
		})
	}
}

func TestNewestOf(t *testing.T) {
	dead := errors.New("dead")
	ask := func(addr string) (string, int64, error) {
		switch addr {
		case "old":
			return "a", 6, nil
		case "new":
			return "b", 7, nil
		default:
			return "", 0, dead
		}
	}
	for _, order := range [][]string{{"old", "new", "dead"}, {"dead", "new", "old"}} {
		addr, epoch, errs := NewestOf(order, ask)
		assert.Equal(t, "b", addr)
		assert.EqualValues(t, 7, epoch)
		assert.Equal(t, []error{dead}, errs)
	}
	_, epoch, errs := NewestOf([]string{"dead", "dead"}, ask)
	assert.EqualValues(t, -1, epoch)
	assert.Len(t, errs, 2)
}
