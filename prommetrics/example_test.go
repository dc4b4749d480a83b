package prommetrics_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/prommetrics"
)

// One collector may observe all Lockers of a service, of every package.
func Example() {
	server := miniredis.NewMiniRedis() // stands for your Redis
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", server.Addr())
	}}
	defer pool.Close()

	metrics, observe := prommetrics.New()
	registry := prometheus.NewRegistry() // a service uses prometheus.MustRegister and the default one
	registry.MustRegister(metrics)
	locker, err := modern.New(pool, modern.Options{Observer: observe})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	for range 3 {
		if err := locker.Do(context.Background(), "orders", func(context.Context) error { return nil }); err != nil {
			panic(err)
		}
	}

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "lockmigrate_released_total") || strings.HasPrefix(line, "lockmigrate_held ") {
			fmt.Print(line)
		}
	}
	// Output:
	// lockmigrate_held 0
	// lockmigrate_released_total 3
}
