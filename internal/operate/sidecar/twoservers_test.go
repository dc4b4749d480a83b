package sidecar

import (
	"net"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
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

// Two processes of a name that both take new clients are told of, unless one of them goes soon.
func TestTwins(t *testing.T) {
	began := time.Unix(1000, 0)
	told := twins{}
	for at := time.Duration(0); at <= twinsAfter; at += pingEvery {
		assert.False(t, told.heard("a", began.Add(at)), "%v after the first word: one is being replaced", at)
	}
	assert.False(t, told.heard("b", began.Add(twinsAfter+pingEvery)), "the next one is replaced")
	assert.True(t, told.heard("a", began.Add(twinsAfter+pingEvery)))
	assert.False(t, told.heard("a", began.Add(2*twinsAfter)), "it had gone, and its id says so: nobody else has it")
}
