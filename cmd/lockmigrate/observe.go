package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/glob"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/overlaps"
)

// observeFlags are the flags of observe.
type observeFlags struct {
	window   time.Duration
	follow   bool
	profile  string
	holds    string
	from     string
	pcap     string
	port     uint16
	listen   []string
	group    string
	lease    time.Duration
	match    []string
	commands int64
	load     float64
	buffer   int64
	snapshot int
}

func newObserveCommand(env *environment) *cobra.Command {
	var flags observeFlags
	cmd := &cobra.Command{
		Use:   "observe [flags]",
		Short: "Watch live traffic: who locks what, and with which clock",
		RunE:  func(cmd *cobra.Command, _ []string) error { return runObserve(cmd.Context(), env, flags) },
	}
	cmd.AddCommand(newObserveMergeCommand(env), newObserveOverlapsCommand(env))
	f := cmd.Flags()
	f.DurationVar(&flags.window, "for", 10*time.Second, "watch for this `DURATION`")
	f.BoolVar(&flags.follow, "follow", false, "print every event as it happens")
	f.StringVar(&flags.profile, "profile", "", "write the measured fleet to `FILE`, for simulate --profile")
	f.StringVar(&flags.holds, "holds", "", "write the holds that --pcap or --listen saw to `FILE`, for observe overlaps")
	f.StringVar(&flags.from, "from", "", "read a recorded MONITOR `FILE` instead of a server (- for stdin)")
	f.StringVar(&flags.pcap, "pcap", "", "read a capture `FILE` of tcpdump (pcap or pcapng) instead of a server (- for stdin)")
	f.Uint16Var(&flags.port, "pcap-port", 6379, "the server's `PORT` in the capture")
	f.StringArrayVar(&flags.listen, "listen", nil, "pass clients on from this `ADDRESS` (host:port or unix:PATH) to the server, and watch them; repeatable")
	f.StringVar(&flags.group, "group", "addr", "one row for each `addr`, host or name (CLIENT SETNAME)")
	f.DurationVar(&flags.lease, "lease", 0, "the lease of every legacy client, where it is known")
	f.StringArrayVar(&flags.match, "match", nil, "only keys of this glob `PATTERN`; repeatable")
	f.Int64Var(&flags.commands, "max-commands", 5_000_000, "stop after `N` commands of any kind")
	f.Float64Var(&flags.load, "max-load", 0.9, "stop when the server's main thread uses more than this `SHARE` of a core")
	f.Int64Var(&flags.buffer, "max-buffer", 8, "stop when the server holds more than this many `MIB` for us")
	f.IntVar(&flags.snapshot, "snapshot", 20_000, "read all keys at the start if there are no more than `N` (-1: never)")
	return cmd
}

// options checks the flags.
func (f observeFlags) options() (observe.Options, observe.Limits, error) {
	group, err := groupOf(f.group)
	o := observe.Options{Group: group, Lease: f.lease, Match: glob.Any(f.match)}
	if f.holds != "" {
		o.Holds = mostHolds
	}
	l := observe.Limits{For: f.window, Commands: f.commands, Buffer: f.buffer << 20, Load: f.load, Snapshot: f.snapshot}
	switch {
	case err != nil:
		return o, l, err
	case f.window <= 0:
		return o, l, usageError("give a duration such as 30s", "--for %v is no time", f.window)
	case f.window > 24*time.Hour:
		return o, l, usageError("MONITOR is not meant to stay; verify looks for longer at less cost", "--for %v is too long", f.window)
	case f.lease < 0:
		return o, l, usageError("give a duration such as 30s", "--lease %v is negative", f.lease)
	case f.commands <= 0:
		return o, l, usageError("give a number of commands", "--max-commands %d is none", f.commands)
	case slices.Contains(f.match, ""):
		return o, l, usageError("give a pattern such as 'lock:*'", "a --match pattern is empty")
	case f.holds != "" && f.pcap == "" && len(f.listen) == 0:
		return o, l, usageError("MONITOR shows all clients of a server: the report has their overlaps", "--holds is for --pcap and --listen")
	case f.load <= 0 || f.buffer <= 0:
		return o, l, usageError("give a share such as 0.9 and a number of MiB", "--max-load or --max-buffer is not above 0")
	}
	return o, l, nil
}

