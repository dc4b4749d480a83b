package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/session"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Format writes a scenario so that Parse reads the same one.
func (s *Scenario) Format() string {
	var b strings.Builder
	for _, line := range s.Purpose {
		fmt.Fprintln(&b, strings.TrimRight("# "+line, " "))
	}
	fmt.Fprintf(&b, "run %v\n", s.Fleet.Until)
	if s.Fleet.Plan == nil {
		fmt.Fprintf(&b, "seed %d\n", s.Seed)
		if s.Seeds > 1 {
			fmt.Fprintf(&b, "seeds %d\n", s.Seeds)
		}
	}
	if s.Fleet.Masters > 0 {
		fmt.Fprintf(&b, "masters %d\n", s.Fleet.Masters)
	}
	if s.Fleet.Stop {
		fmt.Fprintln(&b, "stop")
	}
	s.formatNetwork(&b)
	s.formatServer(&b)
	for i := range s.Fleet.Clients {
		s.formatClient(&b, &s.Fleet.Clients[i])
	}
	for _, e := range s.Fleet.Opening {
		fmt.Fprintf(&b, "opening %s %s\n", e.Key, e.Value)
	}
	if p := s.Fleet.Plan; p != nil {
		s.formatPlan(&b, p)
	}
	for _, f := range s.Fleet.Faults {
		s.formatFault(&b, f)
	}
	for _, e := range s.Expect {
		fmt.Fprintf(&b, "expect %s\n", e)
	}
	if s.HasTrace {
		fmt.Fprintln(&b, rule)
		for _, line := range s.Trace {
			fmt.Fprintln(&b, line)
		}
	}
	return b.String()
}

func (s *Scenario) formatServer(b *strings.Builder) {
	server := &s.Fleet.Server
	fails := len(server.FailoverEvery) > 0 && s.Fleet.Plan == nil // a plan has its failovers among its faults
	if server.Offset == 0 && server.DriftPPM == 0 && !fails {
		return
	}
	fmt.Fprintf(b, "server ahead=%v drift=%dppm", server.Offset, server.DriftPPM)
	if fails {
		fmt.Fprintf(b, " fails-over-every=%s outage=%s behind=%s", text(server.FailoverEvery), text(server.Outage), text(server.Behind))
	}
	fmt.Fprintln(b)
}

func (s *Scenario) formatNetwork(b *strings.Builder) {
	n := &s.Fleet.Network
	if s.Fleet.Plan != nil {
		if n.Timeout != time.Second {
			fmt.Fprintf(b, "network timeout=%v\n", n.Timeout)
		}
		return
	}
	fmt.Fprintf(b, "network request=%s reply=%s timeout=%v", text(n.Request), text(n.Reply), n.Timeout)
	for _, c := range []struct {
		name string
		p    sim.PPM
	}{{"lose-request", n.LoseRequest}, {"lose-reply", n.LoseReply}, {"repeat", n.Repeat}, {"repeat-reply", n.RepeatReply}, {"lose-message", n.LoseMessage}} {
		if c.p > 0 {
			fmt.Fprintf(b, " %s=%g%%", c.name, float64(c.p)/1e4)
		}
	}
	fmt.Fprintln(b)
}

func (s *Scenario) formatClient(b *strings.Builder, c *sim.Client) {
	ttl := "ttl"
	if c.Scheme.Old() {
		ttl = "lease"
	}
	fmt.Fprintf(b, "client %s %s %s=%v poll=%v", c.Name, c.Scheme, ttl, c.Lease, c.Poll)
	if c.Dialect != protocol.JedisMS {
		fmt.Fprintf(b, " dialect=%s", c.Dialect.Name)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"ahead", c.Offset}, {"renew", c.Renew}, {"grace", c.Grace}, {"settle", c.Settle},
		{"claim", c.Claim}, {"max-sleep", c.MaxSleep}, {"share", c.Share}, {"yield", c.Yield}} {
		if d.d != 0 {
			fmt.Fprintf(b, " %s=%v", d.name, d.d)
		}
	}
	if c.Patience != time.Hour {
		fmt.Fprintf(b, " patience=%v", c.Patience)
	}
	if c.DriftPPM != 0 {
		fmt.Fprintf(b, " drift=%dppm", c.DriftPPM)
	}
	if usual := usualRelease(c); c.Member.Release != usual {
		fmt.Fprintf(b, " release=%s", releaseNames[c.Member.Release])
	}
	if c.PutBacks > 0 {
		fmt.Fprintf(b, " put-backs=%d", c.PutBacks)
	}
	for _, f := range []struct {
		name string
		on   bool
	}{{"no-guard", c.NoGuard}, {"truthful", c.Truthful}, {"no-deadline", c.NoDeadline}, {"from-reply", c.FromReply},
		{"plain", c.Plain}, {"queue", c.Queue}, {"tracks", c.Tracks}, {"fence", c.Member.Fence != ""}} {
		if f.on {
			fmt.Fprintf(b, " %s", f.name)
		}
	}
	if c.Key != "orders" && len(c.Keys) == 0 {
		fmt.Fprintf(b, " key=%s", c.Key)
	}
	for _, set := range c.Keys {
		fmt.Fprintf(b, " keys=%s*%d", set.Prefix, set.Count)
		if set.Weight != 0 {
			fmt.Fprintf(b, "@%d", set.Weight)
		}
	}
	if s.Fleet.Plan == nil {
		formatHabits(b, c)
	}
	fmt.Fprintln(b)
}

