package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/fence"
	"github.com/lockmigrate/lockmigrate/internal/terminal"
)

// fenceFlags are the flags of fence.
type fenceFlags struct {
	opts    fence.Options
	execute bool
	watch   time.Duration
}

func newFenceCommand(env *environment) *cobra.Command {
	var flags fenceFlags
	cmd := &cobra.Command{
		Use:   "fence --user NAME [flags]",
		Short: "Make a forgotten legacy client fail loudly, by ACL rules",
		Long: `fence denies SETNX and GETSET to the users that legacy clients authenticate as. Without
--execute it prints the rules and what the server says about them today (ACL DRYRUN), and
changes nothing. --remove takes the fence away. --watch shows who runs into it, from ACL LOG.

What a fence cannot do: a fenced client can still DEL, so one that held a lock before may
delete whatever is on the key. Clients that lock by SET NX alone are not stopped. ACL rules
are not replicated: a replica that becomes master has its own. They are gone after a
restart unless they are saved there with ACL SAVE or CONFIG REWRITE.`,
		Example: `  lockmigrate fence --user default --lock lock:orders --keep 'cache:*'
  lockmigrate fence --user default --lock lock:orders --keep 'cache:*' --execute
  lockmigrate fence --watch 1h
  lockmigrate fence --user default --remove --execute`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runFence(cmd.Context(), env, flags) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&flags.opts.Users, "user", nil, "`NAME` of a user that legacy clients authenticate as; repeatable")
	f.StringVar(&flags.opts.Lock, "lock", "lock:example", "a lock `KEY` to try the rules on")
	f.StringArrayVar(&flags.opts.Keep, "keep", nil, "`PATTERN` of keys where SETNX and GETSET stay allowed (7.0 or later); repeatable")
	f.BoolVar(&flags.opts.Remove, "remove", false, "take the fence away")
	f.BoolVar(&flags.execute, "execute", false, "change the server's ACL")
	f.DurationVar(&flags.watch, "watch", 0, "show for this `DURATION` who runs into a fence")
	return cmd
}

func runFence(ctx context.Context, env *environment, flags fenceFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	conns, err := dialMasters(ctx, end)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range conns {
			_ = c.conn.Close()
		}
	}()
	if len(flags.opts.Users) > 0 {
		if err := planFence(ctx, env, conns, flags); err != nil || flags.watch == 0 {
			return err
		}
	} else if flags.watch == 0 {
		return usageError("name the users that legacy clients authenticate as with --user; connected are: "+connectedUsers(ctx, conns), "no user is named")
	}
	return watchFence(ctx, env, conns, flags.watch)
}

func (f fenceFlags) check() error {
	for _, p := range append(slices.Clone(f.opts.Keep), f.opts.Users...) {
		if p == "" || strings.ContainsAny(p, " ()\t\n") {
			return usageError("give a name or pattern without blanks and parentheses", "%q cannot stand in an ACL rule", p)
		}
	}
	if f.watch < 0 {
		return usageError("give a duration such as 10m", "--watch %v is negative", f.watch)
	}
	return nil
}

// master is a connection to one master.
type masterConn struct {
	addr string
	conn redis.Conn
}

func dialMasters(ctx context.Context, end *endpoint.Endpoint) ([]masterConn, error) {
	addrs, err := end.Masters(ctx)
	if err != nil {
		return nil, err
	}
	var conns []masterConn
	for _, addr := range addrs {
		conn, err := end.DialAddr(ctx, addr)
		if err != nil {
			for _, c := range conns {
				_ = c.conn.Close()
			}
			return nil, err
		}
		conns = append(conns, masterConn{addr, conn})
	}
	return conns, nil
}

func planFence(ctx context.Context, env *environment, conns []masterConn, flags fenceFlags) error {
	var all []fence.Plan
	for _, c := range conns {
		plans, err := fence.Make(ctx, c.conn, c.addr, flags.opts)
		if err != nil {
			return err
		}
		for i := range plans {
			if flags.execute {
				if err := plans[i].Execute(ctx, c.conn); err != nil {
					return err
				}
			}
		}
		all = append(all, plans...)
	}
	if env.global.json {
		out := json.NewEncoder(env.stdout)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"executed": flags.execute, "plans": all, "limits": fenceLimits})
	}
	var b strings.Builder
	for _, p := range all {
		fencePlanText(&b, p, flags.execute)
	}
	for _, l := range fenceLimits {
		fmt.Fprintf(&b, "note: %s\n", l)
	}
	if !flags.execute {
		b.WriteString("\nnothing was changed; --execute changes the ACL\n")
	}
	_, err := io.WriteString(env.stdout, b.String())
	return err
}

