// Package scripts holds the project's server scripts. Each is one .lua file whose header documents
// its keys, arguments and replies, and why it must be atomic.
package scripts

import (
	"crypto/sha1" // EVALSHA's own digest, not a protection
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua
var files embed.FS

// The scripts, by what they do.
var (
	CompareDel = load("compare_del.lua", 1)
	CompareSet = load("compare_set.lua", 1)

	ModernTake    = load("modern_take.lua", 2, "effects.lua", "modern_fence.lua")
	ModernExtend  = load("modern_extend.lua", 2)
	ModernQueue   = load("modern_queue.lua", 4, "effects.lua", "modern_fence.lua", "modern_grant.lua")
	ModernRelease = load("modern_release.lua", 4, "effects.lua", "modern_fence.lua", "modern_grant.lua")

	RedissonTake    = load("modern_redisson_take.lua", 1)
	RedissonExtend  = load("modern_redisson_extend.lua", 1)
	RedissonRelease = load("modern_redisson_release.lua", 1)

	BridgeAcquire = load("bridge_acquire.lua", 5, "effects.lua", "bridge_shared.lua")
	BridgeSettle  = load("bridge_settle.lua", 2, "effects.lua", "bridge_shared.lua")
	BridgeRenew   = load("bridge_renew.lua", 4, "effects.lua", "bridge_shared.lua")
	BridgeRelease = load("bridge_release.lua", 4, "effects.lua")

	SweepExpire     = load("sweep_expire.lua", 1)
	SweepHashExpire = load("sweep_hash_expire.lua", 1)

	GatedSetNX      = load("gated_setnx.lua", 2, "effects.lua", "bridge_shared.lua")
	GatedGetSet     = load("gated_getset.lua", 2, "effects.lua", "bridge_shared.lua")
	GatedSet        = load("gated_set.lua", 2, "effects.lua", "bridge_shared.lua")
	GatedCompareSet = load("gated_compare_set.lua", 1, "effects.lua", "bridge_shared.lua", "compare_set.lua")

	SidecarTake   = load("sidecar_take.lua", 4, "effects.lua", "bridge_shared.lua", "modern_fence.lua", "modern_grant.lua", "sidecar_shared.lua")
	SidecarGet    = load("sidecar_get.lua", 4, "effects.lua", "bridge_shared.lua", "sidecar_shared.lua")
	SidecarDel    = load("sidecar_del.lua", 4, "effects.lua", "bridge_shared.lua", "modern_fence.lua", "modern_grant.lua", "sidecar_shared.lua")
	SidecarExpire = load("sidecar_expire.lua", 4, "effects.lua", "bridge_shared.lua", "sidecar_shared.lua")
	SidecarKeep   = load("sidecar_keep.lua", 4, "effects.lua", "bridge_shared.lua", "sidecar_shared.lua")
	SidecarOld    = load("sidecar_old.lua", 4, "effects.lua", "bridge_shared.lua", "sidecar_shared.lua")

	StageInit  = load("stage_init.lua", 2, "effects.lua", "stage_shared.lua")
	StageJoin  = load("stage_join.lua", 2, "effects.lua", "stage_shared.lua")
	StageLeave = load("stage_leave.lua", 2)
	StageMove  = load("stage_move.lua", 2, "effects.lua", "stage_shared.lua")
	StageShow  = load("stage_show.lua", 2)

	StageSet    = load("stage_set.lua", 2, "effects.lua", "stage_shared.lua")
	StageDelete = load("stage_delete.lua", 2, "effects.lua", "stage_shared.lua")
	StageClaim  = load("stage_claim.lua", 1, "effects.lua")
	StageList   = load("stage_list.lua", 1)
)

// Script is one server script.
type Script struct {
	Name   string // the file's name
	Source string
	Digest string // SHA-1 of Source, as EVALSHA wants it
	Keys   int    // how many of the arguments are keys; fewer where a script says that some may be left out

	byDigest [2]any // boxed once, not with every call
}

// ByDigest returns what follows EVALSHA, up to the keys.
func (s *Script) ByDigest() []any { return s.byDigest[:] }

// Args returns the arguments of EVALSHA or EVAL.
func (s *Script) Args(byDigest bool, keysAndArgs []any) []any {
	what := s.Source
	if byDigest {
		what = s.Digest
	}
	return append([]any{what, s.Keys}, keysAndArgs...)
}

// load reads a script and puts the files that it shares with others where it includes them, or before it.
func load(name string, keys int, shared ...string) *Script {
	source := read(name)
	for i := len(shared) - 1; i >= 0; i-- {
		before, after, found := strings.Cut(source, "-- include "+shared[i]+"\n")
		if !found {
			before, after = "", source
		}
		source = before + read(shared[i]) + after
	}
	digest := sha1.Sum([]byte(source))
	s := &Script{Name: name, Source: source, Digest: hex.EncodeToString(digest[:]), Keys: keys}
	s.byDigest = [2]any{s.Digest, s.Keys}
	all = append(all, s)
	return s
}

func read(file string) string {
	text, err := files.ReadFile(file)
	if err != nil {
		panic(err) // embedded at build time: a missing file is a programming error
	}
	return string(text)
}
