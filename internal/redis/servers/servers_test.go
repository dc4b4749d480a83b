package servers_test

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

var update = flag.Bool("update", false, "write the page's table instead of comparing it")

// TestPage compares the table of docs/servers.md with the one in code.
func TestPage(t *testing.T) {
	redistest.Section(t, filepath.Join("..", "..", "..", "docs", "servers.md"), "servers", "internal/redis/servers", servers.Markdown(), *update)
}

func TestServersAndTheirColumns(t *testing.T) {
	for _, c := range []struct {
		info   map[string]string
		is     string
		column string // empty: none
	}{
		{map[string]string{"redis_version": "2.8.19"}, "Redis 2.8.19", "Redis 2.8, 3.0"},
		{map[string]string{"redis_version": "3.0.5"}, "Redis 3.0.5", "Redis 2.8, 3.0"},
		{map[string]string{"redis_version": "4.0.14"}, "Redis 4.0.14", "Redis 3.2, 4.0"},
		{map[string]string{"redis_version": "6.2.11", "server_name": "redis"}, "Redis 6.2.11", "Redis 6.2"},
		{map[string]string{"redis_version": "7.4.1"}, "Redis 7.4.1", "Redis 7"},
		{map[string]string{"redis_version": "10.0.0"}, "Redis 10.0.0", "Redis 8"},
		{map[string]string{"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, "Valkey 9.1.2", "Valkey 8, 9"},
		{map[string]string{"redis_version": "6.0.5", "server_name": "keeper"}, "Keeper 6.0.5", ""},
		{map[string]string{"redis_version": "2.4.0"}, "Redis 2.4.0", ""},
		{map[string]string{"redis_version": "unstable"}, "Redis unstable", ""},
		{map[string]string{}, "Redis", ""},
	} {
		is := servers.Of(c.info)
		assert.Equal(t, c.is, is.String())
		column, known := is.RangeOf()
		if c.column == "" {
			assert.False(t, known, c.is)
			continue
		}
		require.True(t, known, c.is)
		assert.Equal(t, c.column, servers.Ranges[column].Name, c.is)
	}
}

// TestTriedVersions wants every server that the suite builds in the table, and the other way round.
func TestTriedVersions(t *testing.T) {
	tried := []string{"redis-7.0.15"} // Debian's, on the PATH
	tried = append(tried, redistest.Names()...)
	var named []string
	for _, r := range servers.Ranges {
		kind, _, _ := strings.Cut(strings.ToLower(r.Name), " ")
		for version := range strings.FieldsSeq(r.Tried) {
			named = append(named, kind+"-"+version)
		}
	}
	assert.ElementsMatch(t, tried, named)
}

func TestOldReply(t *testing.T) {
	old := servers.Old(redis.Error("OLDSERVER Redis 2.8.19 cannot run this script: and so on"), "bridge_acquire.lua")
	require.NotNil(t, old)
	assert.Equal(t, servers.Bridge, old.Feature.ID)
	for _, part := range []string{"stages bridge and modern: needs Redis 3.2 or later, this is Redis 2.8.19", "package legacy", "Unfair"} {
		assert.Contains(t, old.Error(), part)
	}
	assert.NotContains(t, old.Instead(), "fence", "there is no ACL either")
	old = servers.Old("OLDSERVER Redis before 3.2 cannot run this script", "stage_join.lua")
	require.NotNil(t, old)
	assert.Contains(t, old.Error(), "namespaces")
	assert.Contains(t, old.Error(), "this server is older")
	assert.Nil(t, servers.Old("ERR no", "stage_join.lua"))
}
