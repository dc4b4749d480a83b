package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/gomodule/redigo/redis"
	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
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
		Use:     "fence --user NAME [flags]",
		Short:   "Make a forgotten legacy client fail loudly, by ACL rules",
		PreRunE: func(*cobra.Command, []string) error { return flags.check() },
		RunE:    env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error { return runFence(ctx, env, end, flags) }),
	}
	f := cmd.Flags()
	f.StringArrayVar(&flags.opts.Users, "user", nil, "`NAME` of a user that legacy clients authenticate as; repeatable")
	f.StringArrayVar(&flags.opts.Locks, "lock", nil, "`PATTERN` of the lock keys; repeatable, needed to put a fence up")
	f.StringArrayVar(&flags.opts.Keep, "keep", nil, "`PATTERN` of keys where the denied commands stay allowed (7.0 or later); repeatable")
	f.BoolVar(&flags.opts.All, "with-set", false, "deny SET, SETEX, PSETEX, MSET, MSETNX and RENAMENX too (7.0 or later)")
	f.BoolVar(&flags.opts.Remove, "remove", false, "take the fence away")
	f.BoolVar(&flags.execute, "execute", false, "change the server's ACL")
	f.DurationVar(&flags.watch, "watch", 0, "show for this `DURATION` who runs into a fence")
	return cmd
}

func runFence(ctx context.Context, env *environment, end *endpoint.Endpoint, flags fenceFlags) error {
	nodes, err := dialNodes(ctx, end)
	if err != nil {
		return err
	}
	defer func() {
		for _, n := range nodes {
			n.close()
		}
	}()
	if len(flags.opts.Users) > 0 {
		if err := planFence(ctx, env, nodes, flags); err != nil || flags.watch == 0 {
			return err
		}
	} else if flags.watch == 0 {
		return usageError("name the users that legacy clients authenticate as with --user; connected are: "+connectedUsers(ctx, nodes), "no user is named")
	}
	return watchFence(ctx, env, end, nodes, flags.watch)
}

func (f fenceFlags) check() error {
	for _, p := range append(slices.Clone(f.opts.Keep), f.opts.Users...) {
		if p == "" || strings.ContainsFunc(p, unicode.IsSpace) {
			return usageError("give a name or pattern without blanks", "%q cannot stand in an ACL rule", p)
		}
	}
	if slices.Contains(f.opts.Locks, "") {
		return usageError("give a pattern such as 'lock.order.*'", "a --lock pattern is empty")
	}
	if len(f.opts.Users) > 0 && !f.opts.Remove && len(f.opts.Locks) == 0 {
		return usageError("give their patterns with --lock, such as 'lock.order.*'", "no lock key is named")
	}
	if f.opts.All && (f.opts.Remove || len(f.opts.Users) == 0) {
		return usageError("leave out --with-set: --remove takes away whatever the fence denied, and --watch shows every refusal", "--with-set says what a fence is to deny")
	}
	return nil
}

// fenceNode is one server that is to have the fence.
type fenceNode struct {
	endpoint.Node
	conn redis.Conn // nil while there is none
	gone error      // why there is none
}

func (n *fenceNode) close() {
	if n.conn != nil {
		_ = n.conn.Close()
	}
	n.conn = nil
}

// dialNodes connects to all servers. Every master must be there; a replica need not.
func dialNodes(ctx context.Context, end *endpoint.Endpoint) ([]*fenceNode, error) {
	all, err := end.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	nodes := make([]*fenceNode, len(all))
	var dialling sync.WaitGroup
	for i, one := range all {
		nodes[i] = &fenceNode{Node: one}
		dialling.Go(func() { nodes[i].conn, nodes[i].gone = end.DialNode(ctx, one.Addr) })
	}
	dialling.Wait()
	for _, n := range nodes {
		if n.gone != nil && !n.Replica {
			for _, other := range nodes {
				other.close()
			}
			return nil, n.gone
		}
	}
	return nodes, nil
}

