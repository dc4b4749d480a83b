// Package doctor looks at one deployment before a migration: can locks be kept there at all, and can the
// tools see what they need to see. It only reads.
//
// A check never fails because it could not look: it is skipped, and says why.
package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
)

// Verdict is the outcome of a check.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Warn Verdict = "warn"
	Fail Verdict = "fail"
	Skip Verdict = "skip"
)

// Check is one finding.
type Check struct {
	ID      string  `json:"id"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Why     string  `json:"why"`
	Hint    string  `json:"hint"`
	Server  string  `json:"server,omitempty"` // where there are several
}

// Options of an examination.
type Options struct {
	Match string           // a glob of the lock keys; empty for all
	Keys  int              // how many keys to look at
	Now   func() time.Time // this host's clock
}

// patient is one server with what was read of it.
type patient struct {
	conn    redis.Conn
	end     *endpoint.Endpoint
	addr    string
	opts    Options
	info    map[string]string
	infoErr error
	config  map[string]string
	user    string
	offset  time.Duration // this host's clock less the server's
	trip    time.Duration // the shortest round trip
	clockOK bool
	keys    *sample
}

// check is one question to a patient.
type check struct {
	id  string
	why string
	ask func(ctx context.Context, p *patient) (Verdict, string, string) // verdict, found, hint
}

// Examine asks every question of every master.
func Examine(ctx context.Context, end *endpoint.Endpoint, opts Options) ([]Check, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	masters, err := end.Masters(ctx)
	if err != nil {
		return nil, err
	}
	var all []Check
	var patients []*patient
	for _, addr := range masters {
		p, err := admit(ctx, end, addr, opts)
		if err != nil {
			return all, err
		}
		defer p.conn.Close()
		patients = append(patients, p)
		for _, c := range checks() {
			if ctx.Err() != nil {
				return all, context.Cause(ctx)
			}
			verdict, found, hint := c.ask(ctx, p)
			one := Check{ID: c.id, Verdict: verdict, Found: found, Why: c.why, Hint: hint}
			if len(masters) > 1 {
				one.Server = addr
			}
			all = append(all, one)
		}
	}
	if len(patients) > 1 {
		all = append(all, clocksAgree(patients))
	}
	return all, nil
}

// admit reads what most checks want to know.
func admit(ctx context.Context, end *endpoint.Endpoint, addr string, opts Options) (*patient, error) {
	conn, err := end.DialAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	p := &patient{conn: conn, end: end, addr: addr, opts: opts, info: map[string]string{}, config: map[string]string{}}
	text, err := redis.String(p.do(ctx, "INFO"))
	p.infoErr = err
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			p.info[name] = value
		}
	}
	for _, name := range []string{"maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write",
		"stop-writes-on-bgsave-error", "timeout", "maxclients", "bind", "protected-mode", "client-output-buffer-limit"} {
		if pair, err := redis.StringMap(p.do(ctx, "CONFIG", "GET", name)); err == nil {
			for k, v := range pair {
				p.config[k] = v
			}
		}
	}
	p.user, _ = redis.String(p.do(ctx, "ACL", "WHOAMI"))
	p.measureClock(ctx)
	p.keys = takeSample(ctx, p)
	return p, context.Cause(ctx)
}

func (p *patient) do(ctx context.Context, command string, args ...any) (any, error) {
	return redis.DoContext(p.conn, ctx, command, args...)
}

// measureClock compares clocks by the fastest of several round trips: the server read its clock within it.
func (p *patient) measureClock(ctx context.Context) {
	for range 9 {
		before := p.opts.Now()
		began := time.Now()
		parts, err := redis.Int64s(p.do(ctx, "TIME"))
		trip := time.Since(began)
		if err != nil || len(parts) != 2 {
			return
		}
		if !p.clockOK || trip < p.trip {
			server := time.Unix(parts[0], parts[1]*1000)
			p.trip, p.clockOK = trip, true
			p.offset = before.Add(trip / 2).Sub(server)
		}
	}
}

func (p *patient) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(p.info[name], 10, 64)
	return n, err == nil
}

// atLeast compares the server's version.
func (p *patient) atLeast(major, minor, patch int) (bool, bool) {
	var a, b, c int
	if n, _ := fmt.Sscanf(p.info["redis_version"], "%d.%d.%d", &a, &b, &c); n < 2 {
		return false, false
	}
	have, want := a*1_000_000+b*1000+c, major*1_000_000+minor*1000+patch
	return have >= want, true
}

// may asks whether this user may run a command; unknown where the server cannot tell (before 7.0).
func (p *patient) may(ctx context.Context, command ...any) (allowed, known bool, reason string) {
	reply, err := redis.String(p.do(ctx, "ACL", append([]any{"DRYRUN", p.user}, command...)...))
	if err != nil || p.user == "" {
		return false, false, ""
	}
	return reply == "OK", true, reply
}

func skip(why string) (Verdict, string, string) { return Skip, why, "" }

// noInfo tells that INFO did not say what a check wants.
func (p *patient) noInfo() (Verdict, string, string) {
	if p.infoErr != nil {
		return Skip, "INFO is refused: " + p.infoErr.Error(), "grant +info to the user of this check"
	}
	return Skip, "INFO does not tell", ""
}

func clocksAgree(patients []*patient) Check {
	c := Check{ID: "masters-clocks", Verdict: Pass, Why: "TTLs count by each master's own clock; timestamps of one lock are compared with the clock of its master only"}
	low, high := patients[0].offset, patients[0].offset
	for _, p := range patients {
		low, high = min(low, p.offset), max(high, p.offset)
	}
	c.Found = fmt.Sprintf("the clocks of %d masters lie %v apart", len(patients), (high - low).Round(time.Millisecond))
	if high-low > 500*time.Millisecond {
		c.Verdict, c.Hint = Warn, "let chrony or ntpd discipline every node"
	}
	return c
}
