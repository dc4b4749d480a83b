package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
)

// fencePoll is how often ACL LOG is read: the server joins what one user does within a minute and names the
// last client only.
const fencePoll = 100 * time.Millisecond

// watchFence shows hits until the time is over. Ctrl-C ends it with the sum, as a success.
func watchFence(ctx context.Context, env *environment, end *endpoint.Endpoint, nodes []*fenceNode, window time.Duration) error {
	env.note("reading ACL LOG every %v for %v", fencePoll, window)
	watching, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	last, stop := context.WithTimeout(ctx, window+500*time.Millisecond)
	defer stop()
	logs := make([]*fenceLog, len(nodes))
	hits := make(chan fence.Hit)
	var reading sync.WaitGroup
	for i, n := range nodes { // each by itself: one that hangs must not hold up the others
		logs[i] = &fenceLog{node: n, end: end, log: fence.Log{Server: n.Addr}}
		reading.Go(func() {
			if logs[i].read(last, watching.Done(), hits); logs[i].refused != nil {
				cancel() // it would have to watch in vain
			}
		})
	}
	go func() { reading.Wait(); close(hits) }()
	status := env.status()
	began := time.Now()
	progress := time.NewTicker(time.Second)
	defer progress.Stop()
	total := int64(0)
	var failed error
	for watched := true; watched; {
		var h fence.Hit
		select {
		case <-progress.C:
			status.Update("%s", countdown("fence", time.Since(began), window))
			continue
		case h, watched = <-hits:
		}
		status.Clear()
		if !watched {
			break
		}
		total += h.Count
		if err := printHit(env, h); err != nil && failed == nil {
			failed = err
			cancel()
		}
	}
	if failed != nil {
		return failed
	}
	var holes []string
	for _, l := range logs {
		if l.refused != nil { // first: what was counted elsewhere is no count of the whole
			return endpoint.Explain(l.refused)
		}
		if l.hole != "" {
			holes = append(holes, l.hole)
		}
	}
	if err := printHits(env, total, holes); err != nil {
		return err
	}
	if len(holes) > 0 {
		return inconclusiveError("a server that was restarted has lost a fence that was not saved: look with fence --user again", "not all was seen: %s", strings.Join(holes, "; "))
	}
	return nil
}

// fenceLog follows ACL LOG of one server, over restarts of it.
type fenceLog struct {
	node    *fenceNode
	end     *endpoint.Endpoint
	log     fence.Log
	runID   string
	hole    string // what was missed
	refused error  // the server said no
}

// read polls until the window is over, and once more then; ctx bounds that.
func (l *fenceLog) read(ctx context.Context, over <-chan struct{}, hits chan<- fence.Hit) {
	tick := time.NewTicker(fencePoll)
	defer tick.Stop()
	for last := false; ; {
		found, err := l.poll(ctx)
		for _, h := range found {
			hits <- h
		}
		var said redis.Error
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &said) && (strings.HasPrefix(string(said), "NOPERM") || strings.HasPrefix(string(said), "ERR")):
			l.refused = err
			return
		case err != nil:
			l.node.close()
			l.hole = l.node.Addr + " could not be reached for a while"
		}
		if last {
			return
		}
		select {
		case <-over:
			last = true
		case <-tick.C:
		}
	}
}

// poll looks once, and connects first where it has to.
func (l *fenceLog) poll(ctx context.Context) ([]fence.Hit, error) {
	if l.node.conn == nil {
		conn, err := l.end.DialNode(ctx, l.node.Addr)
		if err != nil {
			return nil, err
		}
		l.node.conn = conn
		if id := runIDOf(ctx, conn); id != l.runID { // the log of a new process began empty
			l.log, l.runID = fence.Log{Server: l.node.Addr}, id
			l.hole = l.node.Addr + " was restarted"
		}
	}
	if l.runID == "" {
		l.runID = runIDOf(ctx, l.node.conn)
	}
	return l.log.Poll(ctx, l.node.conn)
}

// runIDOf names the process behind a connection; "unknown" where it does not tell.
func runIDOf(ctx context.Context, conn redis.Conn) string {
	info, _ := endpoint.Info(ctx, conn, "server")
	return cmp.Or(info["run_id"], "unknown")
}

// printHits writes the sum; where something was not seen, the sum says so itself.
func printHits(env *environment, total int64, holes []string) error {
	doc := map[string]any{"summary": map[string]any{"hits": total, "complete": len(holes) == 0, "holes": append([]string{}, holes...)}}
	return env.print(doc, func(b *strings.Builder) {
		fmt.Fprintf(b, "%s%d commands that can take a lock were denied\n", map[bool]string{true: "at least "}[len(holes) > 0], total)
	})
}

func printHit(env *environment, h fence.Hit) error {
	return env.print(map[string]any{"hit": h}, func(b *strings.Builder) {
		name := ""
		if h.Name != "" {
			name = " " + terminal.Quoted(h.Name)
		}
		fmt.Fprintf(b, "%s %s denied to %s%s, user %s, %s, %d times\n", h.At.UTC().Format("15:04:05.000"), h.Command, h.Addr, name, terminal.Quoted(h.User), h.Context, h.Count)
	})
}
