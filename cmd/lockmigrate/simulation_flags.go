package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// fleetFlags describe the fleet of a cell; simulate and replay share them.
type fleetFlags struct {
	clients, polls, leases          int
	dialect                         string
	drift                           int64
	latency                         time.Duration
	lose, overrun                   float64
	pauseEvery, pause               time.Duration
	crashEvery, stepEvery, stepsize time.Duration
	queue                           bool
	failovers                       failoverFlags
	remembered                      bool // the failovers are those of the profile, where it has some
}

// failoverFlags say how often a replica takes a master's place; simulate, replay and forecast share them.
type failoverFlags struct{ every, outage, behind time.Duration }

func (f *fleetFlags) add(flags *pflag.FlagSet) {
	standard := sim.StandardSetting()
	flags.IntVar(&f.clients, "clients", standard.Clients, "how many clients want the lock")
	flags.StringVar(&f.dialect, "dialect", standard.Dialect.Name, "the old clients' `DIALECT`")
	flags.IntVar(&f.polls, "polls", standard.Polls, "attempts within one lease")
	flags.IntVar(&f.leases, "leases-per-run", standard.Leases, "how many leases a run lasts")
	flags.Int64Var(&f.drift, "drift", 0, "clocks drift by this many `PPM`, half of them the other way")
	mayBeNegative(flags, "drift")
	flags.DurationVar(&f.latency, "latency", 150*time.Microsecond, "median delay of the network, one way")
	flags.Float64Var(&f.lose, "lose", 0, "chance that a command or its reply is lost, or a command arrives twice: 0.01 is one in a hundred")
	flags.Float64Var(&f.overrun, "overrun", 0, "chance that work takes up to two leases more")
	flags.DurationVar(&f.pauseEvery, "pause-every", 0, "a client is paused about this often")
	flags.DurationVar(&f.pause, "pause", 0, "how long a pause lasts at most")
	flags.DurationVar(&f.crashEvery, "crash-every", 0, "a client crashes, and restarts, about this often")
	flags.DurationVar(&f.stepEvery, "step-every", 0, "a clock is stepped about this often")
	flags.DurationVar(&f.stepsize, "step", 0, "by how much a clock is stepped at most, either way")
	f.failovers.add(flags)
	flags.BoolVar(&f.queue, "queue", false, "modern clients wait in the server's queue")
}

// ofProfile are the flags that only a fleet with a profile has: a lock on one server promises nothing across a failover.
var ofProfile = []string{"failover-every", "outage", "replica-behind"}

// The failovers that are taken where only --failover-every is given.
const (
	usualOutage = 5 * time.Second
	usualBehind = 100 * time.Millisecond
)

func (f *failoverFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&f.every, "failover-every", 0, "of a profile's fleet: a replica takes each master's place about this often (0: never; else as the profile's masters remember)")
	flags.DurationVar(&f.outage, "outage", usualOutage, "with --failover-every: about how long nobody answers")
	flags.DurationVar(&f.behind, "replica-behind", usualBehind, "with --failover-every: by how much the replica is behind at most; what it lacks is lost")
}

// check takes known for true where a profile says how often they come.
func (f *failoverFlags) check(known bool) error {
	switch {
	case f.every > 0 && f.every < 2*(2*f.outage+f.behind):
		return usageError("give a longer time between two failovers", "--failover-every %v is too short beside --outage %v and --replica-behind %v", f.every, f.outage, f.behind)
	case f.every == 0 && !known && *f != failoverFlags{outage: usualOutage, behind: usualBehind}:
		return usageError("give --failover-every too", "--outage and --replica-behind have no part in a fleet without failovers")
	}
	return nil
}

// remember takes what a profile's masters remember, where the command line says nothing of failovers.
func (f *fleetFlags) remember(env *environment, seen *profile.Failovers) error {
	every := seen.Every()
	if !f.remembered || every == 0 {
		return f.failovers.check(false)
	}
	said := fmt.Sprintf("the masters remember %d in %s", seen.Seen, forecast.Hours(seen.Seconds/3600))
	with := f.failovers
	if with.every = every.Round(time.Second); with.check(true) != nil {
		env.note("failovers are left out: %s, which is too often for an outage of %v; --failover-every says how often they come", said, with.outage)
		return f.failovers.check(true)
	}
	env.note("with failovers: %s; --failover-every 0 leaves them out", said)
	f.failovers = with
	return nil
}

