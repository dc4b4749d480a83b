package lifecycle

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plant is a fault that a lock once had, put back by replacing text in the present source.
type plant struct {
	name  string
	files map[string][2]string // a file of the module: what is replaced, and by what
	kinds string
	finds string // a part of what the sequences must say of it
}

// put is the file with the fault in it.
func (p *plant) put(t *testing.T, file string) string {
	source, err := os.ReadFile(filepath.Join("../../../..", file))
	require.NoError(t, err)
	change := p.files[file]
	require.Equal(t, 1, strings.Count(string(source), change[0]), "%s has changed: the fault has to be put back in another place", file)
	return strings.Replace(string(source), change[0], change[1], 1)
}

// TestPlantsFit: each fault still has its place. It takes no time, TestPlanted minutes.
func TestPlantsFit(t *testing.T) {
	for _, p := range plants {
		for file := range p.files {
			p.put(t, file)
		}
	}
}

// TestPlanted builds this suite with each fault in turn, by an overlay over the source, and wants it found: by the same sequence 20
// times of 20.
func TestPlanted(t *testing.T) {
	if os.Getenv("LOCKMIGRATE_LIFECYCLE") == "" {
		t.Skip("a build for each fault: LOCKMIGRATE_LIFECYCLE asks for it")
	}
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			dir := t.TempDir()
			overlay := map[string]map[string]string{"Replace": {}}
			for file := range p.files {
				changed := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
				require.NoError(t, os.WriteFile(changed, []byte(p.put(t, file)), 0o600))
				overlay["Replace"][filepath.Join(root, file)] = changed
			}
			replaced, err := json.Marshal(overlay)
			require.NoError(t, err)
			list := filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(list, replaced, 0o600))
			built := filepath.Join(dir, "planted.test")
			out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", built, ".").CombinedOutput()
			require.NoError(t, err, "%s", out)
			sequences := func(args ...string) string {
				out, _ := exec.Command(built, append([]string{"-test.run", "TestLifecycle$"}, args...)...).CombinedOutput()
				return string(out)
			}
			text := sequences("-kind", p.kinds, "-sequences", most, "-shown", "1000", "-until", p.finds)
			where := regexp.MustCompile(p.finds).FindStringIndex(text)
			require.NotNil(t, where, "not found in %s sequences:\n%.3000s", most, text)
			t.Logf("found: %s", text[where[0]:where[1]])
			again := regexp.MustCompile(`again: -kind (\S+) -seed (\d+)`).FindStringSubmatch(text[where[0]:])
			require.NotNil(t, again)
			for n := range 20 {
				require.Regexp(t, p.finds, sequences("-kind", again[1], "-seed", again[2]), "run %d of the same seed has another verdict", n+1)
			}
		})
	}
}

// most is how many sequences of a kind a fault may take to be found. The rarest shows about once in a thousand.
const most = "6000"

var plants = []plant{
	{
		name: "a failed release leaves nobody to watch the deadline",
		files: map[string][2]string{"internal/client/lifetime/release.go": {
			"l.locker.Watch.Rest(&l.Lease)", "l.locker.Watch.Remove(&l.Lease)",
		}},
		kinds: "modern,modern-unfair,quorum", finds: `the lock was good until \S+, and its context goes on`,
	},
	{
		name: "Do hides the loss behind the error of the work",
		files: map[string][2]string{"internal/client/lifetime/section.go": {
			"\t\tswitch {\n\t\tcase err == nil:", "\t\tswitch {\n\t\tcase err != nil:\n\t\t\treturn\n\t\tcase err == nil:",
		}},
		kinds: "modern,compat-bridge", finds: `Do hides the loss of the lock: .*`,
	},
	{
		name: "an attempt to listen that fails while nobody waits is the last one, and who does not listen is passed over",
		files: map[string][2]string{
			"internal/client/waiting/place.go": {
				"\t\th.forget(p) // the next one who waits there tries at once\n", "\t\tp.failures++\n\t\tp.again = time.AfterFunc(time.Hour, func() {})\n",
			},
			"internal/scripts/queue_grant.lua": {"if channel == '-' then return true end", "if channel == '-' then return false end"},
		},
		kinds: "modern,modern-owner,modern-norenewal", finds: `did not get the lock for \S+, with nothing in the way`,
	},
	{
		name: "of a renewal without an answer only the old value is remembered",
		files: map[string][2]string{
			"internal/client/lockers/old.go": {"o.text, o.expiry, o.pending, o.pendingExpiry = m.Value, m.ValueExpiry, m.Pending, m.PendingExpiry", "o.text, o.expiry = m.Value, m.ValueExpiry"},
		},
		kinds: "legacy-compare,compat-legacy", finds: `says that the lock is lost, and there is nobody else`,
	},
	{
		name: "a fenced acquisition fails after its SET",
		files: map[string][2]string{
			"internal/scripts/modern_take.lua": {
				"  local n = next_fence(fence, fence_ttl)\n  redis.call('SET', key, token, 'PX', ttl)\n",
				"  redis.call('SET', key, token, 'PX', ttl)\n  local n = next_fence(fence, fence_ttl)\n",
			},
			"internal/protocol/modern.go": {`return strings.Contains(r.Text, "user_script")`, "return false"},
		},
		kinds: "modern-fenced", finds: `after the last step there is still \[modern-fenced`,
	},
	{
		name: "a release needs a right to the queue's key",
		files: map[string][2]string{"internal/protocol/modern.go": {
			`	case reply.Kind == Fault && r.Queue != "":`, `	case false:`,
		}},
		kinds: "modern,modern-share", finds: `a release was refused: .*`,
	},
	{
		name: "a bridge lock is extended by SET",
		files: map[string][2]string{"internal/scripts/bridge_renew.lua": {
			"  redis.call('PEXPIRE', key, ttl)\n  redis.call('PEXPIRE', guard, ttl)\n", "  redis.call('SET', key, value, 'PX', ttl)\n  redis.call('PEXPIRE', guard, ttl)\n",
		}},
		kinds: "compat-bridge,compat-modern", finds: `a renew was refused: .*OOM.*`,
	},
	{
		name: "a bridge lock's release writes before it deletes",
		files: map[string][2]string{"internal/scripts/bridge_release.lua": {
			"if others == unwanted and not breathes then\n", "if others == unwanted and not breathes then\n  redis.call('SET', KEYS[3], '0 0', 'PX', 1000)\n",
		}},
		kinds: "compat-bridge", finds: `a release was refused: .*OOM.*`,
	},
}
