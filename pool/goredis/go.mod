module github.com/lockmigrate/lockmigrate/pool/goredis

go 1.25.0

replace github.com/lockmigrate/lockmigrate => ../..

require (
	github.com/gomodule/redigo v1.9.3
	github.com/lockmigrate/lockmigrate v0.1.0
	github.com/redis/go-redis/v9 v9.22.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
