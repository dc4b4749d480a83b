// Package doctor looks at one deployment before a migration: can locks be kept there at all, and can the
// tools see what they need to see. It only reads: a right is asked about by ACL DRYRUN, and a right that
// cannot be asked about is skipped.
//
// A check never fails because it could not look: it is skipped, and says why. A deployment is called fit only
// where the checks that a yes needs were made and did not fail.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
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
	Uses  []string         // the uses whose rights are tried, by their names in rights.txt; empty for DefaultUses
	User  string           // whose rights are tried; empty for the user of this connection
	Now   func() time.Time // this host's clock; nil for the usual one

	Progress func(server, check string, done, all int) // told before each check, nil for nobody
}

// patient is one server with what was read of it.
type patient struct {
	conn      redis.Conn
	end       *endpoint.Endpoint
	addr      string
	opts      Options
	info      map[string]string
	infoErr   error
	config    map[string]string
	user      string
	clocks    endpoint.Clocks
	clocksErr error
	keys      *sample
	known     map[string]bool // whether there are the commands that were asked for
	boundless *bool           // the user's rule allows everything; nil: not asked
}

// check is one question to a patient.
type check struct {
	id  string
	why string
	ask func(ctx context.Context, p *patient) (Verdict, string, string) // verdict, found, hint
}

// Findings are what an examination found.
type Findings []Check

// Of are the names of the checks with a verdict.
func (f Findings) Of(v Verdict) (names []string) {
	for _, c := range f {
		if c.Verdict == v {
			names = append(names, c.ID)
		}
	}
	return names
}

// Examine asks every question of every master. Of several, one that cannot be reached is a question that is open.
func Examine(ctx context.Context, end *endpoint.Endpoint, opts Options) (found Findings, err error) {
	masters, err := end.Masters(ctx)
	if err != nil {
		return found, err
	}
	if len(opts.Uses) == 0 {
		opts.Uses = DefaultUses
	}
	var patients []*patient
	for m, addr := range masters {
		p, err := admit(ctx, end, addr, opts)
		switch {
		case ctx.Err() != nil:
			return found, context.Cause(ctx)
		case err != nil && len(masters) == 1:
			return found, err
		case err != nil:
			found = append(found, Check{ID: "reached", Verdict: Skip, Found: err.Error(), Server: addr,
				Why: "the keys of a master that does not answer cannot be locked", Hint: "start it, or mend the way to it; nothing is known of this master"})
			continue
		}
		defer p.conn.Close()
		patients = append(patients, p)
		list := checks(opts)
		for i, c := range list {
			if ctx.Err() != nil {
				return found, context.Cause(ctx)
			}
			if opts.Progress != nil {
				opts.Progress(addr, c.id, m*len(list)+i, len(masters)*len(list))
			}
			verdict, what, hint := c.ask(ctx, p)
			one := Check{ID: c.id, Verdict: verdict, Found: what, Why: c.why, Hint: hint}
			if len(masters) > 1 {
				one.Server = addr
			}
			found = append(found, one)
		}
	}
	if len(patients) > 1 {
		found = append(found, clocksAgree(patients))
	}
	return found, context.Cause(ctx)
}

// admit reads what most checks want to know.
func admit(ctx context.Context, end *endpoint.Endpoint, addr string, opts Options) (*patient, error) {
	conn, err := end.DialAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	p := &patient{conn: conn, end: end, addr: addr, opts: opts, known: map[string]bool{}, config: map[string]string{}}
	text, err := redis.String(p.do(ctx, "INFO"))
	p.info, p.infoErr = endpoint.InfoOf(text), err
	for _, name := range []string{"maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write", "min-slaves-to-write",
		"stop-writes-on-bgsave-error", "bind"} {
		if pair, err := redis.StringMap(p.do(ctx, "CONFIG", "GET", name)); err == nil {
			for k, v := range pair {
				p.config[k] = v
			}
		}
	}
	p.user, _ = redis.String(p.do(ctx, "ACL", "WHOAMI"))
	p.clocks, p.clocksErr = endpoint.CompareClocks(ctx, conn, 9, opts.Now)
	p.keys = takeSample(ctx, p)
	return p, nil
}

func (p *patient) do(ctx context.Context, command string, args ...any) (any, error) {
	return redis.DoContext(p.conn, ctx, command, args...)
}

func (p *patient) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(p.info[name], 10, 64)
	return n, err == nil
}

// dryrun asks whether a user may run a command: OK, or why not. It adds as many arguments as the command takes at least. An error means that
// the server does not tell, as before 7.0.
func (p *patient) dryrun(ctx context.Context, user string, command ...any) (said string, err error) {
	for range mostArguments {
		said, err = redis.String(p.do(ctx, "ACL", append([]any{"DRYRUN", user}, command...)...))
		if err == nil || !strings.Contains(err.Error(), "wrong number of arguments") {
			break
		}
		command = append(command, "0")
	}
	return said, err
}

// mostArguments are more than any command needs.
const mostArguments = 6

// Outcome is what an examination comes to.
type Outcome string

// The outcomes. A deployment is fit only where every obligation is discharged.
const (
	Fit          Outcome = "fit"
	Unfit        Outcome = "unfit"        // a check fails
	Inconclusive Outcome = "inconclusive" // a check that a yes needs could not be made
)

// Judge lists what a fit deployment has to pass, and says what came of it.
func Judge(all []Check) (Outcome, []fence.Obligation) {
	var list []fence.Obligation
	outcome := Inconclusive
	for _, c := range all {
		if !slices.Contains(essential, c.ID) && !strings.HasPrefix(c.ID, "rights-") {
			continue
		}
		o := fence.Obligation{ID: c.ID, Discharged: c.Verdict == Pass || c.Verdict == Warn, Evidence: string(c.Verdict) + ": " + c.Found}
		if c.Server != "" {
			o.ID += "@" + c.Server
		}
		list = append(list, o)
	}
	if len(list) > 0 && len(fence.Undischarged(list)) == 0 { // no list proves nothing
		outcome = Fit
	}
	if slices.ContainsFunc(all, func(c Check) bool { return c.Verdict == Fail }) {
		outcome = Unfit
	}
	return outcome, list
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
	if i := slices.IndexFunc(patients, func(p *patient) bool { return p.clocksErr != nil }); i >= 0 {
		c.Verdict, c.Found = Skip, "TIME is refused by "+patients[i].addr
		return c
	}
	low, high := patients[0].clocks.Ahead, patients[0].clocks.Ahead
	for _, p := range patients {
		low, high = min(low, p.clocks.Ahead), max(high, p.clocks.Ahead)
	}
	c.Found = fmt.Sprintf("the clocks of %d masters lie %v apart", len(patients), (high - low).Round(time.Millisecond))
	if high-low > 500*time.Millisecond {
		c.Verdict, c.Hint = Warn, "let chrony or ntpd discipline every node"
	}
	return c
}
