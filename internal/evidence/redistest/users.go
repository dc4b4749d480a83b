package redistest

import (
	"context"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
)

// Grant makes a user of these rules and no others, whose password is pw.
func (s *Server) Grant(user string, rules ...string) {
	s.t.Helper()
	s.Do("ACL", redis.Args{"SETUSER", user, "reset", "on", ">pw"}.AddFlat(rules)...)
}

// URLOf names the server for a user whose password is pw.
func (s *Server) URLOf(user string) string {
	return strings.Replace(s.URL(), "://", "://"+user+":pw@", 1)
}

// As returns a pool of connections of such a user, closed with the test.
func (s *Server) As(user string) *redis.Pool {
	pool := &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialURLContext(ctx, s.URLOf(user)) }}
	s.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// ConnAs returns one of them, closed with the test.
func (s *Server) ConnAs(user string) redis.Conn {
	s.t.Helper()
	conn, err := redis.DialURL(s.URLOf(user))
	if err != nil {
		s.t.Fatalf("connect to %s as %s: %v", s.Addr, user, err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// AddrOf is the address by which a server knows a connection.
func AddrOf(t testing.TB, conn redis.Conn) string {
	t.Helper()
	info, err := redis.String(conn.Do("CLIENT", "INFO"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(info, " addr=")
	addr, _, _ := strings.Cut(after, " ")
	return addr
}
