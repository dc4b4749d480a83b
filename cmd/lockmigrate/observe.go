package main

import (
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// observeFlags are the flags of observe.
type observeFlags struct {
	opts    observe.Options
	limits  observe.Limits
	match   []string
	profile string
	from    string
	pcap    string
	port    uint16 // in the capture
	listen  []string
}

func newObserveCommand(env *environment) *cobra.Command {
	flags := observeFlags{opts: observe.Options{Group: observe.ByAddr}, limits: observe.Limits{Commands: 5_000_000}, port: 6379}
	cmd := &cobra.Command{
		Use:   "observe [flags]",
		Short: "Watch live traffic: who locks what, and with which clock",
		RunE:  func(cmd *cobra.Command, _ []string) error { return runObserve(cmd.Context(), env, flags) },
	}
	f := cmd.Flags()
	f.DurationVar(&flags.limits.For, "for", 10*time.Second, "watch for this `DURATION`")
	f.StringVar(&flags.profile, "profile", "", "write the measured fleet to `FILE`, for forecast, next and stage init")
	f.StringVar(&flags.from, "from", "", "read a recorded MONITOR `FILE` instead of a server (- for stdin)")
	f.StringVar(&flags.pcap, "pcap", "", "read a capture `FILE` of tcpdump (pcap or pcapng) instead of a server (- for stdin); 7000=FILE where the server's port is not 6379")
	f.StringArrayVar(&flags.listen, "listen", nil, "pass clients on from this `ADDRESS` (host:port or unix:PATH) to the server, and watch them; repeatable")
	choose(cmd, &flags.opts.Group, "group", "one row for each `addr`, host or name (CLIENT SETNAME)", observe.ByAddr, observe.ByHost, observe.ByName)
	f.DurationVar(&flags.opts.Lease, "lease", 0, "the lease of every legacy client, where it is known")
	f.StringArrayVar(&flags.match, "match", nil, "only keys of this glob `PATTERN`; repeatable")
	f.Float64Var(&flags.limits.Load, "max-load", 0.9, "stop when the server's main thread uses more than this `SHARE` of a core")
	return cmd
}

// check refuses what cannot be meant, and completes the options.
func (f *observeFlags) check() error {
	l := &f.limits
	switch {
	case l.For <= 0:
		return usageError("give a duration such as 30s", "--for %v must be positive", l.For)
	case l.For > 24*time.Hour:
		return usageError("MONITOR is not meant to stay; verify looks for longer at less cost", "--for %v is too long", l.For)
	case l.Load <= 0:
		return usageError("give a share such as 0.9", "--max-load is not above 0")
	case f.from != "" && f.pcap != "", len(f.listen) > 0 && f.from+f.pcap != "":
		return usageError("choose one", "--listen, --from and --pcap are different sources")
	}
	if port, file, found := strings.Cut(f.pcap, "="); found {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			f.port, f.pcap = uint16(n), file
		}
	}
	for _, address := range f.listen {
		if _, _, err := net.SplitHostPort(address); err != nil && !strings.HasPrefix(address, "unix:/") {
			return usageError("write it like 127.0.0.1:6380 or unix:/run/watch.sock", "--listen %q names no address", address)
		}
	}
	f.opts.Match = servers.Matcher(f.match)
	return nil
}

func runObserve(ctx context.Context, env *environment, flags observeFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	if err := writable(flags.profile); err != nil {
		return err
	}
	if flags.from != "" || flags.pcap != "" {
		return observeFile(ctx, env, flags)
	}
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	if len(flags.listen) > 0 {
		return observeListening(ctx, env, end, flags)
	}
	env.note("observing %s for %v with MONITOR; a busy server will feel it", end, flags.limits.For)
	masters, err := observe.StartMasters(ctx, end, flags.opts, flags.limits)
	if err != nil {
		return findings{}.verdict(err)
	}
	out := &observeOutput{env: env, flags: flags}
	ended := make(chan error, 1)
	go func() { ended <- masters.Wait() }()
	err = out.whileRunning(masters, ended, flags.limits.For)
	found := findings{Report: masters.Report(), profile: masters.Profile(), Cost: masters.Cost(), Holes: masters.Holes()}
	return cmp.Or(out.final(found, err), found.verdict(err))
}

func observeFile(ctx context.Context, env *environment, flags observeFlags) error {
	var err error
	file := os.Stdin
	if name := cmp.Or(flags.from, flags.pcap); name != "-" {
		if file, err = os.Open(name); err != nil {
			return failedError("name a file that redis-cli monitor, or tcpdump, wrote", "%w", err)
		}
		defer file.Close()
	}
	in := &progress{Reader: file, status: env.status(), began: time.Now()}
	defer in.status.Clear()
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		in.size = info.Size()
	}
	o := observe.New(flags.opts)
	var holes []string
	if flags.pcap != "" {
		const how = "capture with: tcpdump -i any -s 0 -B 65536 -w FILE port 6379; another port: --pcap PORT=FILE"
		var seen *traffic.Captured
		if seen, err = traffic.ReadCapture(ctx, in, flags.port, o.Keys, o.Take); seen == nil {
			return failedError(how, "%s: %w", flags.pcap, err)
		}
		if holes = seen.NotSeen(); seen.Commands == 0 && err == nil {
			return failedError(how, "%s: %d packets, %d connections to port %d, no command that was answered; %s",
				flags.pcap, seen.Packets, seen.Connections, flags.port, strings.Join(append(holes, "nothing else is wrong")[:max(1, len(holes))], "; "))
		}
	} else if err = traffic.ReadFile(ctx, in, o.Take, o.Garbled); o.Commands() == 0 && err == nil {
		return failedError("record with: redis-cli monitor > FILE", "%s holds no line of MONITOR", flags.from)
	}
	o.Finish()
	found := findings{Report: o.Report(), profile: o.Profile(), Cost: observe.Cost{Commands: o.Commands()}, Holes: holes}
	return cmp.Or((&observeOutput{env: env, flags: flags}).final(found, err), found.verdict(err))
}

// progress is a file that says on a terminal how much of it was read, and how long the rest takes.
type progress struct {
	io.Reader
	status     *statusLine
	began      time.Time
	read, size int64 // size is 0 where it is not known: a pipe has none
}

func (p *progress) Read(data []byte) (n int, err error) {
	n, err = p.Reader.Read(data)
	p.read += int64(n)
	rest := ""
	if p.size > 0 {
		rest = " " + bar(float64(p.read)/float64(p.size)) + timeLeft(time.Since(p.began), int(p.read), int(p.size))
	}
	p.status.Update("observe: %.1f MiB read%s", float64(p.read)/(1<<20), rest)
	return n, err
}
