package sidecar

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

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
