package fence_test

import (
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/redistest"
)

// versions are the servers beside the default one that have an ACL: the tests of a fence run on each of them.
var versions = []string{"redis-6.0.16", "redis-6.2.11", "redis-8.2.3", "valkey-8.1.8", "valkey-9.0.0"}
