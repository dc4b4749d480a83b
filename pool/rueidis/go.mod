module github.com/lockmigrate/lockmigrate/pool/rueidis

go 1.25.0

replace github.com/lockmigrate/lockmigrate => ../..

require (
	github.com/gomodule/redigo v1.9.3
	github.com/lockmigrate/lockmigrate v0.1.0
	github.com/redis/rueidis v1.0.79
)

require golang.org/x/sys v0.47.0 // indirect
