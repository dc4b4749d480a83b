package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
)

// drainListening is how long connections may go on when the window is over: they belong to a service that works.
const drainListening = 10 * time.Second

// observeListening is a proxy that passes everything on and watches it.
func observeListening(ctx context.Context, env *environment, end *endpoint.Endpoint, flags observeFlags) error {
	if end.Kind == endpoint.Cluster {
		return usageError("use --pcap there, or MONITOR", "--listen stands for one server: clients of a cluster follow its replies past it")
	}
	upstream, err := proxy.NewUpstream(ctx, end, nil)
	if err != nil {
		return err
	}
	pool, err := end.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()
	listening, err := observe.Listen(ctx, flags.opts, pool)
	if err != nil {
		return err
	}
	var listeners []proxy.Listener
	for _, address := range flags.listen {
		listeners = append(listeners, proxy.Listener{Address: address, Rewriter: proxy.Passing})
	}
	server := proxy.New(proxy.Options{
		Listeners: listeners, Drain: drainListening, Log: slog.New(slog.NewTextHandler(env.stderr, nil)),
		Dial: func(ctx context.Context) (net.Conn, error) {
			conn, err := upstream.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return listening.Tap(conn), nil
		},
	})
	env.grace.Store(int64(drainListening + 5*time.Second))
	working, over := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer over()
	background.Go(func() { listening.KeepTime(working) })
	background.Go(func() {
		upstream.Watch(working, time.Second, func(to string) { server.CutAll("the master is " + to + " now") })
	})
	serving, ended := make(chan error, 1), make(chan error, 2)
	timer := time.AfterFunc(flags.limits.For, func() { ended <- nil })
	defer timer.Stop()
	go func() {
		err := server.Run(ctx)
		serving <- err
		ended <- err
	}()
	fmt.Fprintf(env.stderr, "lockmigrate: observing what passes through %s to %s for %v; services connect there in place of the server\n",
		strings.Join(flags.listen, ", "), end, flags.limits.For)
	out := &observeOutput{env: env, flags: flags}
	if err := out.whileRunning(listening, ended, flags.limits.For); err != nil {
		return failedError("choose another --listen ADDRESS", "%w", err)
	}
	listening.Finish()
	early := ctx.Err()
	commands, missing := listening.Seen()
	found := findings{Report: listening.Report(), profile: listening.Profile(), Cost: observe.Cost{Commands: commands}, Holes: missing}
	if printErr := out.final(found, early); printErr != nil {
		return printErr
	}
	if early == nil { // the services' connections go through here: they decide when that may end
		fmt.Fprintln(env.stderr, "lockmigrate: the window is over; connections are passed on until an interrupt")
	}
	err = <-serving
	switch {
	case early != nil:
		return early
	case err != nil:
		return err
	case commands == 0:
		return inconclusiveError("give the services this address in place of the server's", "nobody has sent a command through %s", strings.Join(flags.listen, ", "))
	}
	return found.verdict(nil)
}