func formatHabits(b *strings.Builder, c *sim.Client) {
	for _, d := range []struct {
		name string
		d    sim.Distribution
	}{{"hold", c.Hold}, {"think", c.Think}, {"first", c.First}, {"overrun-by", c.OverBy},
		{"pause-every", c.Chaos.PauseEvery}, {"pause", c.Chaos.Pause}, {"crash-every", c.Chaos.CrashEvery},
		{"restart", c.Chaos.Restart}, {"step-every", c.Chaos.StepEvery}, {"step", c.Chaos.Step}} {
		if len(d.d) > 0 {
			fmt.Fprintf(b, " %s=%s", d.name, text(d.d))
		}
	}
	if c.Overrun > 0 {
		fmt.Fprintf(b, " overrun=%g%%", float64(c.Overrun)/1e4)
	}
	if c.Turns > 0 {
		fmt.Fprintf(b, " turns=%d", c.Turns)
	}
}

func (s *Scenario) formatPlan(b *strings.Builder, p *sim.Plan) {
	fmt.Fprintf(b, "latency %v\n", p.Latency)
	for _, t := range p.Turns {
		fmt.Fprintf(b, "turn %s at %v holds %v", s.name(t.Client), time.Duration(t.At), t.Hold)
		if t.Key != "" {
			fmt.Fprintf(b, " on %s", t.Key)
		}
		fmt.Fprintln(b)
	}
	for _, d := range p.Delays {
		fmt.Fprintf(b, "command %d of %s request=%v reply=%v", d.Nth, s.name(d.Client), d.Request, d.Reply)
		if d.Fate != sim.Arrives {
			fmt.Fprintf(b, " %s", d.Fate)
		}
		fmt.Fprintln(b)
	}
}

func (s *Scenario) formatFault(b *strings.Builder, f sim.Fault) {
	fmt.Fprintf(b, "at %v %s %s", time.Duration(f.At), s.name(f.Client), verbs[f.Kind])
	switch {
	case f.Kind == sim.DriftClock:
		fmt.Fprintf(b, " %dppm", int64(f.By))
	case f.By != 0:
		fmt.Fprintf(b, " %v", f.By)
	}
	fmt.Fprintln(b)
}

func (s *Scenario) name(client int) string {
	if client < 0 {
		return "server"
	}
	return s.Fleet.Clients[client].Name
}

func usualRelease(c *sim.Client) protocol.Release {
	if c.Scheme == session.GoLegacy {
		return protocol.ReleaseCompare
	}
	if c.Scheme == session.Legacy || c.Scheme == session.Sidecar {
		return c.Dialect.Release
	}
	return c.Member.Release
}

// text writes a distribution as the language has it.
func text(d sim.Distribution) string {
	switch {
	case len(d) == 0:
		return "0s"
	case len(d) == 1:
		return d[0].Value.String()
	case len(d) == 2 && d[0].Permyriad == 0 && d[1].Permyriad == 10000:
		return d[0].Value.String() + ".." + d[1].Value.String()
	}
	usual := len(d) == 4 && d[0].Permyriad == 0 && d[1].Permyriad == 5000 && d[2].Permyriad == 9900 && d[3].Permyriad == 10000
	parts := make([]string, len(d))
	for i := range d {
		if parts[i] = d[i].Value.String(); !usual {
			parts[i] = fmt.Sprintf("%g%%:%v", float64(d[i].Permyriad)/100, d[i].Value)
		}
	}
	return strings.Join(parts, "/")
}
