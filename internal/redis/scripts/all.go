package scripts

import (
	_ "embed"
	"strings"
	"sync"
)

// All lists every script.
func All() []*Script { return all }

var all []*Script

// Of returns a script by its text, with or without comments, or by the digest of either, nil for none of these. A script of a service that runs
// within sidecar_run.lua is that one.
func Of(text string) *Script {
	if s := known()[text]; s != nil {
		return s
	}
	if len(text) > 1000 && strings.Contains(text, around()) {
		return SidecarRun
	}
	return known()[strings.ToLower(text)] // a digest may be in capitals
}

// NameOf returns the name of Of's script, empty for none.
func NameOf(text string) string {
	if s := Of(text); s != nil {
		return s.Name
	}
	return ""
}

var around = sync.OnceValue(func() string { before, _, _ := strings.Cut(SidecarRun.Bare(), ownBody); return before })

// known has the scripts by text and digest, with and without comments. Few programs ask: it is made for the first one.
var known = sync.OnceValue(func() map[string]*Script {
	known := map[string]*Script{}
	for _, s := range all {
		for _, text := range []string{s.Source, s.Bare()} {
			known[text], known[digest(text)] = s, s
		}
	}
	return known
})

// Earlier returns the name of a script of an earlier build by its text or digest, empty for none of these. Its arguments and replies may be
// others than those of the script that has the name now.
func Earlier(text string) string {
	if len(text) != 40 {
		text = digest(text)
	}
	return earlier()[strings.ToLower(text)]
}

//go:embed earlier.txt
var earlierBuilds string

// earlier are the names of the scripts of earlier builds by their digests. The suite internal/evidence/suites/builds writes the file.
var earlier = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(earlierBuilds) {
		if sum, name, found := strings.Cut(strings.TrimSpace(line), " "); found {
			all[sum] = name
		}
	}
	return all
})
