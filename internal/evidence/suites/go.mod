// The suites are a module of their own: `go test ./...` at the root leaves them out, and a service that imports
// lockmigrate does not get their requirements. go.work joins the two, so every command works from the root:
// `go test ./internal/evidence/suites/fleets`, and `go test work` for the packages of both.
module github.com/lockmigrate/lockmigrate/internal/evidence/suites

go 1.25.0

replace github.com/lockmigrate/lockmigrate => ../../..

replace github.com/lockmigrate/lockmigrate/pool/goredis => ../../../pool/goredis

replace github.com/lockmigrate/lockmigrate/pool/rueidis => ../../../pool/rueidis

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/gomodule/redigo v1.9.3
	github.com/jedib0t/go-pretty/v6 v6.8.3
	github.com/lockmigrate/lockmigrate v0.0.0
	github.com/lockmigrate/lockmigrate/pool/goredis v0.0.0
	github.com/lockmigrate/lockmigrate/pool/rueidis v0.0.0
	github.com/prometheus/client_golang v1.22.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/redis/rueidis v1.0.79
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.2
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/sys v0.47.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/gopacket/gopacket v1.7.7 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.1 // indirect
	github.com/prometheus/common v0.62.0 // indirect
	github.com/prometheus/procfs v0.15.1 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/protobuf v1.36.5 // indirect
)