// server is a server that fails so.
func (f *failoverFlags) server() sim.Server {
	if f.every == 0 {
		return sim.Server{}
	}
	return sim.Server{FailoverEvery: about(f.every), Outage: about(f.outage), Behind: sim.Uniform(0, f.behind)}
}

// about is a time that is drawn each time again.
func about(d time.Duration) sim.Distribution {
	if d == 0 {
		return nil
	}
	return sim.Uniform(d/2, d*3/2)
}

// setting checks the flags and makes the cells' common setting.
func (f *fleetFlags) setting() (*sim.Setting, error) {
	s := sim.StandardSetting()
	d, err := protocol.DialectNamed(f.dialect)
	switch {
	case err != nil:
		return nil, usageError(oneOf(dialectNames()), "--dialect: %v", err)
	case f.clients < 1 || f.clients > 200:
		return nil, usageError("give 1 to 200", "--clients %d", f.clients)
	case f.polls < 1 || f.leases < 1:
		return nil, usageError("give at least 1", "--polls %d, --leases-per-run %d", f.polls, f.leases)
	case f.lose > 1 || f.overrun > 1:
		return nil, usageError("give a chance from 0 to 1", "--lose %g, --overrun %g", f.lose, f.overrun)
	}
	s.Clients, s.Dialect, s.Polls, s.Leases, s.DriftPPM, s.Queue = f.clients, d, f.polls, f.leases, f.drift, f.queue
	s.Network.Request = sim.Spread(f.latency/3, f.latency, 7*f.latency, 33*f.latency)
	s.Network.Reply = s.Network.Request
	s.Network.LoseRequest = sim.PPM(f.lose * 1e6)
	s.Network.LoseReply, s.Network.Repeat = s.Network.LoseRequest, s.Network.LoseRequest
	s.Overrun = sim.PPM(f.overrun * 1e6)
	s.Chaos = sim.Chaos{
		PauseEvery: about(f.pauseEvery), Pause: sim.Uniform(0, f.pause),
		CrashEvery: about(f.crashEvery), Restart: sim.Uniform(time.Millisecond, time.Second),
		StepEvery: about(f.stepEvery), Step: sim.Uniform(-f.stepsize, f.stepsize),
	}
	s.Faults = f.line()
	return s, nil
}

// line writes the flags that replay needs to make the same fleet.
func (f *fleetFlags) line() string {
	var b strings.Builder
	for _, d := range []struct {
		name string
		d    time.Duration
		not  time.Duration
	}{{"latency", f.latency, 150 * time.Microsecond}, {"pause-every", f.pauseEvery, 0}, {"pause", f.pause, 0},
		{"crash-every", f.crashEvery, 0}, {"step-every", f.stepEvery, 0}, {"step", f.stepsize, 0},
		{"failover-every", f.failovers.every, 0}, {"outage", f.failovers.outage, usualOutage}, {"replica-behind", f.failovers.behind, usualBehind}} {
		if d.d != d.not {
			fmt.Fprintf(&b, " --%s %v", d.name, d.d)
		}
	}
	if f.lose > 0 {
		fmt.Fprintf(&b, " --lose %g", f.lose)
	}
	if f.overrun > 0 {
		fmt.Fprintf(&b, " --overrun %g", f.overrun)
	}
	if f.queue {
		b.WriteString(" --queue")
	}
	return b.String()
}

// axis is the value of a flag that takes FROM:TO:STEP, or a single duration.
type axis []time.Duration

// String implements pflag.Value, as do the methods below.
func (a *axis) String() string {
	switch n := len(*a); n {
	case 0:
		return ""
	case 1:
		return (*a)[0].String()
	default:
		return fmt.Sprintf("%v:%v:%v", (*a)[0], (*a)[n-1], (*a)[1]-(*a)[0])
	}
}

// Type is a string's: help shows the default in quotes.
func (a *axis) Type() string { return "string" }

// Set reads the value.
func (a *axis) Set(text string) error {
	var values []time.Duration
	for part := range strings.SplitSeq(text, ":") {
		d, err := time.ParseDuration(part)
		if err != nil {
			return err
		}
		values = append(values, d)
	}
	switch {
	case len(values) == 3 && values[2] > 0 && values[0] <= values[1] && (values[1]-values[0])/values[2] < 1000:
		values = sim.Range(values[0], values[1], values[2])
	case len(values) != 1:
		return errors.New("these are no steps") // hint says what there may be
	}
	*a = values
	return nil
}

func (a *axis) hint(string) string {
	return "write FROM:TO:STEP such as -10s:10s:1s, with at most 1,000 steps"
}
