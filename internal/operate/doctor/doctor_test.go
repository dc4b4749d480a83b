package doctor_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

// examine returns the checks by id.
func examine(t *testing.T, url string, opts doctor.Options) map[string]doctor.Check {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	checks, err := doctor.Examine(context.Background(), end, opts)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(checks), 20)
	byID := map[string]doctor.Check{}
	for _, c := range checks {
		assert.NotEmpty(t, c.Found, c.ID)
		assert.NotEmpty(t, c.Why, c.ID)
		if c.Verdict == doctor.Warn || c.Verdict == doctor.Fail {
			assert.NotEmpty(t, c.Hint, c.ID)
		}
		byID[c.ID] = c
	}
	assert.Len(t, byID, len(checks), "ids are unique")
	return byID
}

func verdicts(checks map[string]doctor.Check, v doctor.Verdict) []string {
	var ids []string
	for id, c := range checks {
		if c.Verdict == v {
			ids = append(ids, id+": "+c.Found)
		}
	}
	return ids
}

func TestHealthyServer(t *testing.T) {
	s := redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always")
	checks := examine(t, s.URL(), doctor.Options{})
	assert.Empty(t, verdicts(checks, doctor.Fail))
	for _, id := range []string{"version", "role", "eviction", "persistence", "scripting", "rights-legacy", "rights-compat-Namespace-legacy", "rights-compat-Namespace-bridge", "rights-compat-Namespace-modern", "rights-modern", "tracking", "monitor", "acl-log", "clock", "dialects", "ghosts"} {
		assert.Equal(t, doctor.Pass, checks[id].Verdict, "%s: %s", id, checks[id].Found)
	}
}

func TestMisconfiguredServers(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	soon := time.Now().Add(time.Minute)
	fill := strings.NewReplacer("{ms}", fmt.Sprint(soon.UnixMilli()), "{s}", fmt.Sprint(soon.Unix()), "{dead}", fmt.Sprint(soon.Add(-48*time.Hour).UnixMilli()), "''", "")
	words := func(cell string) (all []string) {
		if cell != "-" {
			for _, word := range strings.Split(cell, " ") {
				all = append(all, fill.Replace(word))
			}
		}
		return all
	}
	for _, row := range redistest.Rows(t, "testdata/servers.txt") {
		name := strings.Join(row, " ")
		cells := strings.Split(name, " | ")
		require.Len(t, cells, 7, row)
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t, words(cells[3])...)
			url := s.URL()
			if sent := words(cells[6]); sent != nil {
				s.Do(sent[0], redis.Args{}.AddFlat(sent[1:])...)
			}
			if joe := words(cells[4]); joe != nil {
				s.Grant("joe", joe...)
				url = s.URLOf("joe")
			}
			check := examine(t, url, doctor.Options{Match: strings.Trim(cells[5], "-")})[cells[0]]
			assert.EqualValues(t, cells[1], check.Verdict)
			assert.Contains(t, check.Found, cells[2])
		})
	}
	s := redistest.Real(t)
	s.Grant("joe", "~lock:*", "~{lock:*}:queue", "&*", "+@all")
	check := examine(t, s.URL(), doctor.Options{Match: "lock:*", User: "joe", Uses: []string{"modern FenceTTL"}})["rights-modern-FenceTTL"]
	assert.Equal(t, doctor.Fail, check.Verdict, "of another user")
	assert.Contains(t, check.Found, "{lock:lockmigrate-doctor}:fence")
}

// TestEachRightIsTried takes one right after the other from a user, for every use of the lock packages, and
// wants doctor to name it by ACL DRYRUN, and to skip it where the user has no right to that. It must change nothing.
func TestEachRightIsTried(t *testing.T) {
	s := redistest.Real(t)
	s.Do("SET", "lock:other", "x")
	for _, name := range []string{"legacy", "legacy ServiceStack", "modern", "modern Yield", "redisson", "quorum", "compat Namespace bridge", "lockmigrate scan", "lockmigrate verify"} {
		use, ok := doctor.FindUse(name)
		require.True(t, ok)
		id := "rights-" + strings.ReplaceAll(name, " ", "-")
		look := func(without *doctor.Right, more ...string) doctor.Check {
			s.Grant("joe", slices.Concat(use.Rules([]string{"lock:*"}, without), []string{"+info", "+scan", "+time"}, more)...)
			return examine(t, s.URLOf("joe"), doctor.Options{Match: "lock:*", Uses: []string{name}})[id]
		}
		whole := look(nil, "+acl|dryrun", "+acl|whoami")
		assert.Equal(t, doctor.Pass, whole.Verdict, "%s: %s", name, whole.Found)
		assert.Equal(t, doctor.Skip, look(nil).Verdict, "%s, without DRYRUN", name)
		for _, r := range use.Rights {
			if slices.Contains([]string{"time", "scan", "info", "acl|whoami", "acl|dryrun"}, r.Name) {
				continue // doctor needs them itself
			}
			c := look(&r, "+acl|dryrun", "+acl|whoami")
			want := doctor.Fail
			if r.Without != "" {
				want = doctor.Warn
			}
			assert.Equal(t, want, c.Verdict, "%s without %s %s: %s", name, r.Kind, r.Name, c.Found)
			named := r.Name
			if r.Kind == doctor.Key {
				named = doctor.Patterns(r.Name, "lock:lockmigrate-doctor")[0]
			}
			if r.Name == doctor.Namespace {
				named = "lockmigrate:{lockmigrate-doctor}"
			}
			assert.Contains(t, c.Found, named, "%s without %s %s", name, r.Kind, r.Name)
		}
	}
	assert.EqualValues(t, 1, s.Do("DBSIZE"))
	assert.Equal(t, "x", s.Value("lock:other"))
}

// TestRightsBeforeDryrun: what cannot be tried is skipped, unless the user's rule leaves nothing out, or the server has no rules.
func TestRightsBeforeDryrun(t *testing.T) {
	for name, acl := range map[string]bool{"redis-6.2.11": true, "redis-5.0.6": false} {
		s := redistest.Of(t, name)
		assert.Equal(t, doctor.Pass, examine(t, s.URL(), doctor.Options{})["rights-modern"].Verdict, name)
		if acl {
			s.Grant("joe", "~*", "&*", "+@all", "-flushall")
			assert.Equal(t, doctor.Skip, examine(t, s.URLOf("joe"), doctor.Options{})["rights-modern"].Verdict, name)
		}
	}
}

// TestFitNeedsAnswers gives a user too few rights to look with, and wants no yes.
func TestFitNeedsAnswers(t *testing.T) {
	s := redistest.Real(t)
	s.Grant("joe", "~*", "&*", "+@all", "-@admin", "-@dangerous", "-multi")
	for url, want := range map[string]doctor.Outcome{s.URLOf("joe"): doctor.Inconclusive, s.URL(): doctor.Fit} {
		outcome, list := doctor.Judge(slices.Collect(maps.Values(examine(t, url, doctor.Options{}))))
		assert.Equal(t, want, outcome, list)
		assert.Equal(t, want == doctor.Fit, len(fence.Undischarged(list)) == 0)
	}
	outcome, _ := doctor.Judge(nil)
	assert.Equal(t, doctor.Inconclusive, outcome)
}
