package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

type sidecarFlags struct {
	sidecar.Options
	listen          []string
	dialect, status string
	cert, key, ca   string
	drain           time.Duration

	handover, new, data string
}

func newSidecarCommand(env *environment) *cobra.Command {
	var flags sidecarFlags
	cmd := &cobra.Command{
		Use:   "sidecar {--namespace NAME | --handover NAME --new URL} [flags]",
		Short: "Let a service that nobody changes lock with tokens",
		RunE:  func(cmd *cobra.Command, _ []string) error { return runSidecar(cmd.Context(), env, flags) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&flags.listen, "listen", []string{"127.0.0.1:6380"}, "`[DIALECT=]ADDRESS` that the service connects to, host:port or unix:PATH; repeatable")
	f.StringVar(&flags.Namespace, "namespace", "", "`NAME` of the namespace")
	f.StringVar(&flags.handover, "handover", "", "`NAME` of a handover: the locks move from --redis to --new, as its record says")
	f.StringVar(&flags.new, "new", "", "with --handover: the `URL` of the server to which the locks move; the record is there")
	f.StringVar(&flags.data, "data", "", "with --handover: `old` or new, the server that gets the service's other commands; start a second process with new when the data has moved, and end the first")
	completes(cmd, "data", func() []string { return []string{"old", "new"} })
	f.StringVar(&flags.Name, "name", "", "`NAME` of the service, the same after each restart, and of no other sidecar; default host name and port")
	f.StringVar(&flags.dialect, "dialect", "", "`DIALECT` of the service's locks, none for SETNX of a text without a time; default the namespace's")
	completes(cmd, "dialect", func() []string { return append(dialectNames(), sidecar.DialectNone) })
	f.DurationVar(&flags.Lease, "lease", 0, "lease of a lock for which the service gives no time; renewed while it is connected (default 30s)")
	f.DurationVar(&flags.KeepFor, "keep-for", 0, "how long such a lock is renewed once all connections of when it was taken have ended; its holder may live (default: no end, and it is told after 10m)")
	f.DurationVar(&flags.Options.Hold, "hold", 0, "how long an answer may wait for the lock, well below the service's socket timeout (default 250ms; negative: not at all)")
	f.Lookup("hold").Annotations = map[string][]string{negative: {}}
	f.StringVar(&flags.status, "status", "", "`ADDRESS` for /healthz, /readyz and /metrics; none if empty")
	f.DurationVar(&flags.drain, "drain", 10*time.Second, "how long a command or a transaction may take to end after SIGTERM; connections end between two commands")
	f.StringVar(&flags.cert, "listen-cert", "", "`FILE` of the certificate for clients that use TLS")
	f.StringVar(&flags.key, "listen-key", "", "`FILE` of its key")
	f.StringVar(&flags.ca, "listen-ca", "", "`FILE` of certificates that must have signed the clients'")
	return cmd
}

func runSidecar(ctx context.Context, env *environment, flags sidecarFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	secure, err := flags.tls()
	if err != nil {
		return err
	}
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	record := end // where it is
	if flags.handover != "" {
		old, err := end.Locks()
		if err != nil {
			return err
		}
		defer old.Close()
		flags.Options.Old, flags.Options.DataOld = old, flags.data == "old"
		if record, stop, err = env.endpointOf(flags.new); err != nil {
			return fmt.Errorf("--new: %w", err)
		}
		defer stop()
		if !flags.Options.DataOld {
			end = record
		}
	}
	pool, err := record.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()
	if flags.Name == "" {
		if flags.Name, err = defaultName(flags.listen[0]); err != nil {
			return err
		}
	}
	flags.Options.Pool, flags.Options.Database = pool, end.DB
	lines := slog.Handler(slog.NewTextHandler(env.stderr, nil))
	if env.global.json {
		lines = slog.NewJSONHandler(env.stderr, nil)
	}
	flags.Options.Log = slog.New(sidecar.Quiet(lines)).With("namespace", flags.Namespace, "sidecar", flags.Name)
	listeners, err := flags.listeners(secure)
	if err != nil {
		return err
	}
	status := &statusPage{address: flags.status, log: flags.Options.Log}
	leaving, err := status.open()
	if err != nil {
		return err
	}
	defer leaving()
	var member *sidecar.Sidecar
	var upstream *proxy.Upstream
	for upstream == nil {
		if member, err = sidecar.New(ctx, flags.Options); err == nil {
			upstream, err = proxy.NewUpstream(ctx, end, member.Patterns())
		}
		if err != nil {
			err = status.again(ctx, err)
		}
		switch {
		case ctx.Err() != nil:
			return nil // interrupted before the server was there: nothing has begun
		case errors.Is(err, proxy.ErrManyMasters):
			return failedError("give all keys of the namespace one hash tag, as in {orders}:*", "%w", err)
		case err != nil:
			return missing(ctx, record, flags.Namespace, err, failedError, seeNamespaces)
		}
	}
	server, err := member.Server(upstream, flags.drain, leaving, listeners...)
	if err != nil {
		return usageError(seeDialects, "--listen: %w", err)
	}
	debug.SetGCPercent(50)                              // an idle connection is its stacks: memory counts more than the time of the few collections
	env.grace.Store(int64(flags.drain + 5*time.Second)) // draining, and leaving the namespace
	status.show(proxy.Handler(server.Ready, server.Collect))
	return server.Run(ctx)
}

// check refuses flags that do not go together, and takes the name of a handover for its namespace's.
func (f *sidecarFlags) check() error {
	switch {
	case f.handover == "" && (f.new != "" || f.data != ""):
		return usageError("they belong to --handover NAME", "--new and --data are about a handover")
	case f.handover == "" && f.Namespace == "":
		return usageError("give --namespace NAME, or --handover NAME; "+seeNamespaces, "no namespace is named")
	case f.handover == "":
		return nil
	case f.Namespace != "":
		return usageError("give one of them", "--namespace and --handover name two records")
	case f.new == "":
		return usageError("give --new URL: --redis is the server from which the locks move", "a handover has two servers")
	case f.data != "old" && f.data != "new":
		return usageError("give --data old until the service's data has moved, and --data new from then on", "it is not said which server gets the service's other commands")
	}
	f.Namespace = f.handover
	return nil
}

const seeNamespaces = "\"lockmigrate stage list\" shows them"

const seeDialects = "see \"lockmigrate stage init --help\" for the dialects"

// listeners refuses what no server could make right.
func (f *sidecarFlags) listeners(secure *tls.Config) (all []sidecar.Listener, err error) {
	for _, text := range f.listen {
		dialect, address := f.dialect, text
		if name, rest, found := strings.Cut(text, "="); found {
			dialect, address = name, rest
		}
		if dialect == "" && f.handover != "" {
			return nil, usageError("give --dialect NAME; "+seeDialects, "the record of a handover has no dialect")
		} else if dialect != "" {
			if _, err := sidecar.DialectNamed(dialect); err != nil {
				return nil, usageError(seeDialects, "--listen %q: %w", text, err)
			}
		}
		if _, _, err := net.SplitHostPort(address); err != nil && !strings.HasPrefix(address, "unix:/") {
			return nil, usageError("write it like 127.0.0.1:6380, jedis-ms=127.0.0.1:6380 or unix:/run/sidecar.sock", "--listen %q names no address", text)
		}
		all = append(all, sidecar.Listener{Address: address, Dialect: dialect, TLS: secure})
	}
	return all, nil
}

// tls returns what clients are met with, nil for plain connections.
func (f *sidecarFlags) tls() (config *tls.Config, err error) {
	switch {
	case f.cert == "" && f.key == "" && f.ca == "":
		return nil, nil
	case f.cert == "" || f.key == "":
		return nil, usageError("give both --listen-cert and --listen-key", "a listener with TLS needs a certificate and its key")
	}
	config = &tls.Config{MinVersion: tls.VersionTLS12}
	config.Certificates, err = endpoint.KeyPair("--listen-cert and --listen-key", f.cert, f.key)
	if err == nil && f.ca != "" {
		config.ClientAuth = tls.RequireAndVerifyClientCert
		config.ClientCAs, err = endpoint.Authorities("--listen-ca", f.ca)
	}
	return config, err
}

// defaultName is the host's name, and the first listener's port.
func defaultName(listen string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", failedError("give --name NAME", "this host does not know its name: %w", err)
	}
	if _, port, err := net.SplitHostPort(listen[strings.IndexByte(listen, '=')+1:]); err == nil {
		return host + ":" + port, nil
	}
	return host, nil
}

