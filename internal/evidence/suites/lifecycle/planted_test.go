package lifecycle

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// plant is a fault that a lock once had.
type plant struct {
	redistest.Plant
	kinds string
	finds string // a part of what the sequences must say of it
}

// TestPlantsFit: each fault still has its place. It takes no time, TestPlanted minutes.
func TestPlantsFit(t *testing.T) {
	for _, p := range plants {
		p.Fits(t)
	}
}

// TestPlanted builds this suite with each fault in turn, by an overlay over the source, and wants it found: by the same sequence 20
// times of 20.
func TestPlanted(t *testing.T) {
	if os.Getenv("LOCKMIGRATE_LIFECYCLE") == "" {
		t.Skip("left out: it builds the suite once for each fault; `make test` does (LOCKMIGRATE_LIFECYCLE)")
	}
	for _, p := range plants {
		t.Run(p.Name, func(t *testing.T) {
			built := p.Build(t)
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
		Plant: redistest.Plant{Name: "a failed release leaves nobody to watch the deadline",
			Files: map[string][]string{"internal/client/lifetime/release.go": {
				"l.locker.Watch.Rest(&l.Lease)", "l.locker.Watch.Remove(&l.Lease)",
			}}},
		kinds: "modern,quorum", finds: `the lock was good until \S+, and its context goes on`,
	},
	{
		Plant: redistest.Plant{Name: "Do hides the loss behind the error of the work",
			Files: map[string][]string{"internal/client/lifetime/section.go": {
				"\t\tswitch {\n\t\tcase err == nil:", "\t\tswitch {\n\t\tcase err != nil:\n\t\t\treturn\n\t\tcase err == nil:",
			}}},
		kinds: "modern,compat", finds: `Do hides the loss of the lock: .*`,
	},
	{
		Plant: redistest.Plant{Name: "an attempt to listen that fails while nobody waits is the last one, and who does not listen is passed over",
			Files: map[string][]string{
				"internal/client/waiting/place.go": {
					"\t\th.forget(p) // the next one who waits there tries at once\n", "\t\tp.failures++\n\t\tp.again = time.AfterFunc(time.Hour, func() {})\n",
				},
				"internal/redis/scripts/queue_grant.lua": {"if channel == '-' then return true end", "if channel == '-' then return false end"},
			}},
		kinds: "modern", finds: `did not get the lock for \S+, with nothing in the way`,
	},
	{
		Plant: redistest.Plant{Name: "of a renewal without an answer only the old value is remembered",
			Files: map[string][]string{
				"internal/client/lockers/old.go": {"o.text, o.expiry, o.pending, o.pendingExpiry = m.Value, m.ValueExpiry, m.Pending, m.PendingExpiry", "o.text, o.expiry = m.Value, m.ValueExpiry"},
			}},
		kinds: "legacy,compat", finds: `says that the lock is lost, and there is nobody else`,
	},
	{
		Plant: redistest.Plant{Name: "a fenced acquisition fails after its SET",
			Files: map[string][]string{
				"internal/redis/scripts/modern_take.lua": {
					"  local n = next_fence(fence, fence_ttl)\n  redis.call('SET', key, token, 'PX', ttl)\n",
					"  redis.call('SET', key, token, 'PX', ttl)\n  local n = next_fence(fence, fence_ttl)\n",
				},
				"internal/protocol/modern.go": {`return strings.Contains(r.Text, "user_script")`, "return false"},
			}},
		kinds: "modern", finds: `after the last step there is still \[modern:`,
	},
	{
		Plant: redistest.Plant{Name: "a release needs a right to the queue's key",
			Files: map[string][]string{"internal/protocol/modern.go": {
				`	case reply.Kind == Fault && r.Queue != "":`, `	case false:`,
			}}},
		kinds: "modern", finds: `a release was refused: .*`,
	},
	{
		Plant: redistest.Plant{Name: "a bridge lock is extended by SET",
			Files: map[string][]string{"internal/redis/scripts/bridge_renew.lua": {
				"  redis.call('PEXPIRE', key, ttl)\n  redis.call('PEXPIRE', guard, ttl)\n", "  redis.call('SET', key, value, 'PX', ttl)\n  redis.call('PEXPIRE', guard, ttl)\n",
			}}},
		kinds: "compat", finds: `a renew was refused: .*OOM.*`,
	},
	{
		Plant: redistest.Plant{Name: "a bridge lock's release writes before it deletes",
			Files: map[string][]string{"internal/redis/scripts/bridge_release.lua": {
				"if others == unwanted and not breathes then\n", "if others == unwanted and not breathes then\n  redis.call('SET', KEYS[3], '0 0', 'PX', 1000)\n",
			}}},
		kinds: "compat", finds: `a release was refused: .*OOM.*`,
	},
	{
		Plant: redistest.Plant{Name: "a lost half only ends its own context", Files: map[string][]string{"handover/lock.go": {
			"whenLost(half, k.halfEnded)", "whenLost(half, func(error) {})",
		}}},
		kinds: "handover", finds: `the lock was good until \S+, and its context goes on`,
	},
	{
		Plant: redistest.Plant{Name: "who has lost Old waits for New, and is handed both", Files: map[string][]string{"handover/acquire.go": {
			"func(cause error) { end(k.halfLost(cause)) }", "func(error) {}", "if errors.Is(context.Cause(attempt), errGivenBack) ||", "if false &&",
		}}},
		kinds: "handover", finds: `was handed a lock [1-9]\d\d\S*ms after its deadline`,
	},
}
