package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/gomodule/redigo/redis"
	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// fenceFlags are the flags of fence.
type fenceFlags struct {
	opts    fence.Options
	remove  string // a journal
	journal string
	execute bool
}

func newFenceCommand(env *environment) *cobra.Command {
	var flags fenceFlags
	cmd := &cobra.Command{
		Use:     "fence --user NAME --lock PATTERN [flags]",
		Short:   "Make a forgotten legacy client fail loudly, by ACL rules",
		PreRunE: func(*cobra.Command, []string) error { return flags.check() },
		RunE:    env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error { return runFence(ctx, env, end, flags) }),
	}
	f := cmd.Flags()
	f.StringArrayVar(&flags.opts.Users, "user", nil, "`NAME` of a user that legacy clients authenticate as; repeatable")
	f.StringArrayVar(&flags.opts.Locks, "lock", nil, "`PATTERN` of the lock keys; repeatable, needed to put a fence up")
	f.StringArrayVar(&flags.opts.Keep, "keep", nil, "`PATTERN` of keys where the denied commands stay allowed (7.0 or later); repeatable")
	f.BoolVar(&flags.opts.All, "with-set", false, "deny SET, SETEX, PSETEX, MSET, MSETNX and RENAMENX too")
	f.StringVar(&flags.remove, "remove", "", "take away the fences of this journal: the former rights as that `FILE` has them; of --user alone where it is given")
	f.StringVar(&flags.journal, "journal", "lockmigrate-fence.jsonl", "`FILE` that keeps the former rights, for --remove; it is appended to")
	executeFlag(f, &flags.execute, "change the server's ACL")
	return cmd
}

func runFence(ctx context.Context, env *environment, end *endpoint.Endpoint, flags fenceFlags) error {
	nodes, err := dialNodes(ctx, end)
	defer func() {
		for _, n := range nodes {
			if n.conn != nil {
				_ = n.conn.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	if len(flags.opts.Users) == 0 && flags.remove == "" {
		return usageError("name the users that legacy clients authenticate as with --user; connected are: "+connectedUsers(ctx, nodes), "no user is named")
	}
	return planFence(ctx, env, end, nodes, flags)
}

func (f fenceFlags) check() error {
	for _, p := range append(slices.Clone(f.opts.Keep), f.opts.Users...) {
		if p == "" || strings.ContainsFunc(p, unicode.IsSpace) {
			return usageError("give a name or pattern without blanks", "%q cannot stand in an ACL rule", p)
		}
	}
	up := len(f.opts.Locks)+len(f.opts.Keep) > 0 || f.opts.All
	switch {
	case f.remove != "" && up:
		return usageError("give --remove FILE, and --user NAME at most", "--remove takes away whatever the fence denied")
	case f.remove == "" && len(f.opts.Users) == 0 && up:
		return usageError("name the users that legacy clients authenticate as with --user", "no user is named")
	case f.remove == "" && len(f.opts.Users) > 0 && len(f.opts.Locks) == 0:
		return usageError("give their patterns with --lock, such as 'lock.order.*'", "no lock key is named")
	}
	return nil
}

// fenceNode is one server that is to have the fence.
type fenceNode struct {
	endpoint.Node
	conn  redis.Conn // nil while there is none
	gone  error      // why there is none
	plans []fence.Plan
}

// dialNodes connects to all servers. Every master must be there; a replica need not. Those to which there is a connection come with an error too.
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
			return nodes, n.gone
		}
	}
	return nodes, nil
}

// planFence plans for every server before it changes any.
func planFence(ctx context.Context, env *environment, end *endpoint.Endpoint, nodes []*fenceNode, flags fenceFlags) error {
	var former []fence.Entry
	var err error
	if flags.remove != "" {
		if former, err = fence.ReadJournal(flags.remove); err != nil {
			return failedError("name the file that fence --execute wrote; without one: ACL SETUSER NAME +setnx +getset", "%w", err)
		}
		if len(flags.opts.Users) == 0 {
			flags.opts.Users = fence.UsersOf(former)
		}
	}
	flags.opts.Sample = env.sample
	failures := make([]error, len(nodes))
	var planning sync.WaitGroup
	for i, n := range nodes {
		planning.Go(func() { failures[i] = n.plan(ctx, flags, former) })
	}
	status := env.status()
	if flags.remove == "" {
		status.Update("fence: counting calls for %v", env.sample)
	}
	planning.Wait()
	status.Clear()
	if err := cmp.Or(failures...); err != nil {
		return err
	}
	var notes []string
	if flags.remove == "" {
		notes, err = stopped(ctx, end, flags.opts)
	}
	if err != nil || !flags.execute {
		return cmp.Or(printPlans(env, nodes, notes, err, false), err, undone(nodes, false))
	}
	var record func(fence.Entry) error
	keeps := ""
	if flags.remove == "" {
		kept, err := openJournal(flags.journal)
		if err != nil {
			return err
		}
		defer kept.Close()
		record = func(e fence.Entry) error { return cmp.Or(encode(kept, e), kept.Sync()) }
		keeps = fmt.Sprintf("\"lockmigrate fence --remove %s --execute\" restores the former rights", shellWord(flags.journal))
	}
	for _, n := range nodes {
		for i := range n.plans {
			p := &n.plans[i]
			if p.Error != "" {
				continue
			}
			if err := p.Execute(ctx, n.conn, record); err != nil {
				p.Error = err.Error()
			} else if len(p.Command) > 0 && keeps != "" {
				notes, keeps = append(notes, keeps), ""
			}
		}
	}
	return cmp.Or(printPlans(env, nodes, notes, nil, true), undone(nodes, true))
}

