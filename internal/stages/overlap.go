package stages

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// Overlap tells whether some key matches both patterns, in which * and ? are special.
func Overlap(a, b string) bool {
	type state struct{ i, j int }
	seen := map[state]bool{}
	var walk func(i, j int) bool
	walk = func(i, j int) bool {
		s := state{i, j}
		if seen[s] {
			return false
		}
		seen[s] = true
		switch {
		case i == len(a) && j == len(b):
			return true
		case i < len(a) && a[i] == '*':
			return walk(i+1, j) || j < len(b) && walk(i, j+1)
		case j < len(b) && b[j] == '*':
			return walk(i, j+1) || i < len(a) && walk(i+1, j)
		case i == len(a) || j == len(b):
			return false
		default:
			return (a[i] == b[j] || a[i] == '?' || b[j] == '?') && walk(i+1, j+1)
		}
	}
	return walk(0, 0)
}

// ErrOverlap says that two namespaces would have keys in common: each with a stage of its own, the keys
// would have two.
var ErrOverlap = errors.New("keys of two namespaces")

// CheckOthers looks for a namespace on the server whose keys could be among the record's. It reads the
// server's key names once, a thousand at a time.
func (s *Store) CheckOthers(ctx context.Context, r Record) error {
	conn, err := s.Pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for cursor := "0"; ; {
		row, err := redis.Values(redis.DoContext(conn, ctx, "SCAN", cursor, "MATCH", RecordKey("*"), "COUNT", 1000))
		if err != nil {
			return err
		}
		var keys []string
		if _, err := redis.Scan(row, &cursor, &keys); err != nil {
			return err
		}
		for _, key := range keys {
			name := strings.TrimSuffix(strings.TrimPrefix(key, "lockmigrate:{"), "}:stage")
			if name == s.Namespace || CheckName(name) != nil {
				continue
			}
			other := &Store{Pool: s.Pool, Namespace: name, ReplyTimeout: s.ReplyTimeout}
			view, err := other.Show(ctx)
			if errors.Is(err, ErrNoRecord) {
				continue
			}
			if err != nil {
				return err
			}
			for _, mine := range r.Patterns {
				for _, theirs := range view.Record.Patterns {
					if Overlap(mine, theirs) {
						return fmt.Errorf("%w: %q here, %q of namespace %s", ErrOverlap, mine, theirs, name)
					}
				}
			}
		}
		if cursor == "0" {
			return nil
		}
	}
}