// planFence plans for every server before it changes any.
func planFence(ctx context.Context, env *environment, nodes []*fenceNode, flags fenceFlags) error {
	var all []fence.Plan
	failed := map[string]bool{}
	carriers := map[int]*fenceNode{} // of the plans that can be carried out
	for _, n := range nodes {
		plans, err := n.plan(ctx, flags.opts)
		if err != nil {
			return err
		}
		for _, p := range plans {
			if p.Error == "" {
				carriers[len(all)] = n
			} else {
				failed[n.Addr] = true
			}
			all = append(all, p)
		}
	}
	for i := range all {
		if n := carriers[i]; n != nil && flags.execute {
			if err := all[i].Execute(ctx, n.conn); err != nil {
				all[i].Error, failed[n.Addr] = err.Error(), true
			}
		}
	}
	if err := printPlans(env, all, flags.execute); err != nil {
		return err
	}
	if len(failed) > 0 {
		what := "can"
		if flags.execute {
			what = "could"
		}
		unsure := ""
		if slices.ContainsFunc(all, func(p fence.Plan) bool { return p.Unsure }) {
			unsure = ", or may be"
		}
		return failedError("what is done stands; run it again when they answer (SENTINEL RESET and CLUSTER FORGET are for replicas that are gone for good)", "%d of %d servers %s not be changed%s", len(failed), len(nodes), what, unsure)
	}
	return nil
}

// plan returns what is to be done on one server. A replica that cannot be asked, or has no such user, has
// plans that say so.
func (n *fenceNode) plan(ctx context.Context, opts fence.Options) (plans []fence.Plan, err error) {
	if err = n.gone; err == nil {
		plans, err = fence.Make(ctx, n.conn, n.Addr, opts)
	}
	if err != nil {
		if !n.Replica || ctx.Err() != nil {
			return nil, err
		}
		for _, user := range opts.Users {
			plans = append(plans, fence.Plan{Server: n.Addr, User: user, Error: err.Error()})
		}
	}
	for i := range plans {
		plans[i].Replica = n.Replica
	}
	return plans, nil
}

// printPlans writes what was found and done.
func printPlans(env *environment, all []fence.Plan, executed bool) error {
	return env.print(pretty{map[string]any{"executed": executed, "plans": all, "limits": fenceLimits}}, func(b *strings.Builder) {
		for _, p := range all {
			fencePlanText(b, p, executed)
		}
		for _, l := range fenceLimits {
			fmt.Fprintf(b, "note: %s\n", l)
		}
		if !executed {
			b.WriteString("\nnothing was changed; --execute changes the ACL\n")
		}
	})
}

var fenceLimits = []string{
	"a fenced client can still DEL: what it held before, or whatever has come after it",
	"ACL has no rule about an option: SET NX, SET GET and WATCH with SET are denied only together with SET",
	"ACL rules are not replicated: a server that is not listed here has no fence, and may become the master",
	"ACL rules are lost at a restart: ACL SAVE (with an aclfile) or CONFIG REWRITE keeps them",
}

func fencePlanText(b *strings.Builder, p fence.Plan, executed bool) {
	fmt.Fprintf(b, "server %s%s, user %s\n", p.Server, map[bool]string{true: " (a replica)"}[p.Replica], terminal.Quoted(p.User))
	if p.Now != "" {
		fmt.Fprintf(b, "  rules now  %s\n", terminal.Safe(p.Now))
	}
	switch {
	case p.Unsure:
		fmt.Fprintf(b, "  NOT KNOWN  %s; it may be done: run it again\n\n", terminal.Safe(p.Error))
		return
	case p.Error != "":
		fmt.Fprintf(b, "  NOT DONE   %s\n\n", terminal.Safe(p.Error))
		return
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
		switch command := terminal.Safe(quoteWords(t.Command)); {
		case executed && t.Did != "":
			fmt.Fprintf(b, "  %-28s was %s, is %s\n", command, t.Now, t.Did)
		case t.After == "" || len(p.Command) == 0:
			fmt.Fprintf(b, "  %-28s is %s\n", command, t.Now)
		default:
			fmt.Fprintf(b, "  %-28s is %s, would be %s\n", command, t.Now, t.After)
		}
	}
	if p.Verdict != "" {
		when := "now"
		if executed && len(p.Command) > 0 {
			when = "by now"
		}
		fmt.Fprintf(b, "  verdict    %s (%s)\n", p.Verdict, when)
	}
	for _, o := range p.Obligations {
		fmt.Fprintf(b, "  %-3s        %s: %s\n", o.Mark(), o.ID, terminal.Safe(o.Evidence))
	}
	b.WriteByte('\n')
}

// quoteWords writes a command as redis-cli wants it.
func quoteWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if w == "" || strings.ContainsAny(w, " ()*?~'\"") {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func connectedUsers(ctx context.Context, nodes []*fenceNode) string {
	counts := map[string]int{}
	for _, n := range nodes {
		if n.conn == nil {
			continue
		}
		users, _ := fence.Connections(ctx, n.conn)
		for name, connections := range users {
			counts[name] += connections
		}
	}
	var all []string
	for name, n := range counts {
		all = append(all, fmt.Sprintf("%s (%d)", terminal.Safe(name), n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