// undone is the error of servers that are not as they should be.
func undone(nodes []*fenceNode, executed bool) error {
	hint := "what is done stands; see above what each of them says, mend it, and run it again"
	unsure, gone, failed := "", "", 0
	for _, n := range nodes {
		if slices.ContainsFunc(n.plans, func(p fence.Plan) bool { return p.Error != "" }) {
			failed++
		}
		if slices.ContainsFunc(n.plans, func(p fence.Plan) bool { return p.Unsure }) {
			unsure = ", or may be"
		}
		if n.Replica && n.gone != nil {
			gone = " (SENTINEL RESET and CLUSTER FORGET are for replicas that are gone for good)"
		}
	}
	if failed == 0 {
		return nil
	}
	return failedError(hint+gone, "%d of %d servers %s not be changed%s", failed, len(nodes), map[bool]string{true: "could", false: "can"}[executed], unsure)
}

// stopped refuses a fence that would stop members of a namespace at stage legacy: they send SETNX and GETSET as old clients do. It also returns
// what it could not find out.
func stopped(ctx context.Context, end *endpoint.Endpoint, opts fence.Options) (notes []string, err error) {
	pool, err := end.Locks()
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	unknown := func(what string, err error) {
		notes = append(notes, fmt.Sprintf("%s (%v): a member at stage legacy would be stopped, and nobody can tell here", what, endpoint.Explain(err)))
	}
	names, err := storeOf(pool, "").Names(ctx)
	if err != nil {
		unknown("the namespaces cannot be read", err)
	}
	kept := func(p string) bool {
		return slices.ContainsFunc(opts.Keep, func(keep string) bool { return servers.Covers(keep, p) })
	}
	var who []string
	for _, name := range names {
		view, err := storeOf(pool, name).Show(ctx)
		if err != nil {
			unknown("namespace "+name+" cannot be read", err)
			continue
		}
		if len(slices.DeleteFunc(view.Record.Patterns, kept)) == 0 {
			continue
		}
		for _, m := range view.Members {
			switch {
			case !m.Lives() || m.Lowest != stages.Legacy && m.Stage != stages.Legacy:
			case m.Info.User == "":
				notes = append(notes, fmt.Sprintf("the user of member %s of namespace %s is not known: at stage legacy a fence for its user stops it", m.ID, name))
			case slices.Contains(opts.Users, m.Info.User):
				who = append(who, fmt.Sprintf("%s of namespace %s (user %s)", safe(m.ID), name, quoted(m.Info.User)))
			}
		}
	}
	if len(who) == 0 {
		return notes, nil
	}
	return notes, unsafeError("move that namespace to bridge first, give its services a user of their own, or keep its keys with --keep", "the fence would stop %s at stage legacy: %s",
		counted(int64(len(who)), "member"), strings.Join(who[:min(3, len(who))], ", "))
}

// plan finds what is to be done on one server. A replica that cannot be asked, or has no such user, has
// plans that say so.
func (n *fenceNode) plan(ctx context.Context, flags fenceFlags, former []fence.Entry) error {
	err := n.gone
	switch {
	case err != nil:
	case flags.remove != "":
		n.plans, err = fence.Back(ctx, n.conn, n.Addr, flags.opts.Users, former)
	default:
		n.plans, err = fence.Make(ctx, n.conn, n.Addr, flags.opts)
	}
	if err != nil {
		if !n.Replica || ctx.Err() != nil {
			return err
		}
		for _, user := range flags.opts.Users {
			n.plans = append(n.plans, fence.Plan{Server: n.Addr, User: user, Error: err.Error()})
		}
	}
	for i := range n.plans {
		n.plans[i].Replica = n.Replica
	}
	return nil
}

