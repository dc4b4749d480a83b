package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
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
	return b.String()
}

func (s *Scenario) formatServer(b *strings.Builder) {
	server := s.Fleet.Server
	if s.Fleet.Plan != nil { // it has its failovers among its faults
		server = Server{Offset: server.Offset, DriftPPM: server.DriftPPM}
	}
	if line := format(serverFields(&server)); line != "" {
		fmt.Fprintf(b, "server%s\n", line)
	}
}

func (s *Scenario) formatNetwork(b *strings.Builder) {
	n := &s.Fleet.Network
	switch {
	case s.Fleet.Plan == nil:
		fmt.Fprintf(b, "network request=%s reply=%s timeout=%v%s\n", text(n.Request), text(n.Reply), n.Timeout, format(losses(n)))
	case n.Timeout != time.Second:
		fmt.Fprintf(b, "network timeout=%v\n", n.Timeout)
	}
}

func (s *Scenario) formatClient(b *strings.Builder, c *Client) {
	ttl := "ttl"
	if c.Scheme.Old() {
		ttl = "lease"
	}
	fmt.Fprintf(b, "client %s %s %s=%v poll=%v", c.Name, c.Scheme, ttl, c.Lease, c.Poll)
	if c.Dialect != protocol.JedisMS {
		fmt.Fprintf(b, " dialect=%s", c.Dialect.Name)
	}
	if c.Patience != time.Hour {
		fmt.Fprintf(b, " patience=%v", c.Patience)
	}
	if c.Member.Release != usualRelease(c) {
		fmt.Fprintf(b, " release=%s", protocol.Releases[c.Member.Release])
	}
	b.WriteString(format(lasting(c)))
	if c.Member.Fence != "" {
		b.WriteString(" fence")
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
		b.WriteString(format(habits(c)))
	}
	fmt.Fprintln(b)
}

func (s *Scenario) formatPlan(b *strings.Builder, p *Plan) {
	fmt.Fprintf(b, "latency %v\n", p.Latency)
	for _, t := range p.Turns {
		fmt.Fprintf(b, "turn %s at %v holds %v", s.Fleet.Name(t.Client), time.Duration(t.At), t.Hold)
		if t.Key != "" {
			fmt.Fprintf(b, " on %s", t.Key)
		}
		fmt.Fprintln(b)
	}
	for _, d := range p.Delays {
		fmt.Fprintf(b, "command %d of %s request=%v reply=%v", d.Nth, s.Fleet.Name(d.Client), d.Request, d.Reply)
		if d.Fate != Arrives {
			fmt.Fprintf(b, " %s", d.Fate)
		}
		fmt.Fprintln(b)
	}
}

func (s *Scenario) formatFault(b *strings.Builder, f Fault) {
	fmt.Fprintf(b, "at %v %s %s", time.Duration(f.At), s.Fleet.Name(f.Client), faultKinds[f.Kind].verb)
	switch {
	case f.Kind == DriftClock:
		fmt.Fprintf(b, " %dppm", int64(f.By))
	case f.By != 0:
		fmt.Fprintf(b, " %v", f.By)
	}
	fmt.Fprintln(b)
}

// usualRelease is how a client releases where its line does not say.
func usualRelease(c *Client) protocol.Release {
	if c.Scheme == model.GoLegacy {
		return protocol.ReleaseCompare
	}
	return c.Dialect.Release
}