// groupOf reads --group.
func groupOf(name string) (observe.Group, error) {
	g := observe.Group(name)
	if g != observe.ByAddr && g != observe.ByHost && g != observe.ByName {
		return g, usageError(oneOf(name, []string{"addr", "host", "name"}), "--group %q is none", name)
	}
	return g, nil
}

func runObserve(ctx context.Context, env *environment, flags observeFlags) error {
	opts, limits, err := flags.options()
	if err == nil {
		err = writable(flags.profile, flags.holds)
	}
	if err != nil {
		return err
	}
	if flags.from != "" && flags.pcap != "" {
		return usageError("read one after the other", "--from and --pcap are two sources")
	}
	if len(flags.listen) == 0 && (flags.from != "" || flags.pcap != "") {
		return observeFile(ctx, env, flags, opts)
	}
	if len(flags.listen) > 0 {
		if err := flags.checkListening(); err != nil {
			return err
		}
		return observeListening(ctx, env, flags, opts, limits)
	}
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	env.note("observing %s for %v with MONITOR; a busy server will feel it", end, limits.For)
	opts.Emit = follow(env, flags.follow)
	masters, err := observe.StartMasters(ctx, end, opts, limits)
	if err != nil {
		return findings{}.verdict(err)
	}
	out := newObserveOutput(env, flags)
	ended := make(chan error, 1)
	go func() { ended <- masters.Wait() }()
	err = out.whileRunning(masters, ended, limits.For)
	found := findings{masters.Report(), masters.Profile(), masters.Cost(), masters.Holes(), nil}
	if printErr := out.final(found, err); printErr != nil {
		return printErr
	}
	return found.verdict(err)
}

func observeFile(ctx context.Context, env *environment, flags observeFlags, opts observe.Options) error {
	in := io.Reader(os.Stdin)
	if name := cmp.Or(flags.from, flags.pcap); name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return failedError("name a file that redis-cli monitor, or tcpdump, wrote", "%w", err)
		}
		defer file.Close()
		in = file
	}
	opts.Emit = follow(env, flags.follow)
	o := observe.New(opts)
	var err error
	var holes []string
	var held *overlaps.Seen
	if flags.pcap != "" {
		const how = "capture with: tcpdump -i any -s 0 -w FILE port 6379; another port is --pcap-port"
		var seen *observe.Captured
		if seen, err = observe.ReadCapture(ctx, in, flags.port, o, observe.Wire{}); seen == nil {
			return failedError(how, "%s: %w", flags.pcap, err)
		}
		if holes = seen.NotSeen(); seen.Commands == 0 && err == nil {
			return failedError(how, "%s: %d packets, %d connections to port %d, no command that was answered; %s",
				flags.pcap, seen.Packets, seen.Connections, flags.port, strings.Join(append(holes, "nothing else is wrong")[:max(1, len(holes))], "; "))
		}
		if flags.holds != "" {
			held = &seen.Holds
		}
	} else if err = observe.ReadFile(ctx, in, o); o.Commands() == 0 && err == nil {
		return failedError("record with: redis-cli monitor > FILE", "%s holds no line of MONITOR", flags.from)
	}
	found := findings{o.Report(), o.Profile(), observe.Cost{Commands: o.Commands()}, holes, held}
	if printErr := newObserveOutput(env, flags).final(found, err); printErr != nil {
		return printErr
	}
	return found.verdict(err)
}

// follow prints events as they happen, if that is wanted. It is safe for concurrent use.
func follow(env *environment, wanted bool) func(observe.EventRow) {
	if !wanted {
		return nil
	}
	var mu sync.Mutex
	return func(e observe.EventRow) {
		mu.Lock()
		defer mu.Unlock()
		if env.global.json {
			_ = json.NewEncoder(env.stdout).Encode(map[string]any{"event": e})
			return
		}
		fmt.Fprintln(env.stdout, eventLine(e))
	}
}
