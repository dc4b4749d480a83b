package versions

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// used are the commands that the packages and the tools use, by the table of rights.
func used() (names []string) {
	for _, list := range [][]doctor.Use{doctor.Packages, doctor.Commands} {
		for _, use := range list {
			for _, r := range use.Rights {
				if name, _, _ := strings.Cut(strings.ToUpper(r.Name), "|"); r.Kind == doctor.Command && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// frees are the commands that a release needs and an acquisition does not.
func frees(command string) bool {
	for _, use := range doctor.Packages {
		for _, r := range use.Rights {
			if r.Frees && strings.EqualFold(r.Name, command) {
				return true
			}
		}
	}
	return false
}

// onTheWay are the rows behind the uses whose rights doctor tries by default.
var onTheWay = map[string]bool{servers.Legacy: true, servers.Bridge: true, servers.Namespace: true, servers.Modern: true}

// TestRenamed takes each command away in turn, as managed services do: what needs it says so by its name and leaves no key, and no
// tool says that all is well where it cannot see.
func TestRenamed(t *testing.T) {
	t.Parallel()
	for _, away := range used() {
		t.Run(away, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t, "--rename-command", away, "")
			broken := map[string]bool{} // rows that do not work
			for _, l := range locks {
				func() {
					ctx := redistest.Bounded(t, 5*time.Second)
					lock, err := l.process(t, server.Pool(), patient, nil).Acquire(ctx, "lock."+l.name)
					if err != nil {
						broken[l.feature] = true
						assert.Contains(t, strings.ToUpper(err.Error()), away, "%s: the error does not name the command", l.name)
						assert.Empty(t, keys(server, "lock."+l.name), "%s leaves a key behind: %v", l.name, err)
						return
					}
					if err := lock.Release(ctx); err != nil {
						broken[l.feature] = true
						assert.Contains(t, strings.ToUpper(err.Error()), away, "%s: the error does not name the command", l.name)
						assert.True(t, frees(away), "%s: %s is not known to be needed by a release: %v", l.name, away, err)
					}
				}()
			}
			conn := server.Conn()
			for _, name := range keys(server, "") {
				_, _ = conn.Do("UNLINK", name)
			}

			code, out, stderr := command(t, server, "doctor", "--json")
			var found struct{ Verdict string }
			if err := json.Unmarshal([]byte(out), &found); err != nil {
				assert.NotEqual(t, done, code, stderr)
			} else {
				for id := range broken {
					assert.False(t, onTheWay[id] && found.Verdict == "fit", "doctor calls a server fit on which %s does not work", id)
				}
			}

			over := make(chan string, 1)
			go func() {
				_, out, stderr := command(t, server, "verify", "--json", "--match", "lock.*", "--for", "1s", "--longest-silence", "1s")
				if out == "" {
					out = stderr
				}
				over <- out
			}()
			quit := time.After(20 * time.Second)
			for out = ""; out == ""; {
				select {
				case out = <-over:
				case <-quit:
					t.Fatal("verify does not end")
				case <-time.After(100 * time.Millisecond): // old clients that come and go all the time
					_, err := conn.Do("SETNX", "lock.verify", jedis(time.Second))
					if err != nil {
						_, _ = conn.Do("GETSET", "lock.verify", jedis(time.Second))
					}
					_, _ = conn.Do("UNLINK", "lock.verify")
				}
			}
			var v struct{ Verdict, Why string }
			if json.Unmarshal([]byte(out), &v) == nil {
				assert.Contains(t, []string{"seen", "inconclusive"}, v.Verdict, "%s: verify vouches beside SETNX: %s", away, v.Why)
			} else {
				assert.Contains(t, strings.ToUpper(out), away, "verify does not name the command")
			}
		})
	}
}

// keys are those whose name begins with a prefix, by a command that the project does not use.
func keys(server *redistest.Server, prefix string) []string {
	all, _ := redis.Strings(server.Try("KEYS", "*"))
	var of []string
	for _, name := range all {
		if strings.Contains(name, prefix) && !strings.HasSuffix(name, ":fence") {
			of = append(of, name)
		}
	}
	return of
}