var fenceLimits = []string{
	"a fenced client can still DEL: what it held before, or whatever has come after it",
	"SET NX and WATCH/SET are not denied",
	"ACL rules are not replicated: put the fence up on the replicas too, or a failover takes it away",
	"ACL rules are lost at a restart: ACL SAVE (with an aclfile) or CONFIG REWRITE keeps them",
}

func fencePlanText(b *strings.Builder, p fence.Plan, executed bool) {
	fmt.Fprintf(b, "server %s, user %s\n  rules now  %s\n", p.Server, terminal.Quoted(p.User), terminal.Safe(p.Now))
	switch {
	case len(p.Command) == 0:
		fmt.Fprintf(b, "  nothing to do: %s\n", p.Note)
	case executed:
		fmt.Fprintf(b, "  executed   %s\n", terminal.Safe(quoteWords(p.Command)))
	default:
		fmt.Fprintf(b, "  would run  %s\n", terminal.Safe(quoteWords(p.Command)))
	}
	if p.Note != "" && len(p.Command) > 0 {
		fmt.Fprintf(b, "  note       %s\n", p.Note)
	}
	for _, t := range p.Checks {
		if executed && t.Did != "" {
			fmt.Fprintf(b, "  %-28s was %s, is %s\n", terminal.Safe(strings.Join(t.Command, " ")), t.Now, t.Did)
		} else {
			fmt.Fprintf(b, "  %-28s is %s, would be %s\n", terminal.Safe(strings.Join(t.Command, " ")), t.Now, t.After)
		}
	}
	b.WriteByte('\n')
}

// quoteWords writes a command as redis-cli wants it.
func quoteWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if strings.ContainsAny(w, " ()*?~'\"") {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func connectedUsers(ctx context.Context, conns []masterConn) string {
	counts := map[string]int{}
	for _, c := range conns {
		list, _ := redis.String(redis.DoContext(c.conn, ctx, "CLIENT", "LIST"))
		for line := range strings.Lines(list) {
			if _, after, found := strings.Cut(line, " user="); found {
				name, _, _ := strings.Cut(after, " ")
				counts[name]++
			}
		}
	}
	var all []string
	for name, n := range counts {
		all = append(all, fmt.Sprintf("%s (%d)", terminal.Safe(name), n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// fencePoll is how often ACL LOG is read: the server joins what one user does within a minute and names the
// last client only.
const fencePoll = 100 * time.Millisecond

// watchFence shows hits until the time is over. Ctrl-C ends it with the sum, as a success.
func watchFence(ctx context.Context, env *environment, conns []masterConn, window time.Duration) error {
	fmt.Fprintf(env.stderr, "lockmigrate: reading ACL LOG every %v for %v\n", fencePoll, window)
	logs := make([]fence.Log, len(conns))
	over := time.NewTimer(window)
	defer over.Stop()
	tick := time.NewTicker(fencePoll)
	defer tick.Stop()
	total := int64(0)
	for {
		for i, c := range conns {
			logs[i].Server = c.addr
			hits, err := logs[i].Poll(ctx, c.conn)
			if err != nil && ctx.Err() == nil {
				return endpoint.Explain(err)
			}
			for _, h := range hits {
				total += h.Count
				if err := printHit(env, h); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-over.C:
		case <-tick.C:
			continue
		}
		break
	}
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"summary": map[string]int64{"hits": total}})
	}
	_, err := fmt.Fprintf(env.stdout, "%d SETNX or GETSET were denied\n", total)
	return err
}

func printHit(env *environment, h fence.Hit) error {
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"hit": h})
	}
	name := ""
	if h.Name != "" {
		name = " " + terminal.Quoted(h.Name)
	}
	_, err := fmt.Fprintf(env.stdout, "%s %s denied to %s%s, user %s, %s, %d times\n", h.At.UTC().Format("15:04:05.000"), h.Command, h.Addr, name, terminal.Quoted(h.User), h.Context, h.Count)
	return err
}