// statusPage answers probes and Prometheus, also while the sidecar has not met the server yet.
type statusPage struct {
	address string
	log     *slog.Logger
	why     atomic.Value // string: why it waits for the server; empty before the first failure
	shown   atomic.Pointer[http.Handler]
}

// again waits a little for the server after a failure. It returns an error where to wait is no use.
func (p *statusPage) again(ctx context.Context, err error) error {
	if ctx.Err() != nil || endpoint.Lasting(err) || errors.Is(err, stages.ErrNoRecord) || errors.Is(err, sidecar.ErrUnfit) ||
		errors.Is(err, proxy.ErrManyMasters) {
		return err
	}
	if p.why.Swap(endpoint.Explain(err).Error()) == nil {
		p.log.Error("waiting for the server; not listening", "error", endpoint.Explain(err))
	}
	return lifetime.Sleep(ctx, 500*time.Millisecond)
}

// waiting is the answer of /readyz meanwhile.
func (p *statusPage) waiting() error {
	why, _ := p.why.Load().(string)
	return errors.New("waiting for the server: " + cmp.Or(why, "it has not answered yet"))
}

// show makes a handler the one that answers.
func (p *statusPage) show(handler http.Handler) { p.shown.Store(&handler) }

// open listens until the process takes no new clients any more and calls stop. Where the address is in use it goes on trying in the
// background: the sidecar that is to be replaced may have it.
func (p *statusPage) open() (stop func(), err error) {
	if p.address == "" {
		return func() {}, nil
	}
	p.show(proxy.Handler(p.waiting, func(c chan<- prometheus.Metric) {
		proxy.New(proxy.Options{}).Collect(c)
		sidecar.CollectNone(c)
	}))
	listener, err := net.Listen("tcp", p.address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		p.log.Warn("another process has the --status address; waiting for it", "address", p.address)
	case err != nil:
		return nil, failedError("choose another --status host:port", "%w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for err := err; err != nil; listener, err = net.Listen("tcp", p.address) {
			if lifetime.Sleep(ctx, 20*time.Millisecond) != nil {
				return
			}
		}
		p.log.Info("status", "address", "http://"+listener.Addr().String())
		_ = serve.Serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*p.shown.Load()).ServeHTTP(w, r) }))
	})
	return func() { cancel(); serving.Wait() }, nil
}
