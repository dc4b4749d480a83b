package explore

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// The claims are written in ticks of this length: longer than the unit of the values, so that the one
// unit that writers add to an expiry makes a lease of n ticks end before tick n+1.
const standardTick = 10 * time.Millisecond

const key = "k"

// option changes a client of a claim.
type option func(*Client)

func legacyClient(name string, options ...option) Client {
	return client(model.Legacy, name, options)
}
func bridgeClient(name string, options ...option) Client {
	return client(model.Bridge, name, options)
}
func modernClient(name string, options ...option) Client {
	return client(model.Modern, name, options)
}

func behindSidecar(name string, options ...option) Client {
	return client(model.Sidecar, name, append([]option{behind("s" + name)}, options...))
}

func client(scheme model.Scheme, name string, options []option) Client {
	c := Client{
		Member: model.Member{
			Name: name, Scheme: scheme, Dialect: protocol.JedisMS, Key: key, Owner: owner(name),
			Lease: 3 * standardTick, Poll: standardTick, Patience: time.Hour,
		},
		Turns: 1,
	}
	for _, o := range options {
		o(&c)
	}
	return c
}

// owner is a UUID for dialects that want one.
func owner(name string) string { return "0000000" + name[:1] + "-0000-4000-8000-000000000000" }

func lease(n Ticks) option     { return func(c *Client) { c.Lease = ticks(n) } }
func ahead(n Ticks) option     { return func(c *Client) { c.Ahead = n } }
func delay(n Ticks) option     { return func(c *Client) { c.Delay = n } }
func overrun(n Ticks) option   { return func(c *Client) { c.Overrun = n } }
func early(n Ticks) option     { return func(c *Client) { c.Overrun = -n } }
func grace(n Ticks) option     { return func(c *Client) { c.Grace = ticks(n) } }
func settle(n Ticks) option    { return func(c *Client) { c.Settle = ticks(n) } }
func renew(n Ticks) option     { return func(c *Client) { c.Renew = ticks(n) } }
func behind(s string) option   { return func(c *Client) { c.Behind = s } }
func host(n Ticks) option      { return func(c *Client) { c.Host = ticks(n) } }
func turns(n int) option       { return func(c *Client) { c.Turns = n } }
func putBacks(n int) option    { return func(c *Client) { c.PutBacks = n } }
func replyLate(n Ticks) option { return func(c *Client) { c.ReplyLate = n } }
func claimed(n Ticks) option   { return func(c *Client) { c.Claim = ticks(n) } }
func share(n Ticks) option     { return func(c *Client) { c.Share = ticks(n) } }
func yields(n Ticks) option    { return func(c *Client) { c.Yield = ticks(n) } }
func asksIn(n Ticks) option    { return func(c *Client) { c.MaxSleep = ticks(n) } }
func from(n Ticks) option      { return func(c *Client) { c.From = n } }
func stepBy(n Ticks) option    { return func(c *Client) { c.StepBy = n } }

// member gives the client a lease in its namespace, until the end of a tick.
func member(n Ticks) option { return func(c *Client) { c.NotAfter = Epoch.Add(ticks(n)) } }

func delayOf(op protocol.Op, n Ticks) option {
	return func(c *Client) { c.DelayOf = append(c.DelayOf, Delay{op, n}) }
}
func dialect(d *protocol.Dialect) option {
	return func(c *Client) { c.Dialect, c.Member.Release = d, d.Release }
}
func release(r protocol.Release) option { return func(c *Client) { c.Member.Release = r } }

func crash(c *Client)    { c.Crash = true }
func dies(c *Client)     { c.DiesInLine = true }
func cancel(c *Client)   { c.Cancels = true }
func restless(c *Client) { c.Restless = true }
func staleDel(c *Client) { c.StaleDel = true }
func noGuard(c *Client)  { c.NoGuard = true }
func punctual(c *Client) { c.Punctual = true }

// once makes a client give up after one attempt.
func once(c *Client)       { c.Patience = 0 }
func oldStage(c *Client)   { c.OldStage = true }
func truthful(c *Client)   { c.Truthful = true }
func plain(c *Client)      { c.Plain = true }
func twice(c *Client)      { c.Twice = true }
func redisson(c *Client)   { c.Redisson = true }
func queue(c *Client)      { c.Queue = true }
func held(c *Client)       { c.Held = true }
func polls(c *Client)      { c.Polls = true }
func fenced(c *Client)     { c.Member.Fence = protocol.FenceKey(key) }
func goLegacy(c *Client)   { c.Scheme = model.GoLegacy }
func fromReply(c *Client)  { c.FromReply = true }
func noDeadline(c *Client) { c.NoDeadline = true }

func ticks(n Ticks) time.Duration { return time.Duration(n) * standardTick }

// world puts clients together. The horizon leaves everybody time for a turn.
func world(horizon Ticks, clients ...Client) *Model {
	return &Model{Clients: clients, Tick: standardTick, Horizon: horizon}
}

// leftBehind opens with the value of a holder that crashed: its lease was over n ticks ago.
func (m *Model) leftBehind(n Ticks) *Model {
	c := &m.Clients[0]
	value, _ := c.Dialect.Expiry(Epoch.Add(-time.Duration(n)*m.Tick-c.Lease), c.Lease, owner("f"))
	m.Opening = []model.Entry{{Key: key, Value: value}}
	return m
}

// only restricts the property to pairs of schemes.
func (m *Model) only(pairs ...Pair) *Model {
	m.Property.Pairs = pairs
	return m
}

// tolerating lets overlaps last for n ticks, and counts only those that a client of a scheme begins.
func (m *Model) tolerating(n Ticks, intruder model.Scheme) *Model {
	m.Property.Tolerate, m.Property.Intruder = n, intruder
	return m
}

func (m *Model) fencing() *Model {
	m.Property.Fencing = true
	return m
}

func (m *Model) messages() *Model {
	m.Messages = true
	return m
}

func (m *Model) overheard() *Model {
	m.Messages, m.Overheard = true, true
	return m
}

// gone demands that a member's locks end with its lease.
func (m *Model) gone() *Model {
	m.Property.Gone = true
	return m
}

// idle bounds the time in which somebody waits and nobody is inside.
func (m *Model) idle(n Ticks) *Model {
	m.Property.Idle = n
	return m
}

func (m *Model) silences(n int) *Model {
	m.Silences = n
	return m
}

func (m *Model) failovers(n int) *Model {
	m.Failovers = n
	return m
}

var (
	legacyLegacy = Pair{model.Legacy, model.Legacy}
	legacyBridge = Pair{model.Legacy, model.Bridge}
	bridgeBridge = Pair{model.Bridge, model.Bridge}
	bridgeModern = Pair{model.Bridge, model.Modern}
)
