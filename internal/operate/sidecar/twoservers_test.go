package sidecar

import (
	"net"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
)

// TestNewBreaks: a look that New does not answer says nothing about the connections to Old. Where Old does not answer, those that were idle go.
func TestNewBreaks(t *testing.T) {
	dial := func() (redis.Conn, error) {
		ours, theirs := net.Pipe()
		return redis.NewConn(ours, 0, 0), theirs.Close()
	}
	s := &Sidecar{opts: Options{ReplyTimeout: time.Second}, old: &oldConns{Pool: &redis.Pool{Dial: dial}}}
	require.Nil(t, s.each(&redis.Pool{Dial: dial}, []string{"lock:a"}, "EXISTS"))
	require.Nil(t, s.old.broken.Load())
	require.Nil(t, s.each(s.old, []string{"lock:a"}, "GET", "PTTL"))
	require.NotNil(t, s.old.broken.Load())
}
