package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

func newServeCommand(env *environment) *cobra.Command {
	opts := serve.Options{Group: observe.ByAddr, Every: 30 * time.Second, CensusEvery: time.Minute}
	var listen string
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve a page to watch, its API and metrics",
		RunE:  env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error { return runServe(ctx, env, end, opts, listen) }),
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8787", "`ADDRESS` to listen on; port 0 takes a free one")
	f.StringVar(&opts.Namespace, "namespace", "", "show the stage and the members of the namespace of this `NAME`")
	f.StringArrayVar(&opts.Match, "match", nil, "glob `PATTERN` of the lock keys; repeatable")
	choose(cmd, &opts.Group, "group", "one row for each `addr`, host or name", observe.ByAddr, observe.ByHost, observe.ByName)
	f.DurationVar(&opts.Lease, "lease", 0, "the lease of every legacy client, where it is known")
	f.DurationVar(&opts.Burst, "burst", 5*time.Second, "for how long of every 30s MONITOR runs (0: never, 30s or more: always)")
	return cmd
}

func runServe(ctx context.Context, env *environment, end *endpoint.Endpoint, opts serve.Options, listen string) error {
	if conn, err := end.Dial(ctx); err != nil {
		return err
	} else {
		_ = conn.Close()
	}
	if opts.Namespace != "" {
		if err := noteAbsent(ctx, env, end, opts.Namespace); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return failedError("choose another --listen host:port", "%w", err)
	}
	addr := listener.Addr().(*net.TCPAddr)
	address := "http://" + addr.String() + "/"
	token := env.getenv("LOCKMIGRATE_TOKEN")
	if token == "" && !addr.IP.IsLoopback() {
		token = rand.Text()
	}
	if token != "" {
		address += "?token=" + url.QueryEscape(token)
	}
	host, _, _ := net.SplitHostPort(listen)
	hosts := []string{"localhost", "127.0.0.1", "::1", strings.Trim(host, "[]")}
	if _, err := fmt.Fprintln(env.stdout, address); err != nil {
		return err
	}
	env.note("serving until interrupted")
	collector := serve.NewCollector(end, opts)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var collecting sync.WaitGroup
	collecting.Go(func() { collector.Run(ctx) })
	err = serve.Serve(ctx, listener, serve.Handler(collector.State, token, hosts))
	cancel()
	collecting.Wait()
	return err
}

// noteAbsent says that there is no such namespace. It may come later, so that is no error. What else is wrong stands on the page.
func noteAbsent(ctx context.Context, env *environment, end *endpoint.Endpoint, namespace string) error {
	pool, err := end.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()
	store := storeOf(pool, namespace)
	if _, err := store.Show(ctx); errors.Is(err, stages.ErrNoRecord) {
		env.note("there is no namespace %s: %s", quoted(namespace), whichNamespace(ctx, store, "the page shows it when there is"))
	}
	return nil
}
