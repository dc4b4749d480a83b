package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/embedded"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// endpoint returns where --redis or a setting leads, fallback if neither is given, and a function
// that ends what it started. Nothing is connected yet, except that an embedded server runs.
func (env *environment) endpoint(fallback string) (*endpoint.Endpoint, func(), error) {
	url := env.global.redis
	if url == "" {
		url = fallback
	}
	if url == "" {
		return nil, nil, usageError("give --redis redis://host:6379/0, or set LOCKMIGRATE_REDIS", "no server is named")
	}
	end, err := endpoint.Parse(url, endpoint.TLSFiles{
		CA:       env.global.tlsCA,
		Cert:     env.global.tlsCert,
		Key:      env.global.tlsKey,
		Insecure: env.global.tlsInsecure,
	})
	if err != nil {
		return nil, nil, err
	}
	if end.Kind != endpoint.Embedded {
		return end, func() {}, nil
	}
	server, err := embedded.Start()
	if err != nil {
		return nil, nil, err
	}
	end, err = endpoint.Parse("redis://"+server.Addr(), endpoint.TLSFiles{})
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	return end, server.Close, nil
}

// onServer makes a command of work on the server that --redis or a setting names, fallback if neither does.
func (env *environment) onServer(fallback string, work func(ctx context.Context, end *endpoint.Endpoint) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		end, stop, err := env.endpoint(fallback)
		if err != nil {
			return err
		}
		defer stop()
		return work(cmd.Context(), end)
	}
}

const aServerURL = "a server URL"

// shown makes a stray argument safe to repeat in an error: a server URL may hold a password.
func shown(argument string) string {
	if strings.Contains(argument, "://") || strings.Contains(argument, "@") {
		return aServerURL
	}
	return strconv.Quote(argument)
}
