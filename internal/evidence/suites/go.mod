// The suites are a module of their own: `go test ./...` at the root leaves them out, and a service that imports
// lockmigrate does not get their requirements. go.work joins the two, so every command works from the root:
// `go test ./internal/evidence/suites/fleets`, and `go test work` for the packages of both.
module github.com/lockmigrate/lockmigrate/internal/evidence/suites

go 1.25.0

replace github.com/lockmigrate/lockmigrate => ../../..

replace github.com/lockmigrate/lockmigrate/pool/goredis => ../../../pool/goredis

replace github.com/lockmigrate/lockmigrate/pool/rueidis => ../../../pool/rueidis

replace github.com/lockmigrate/lockmigrate/examples => ../../../examples

require (
	github.com/bsm/redislock v0.10.0
	github.com/go-redsync/redsync/v4 v4.16.0
	github.com/gomodule/redigo v1.9.3
	github.com/jackc/pgx/v5 v5.7.6
	github.com/lockmigrate/lockmigrate v0.1.0
	github.com/lockmigrate/lockmigrate/examples v0.0.0
	github.com/lockmigrate/lockmigrate/pool/goredis v0.0.0
	github.com/lockmigrate/lockmigrate/pool/rueidis v0.0.0
	github.com/prometheus/client_golang v1.22.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/redis/rueidis v1.0.79
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.2
	github.com/stretchr/testify v1.12.1
	go.etcd.io/etcd/client/v3 v3.6.5
	go.uber.org/goleak v1.3.0
	go.uber.org/zap v1.27.0
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/sys v0.47.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.5.0 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/gopacket/gopacket v1.7.7 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.26.3 // indirect
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jedib0t/go-pretty/v6 v6.8.3 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.1 // indirect
	github.com/prometheus/common v0.62.0 // indirect
	github.com/prometheus/procfs v0.15.1 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.etcd.io/etcd/api/v3 v3.6.5 // indirect
	go.etcd.io/etcd/client/pkg/v3 v3.6.5 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/grpc v1.83.1 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