// printPlans writes what was found and done.
func printPlans(env *environment, nodes []*fenceNode, notes []string, refused error, executed bool) error {
	var all []fence.Plan
	for _, n := range nodes {
		all = append(all, n.plans...)
	}
	doc := map[string]any{"executed": executed, "plans": all, "notes": append([]string{}, notes...), "limits": fenceLimits}
	if refused != nil {
		doc["refused"], doc["hint"] = refused.Error(), hintOf(refused)
	}
	return env.print(pretty{doc}, func(b *strings.Builder) {
		up := false
		for _, p := range all {
			fencePlanText(b, p, executed)
			up = up || p.Takes != nil
		}
		if up {
			notes = append(notes, fenceLimits...)
		}
		for _, l := range notes {
			fmt.Fprintf(b, "note: %s\n", safe(l))
		}
		if !executed {
			b.WriteString("\n" + nothingWritten("", refused))
		}
	})
}

var fenceLimits = []string{
	"a fenced client can still DEL: what it held before, or whatever has come after it",
	"ACL has no rule about an option: SET NX, SET GET and WATCH with SET are denied only together with SET",
	"ACL rules are not replicated: a server that is not listed here has no fence, and may become the master",
	"it is the users that are fenced: give new services a user of their own before you fence the default user",
	"ACL rules are lost at a restart: ACL SAVE (with an aclfile) or CONFIG REWRITE keeps them",
}

func fencePlanText(b *strings.Builder, p fence.Plan, executed bool) {
	fmt.Fprintf(b, "server %s%s, user %s\n", p.Server, map[bool]string{true: " (a replica)"}[p.Replica], quoted(p.User))
	if p.Takes != nil {
		fenceReachText(b, p)
	}
	if p.Now != "" {
		fmt.Fprintf(b, "  rules now  %s\n", safe(p.Now))
	}
	switch {
	case p.Unsure:
		fmt.Fprintf(b, "  NOT KNOWN  %s; it may be done: run it again\n\n", safe(p.Error))
		return
	case p.Error != "":
		fmt.Fprintf(b, "  NOT DONE   %s\n", safe(p.Error))
		if len(p.Restore) > 0 {
			fmt.Fprintf(b, "  by hand    %s\n", safe(quoteWords(p.Restore)))
		}
		b.WriteByte('\n')
		return
	case len(p.Command) == 0:
		fmt.Fprintf(b, "  nothing to do: %s\n", p.Note)
	case executed:
		fmt.Fprintf(b, "  executed   %s\n", safe(quoteWords(p.Command)))
	default:
		fmt.Fprintf(b, "  would run  %s\n", safe(quoteWords(p.Command)))
	}
	if p.Note != "" && len(p.Command) > 0 {
		fmt.Fprintf(b, "  note       %s\n", p.Note)
	}
	if p.Verdict != "" {
		when := "now"
		if executed && len(p.Command) > 0 {
			when = "by now"
		}
		fmt.Fprintf(b, "  verdict    %s (%s)\n", p.Verdict, when)
	}
	for _, o := range p.Obligations {
		fmt.Fprintf(b, "  %-3s        %s: %s\n", map[bool]string{true: "yes", false: "NO"}[o.Discharged], o.ID, safe(o.Evidence))
	}
	b.WriteByte('\n')
}

// fenceReachText says what a fence takes away, and from whom.
func fenceReachText(b *strings.Builder, p fence.Plan) {
	r := p.Takes
	but := "no other key is kept"
	if len(r.Keep) > 0 {
		but = "only the keys " + strings.Join(stages.EscapeAll(r.Keep), " ") + " are kept"
	}
	fmt.Fprintf(b, "  takes      %s on EVERY key, not only on locks: %s\n", strings.ToUpper(strings.Join(r.Commands, ", ")), safe(but))
	switch {
	case r.Unseen != "":
		fmt.Fprintf(b, "  from       user %s; its connections are not known: %s\n", quoted(p.User), safe(r.Unseen))
	case r.Connections == 0:
		fmt.Fprintf(b, "  from       user %s: it has no connection now\n", quoted(p.User))
	default:
		fmt.Fprintf(b, "  from       user %s: %s%s; %d of them sent one of these commands last\n", quoted(p.User), counted(int64(r.Connections), "connection"), safe(listed(r.Names)), r.Sent)
	}
	var rates []string
	for _, rate := range r.Rates {
		rates = append(rates, fmt.Sprintf("%s %.3g", strings.ToUpper(rate.Command), rate.Now))
	}
	if len(rates) > 0 {
		fmt.Fprintf(b, "  a second   %s, by all users\n", strings.Join(rates, ", "))
	}
}

// quoteWords writes a command as redis-cli wants it.
func quoteWords(words []string) string {
	var out []string
	for _, w := range words {
		out = append(out, shellWord(w))
	}
	return strings.Join(out, " ")
}

func connectedUsers(ctx context.Context, nodes []*fenceNode) string {
	counts := map[string]int64{}
	for _, n := range nodes {
		if n.conn == nil {
			continue
		}
		users, _ := fence.Connections(ctx, n.conn)
		for name, connections := range users {
			counts[name] += int64(connections)
		}
	}
	return strings.TrimPrefix(listed(counts), ": ")
}
