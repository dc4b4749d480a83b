package fleet

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestTTLsPassAndNothingIsLeftRunning(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, err := StartServer()
	require.NoError(t, err)
	defer s.Close()
	conn, err := redis.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer conn.Close()

	_, err = conn.Do("SET", "k", "v", "PX", 50)
	require.NoError(t, err)
	began := time.Now()
	require.Eventually(t, func() bool {
		n, err := redis.Int(conn.Do("EXISTS", "k"))
		return err == nil && n == 0
	}, 5*time.Second, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(began), 40*time.Millisecond, "the TTL passed too fast")
}
