package locks

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
)

// Postgres is a half of advisory locks: pg_advisory_lock of the key's hash, each in a session of its own. It needs PostgreSQL 14.
//
// The lock lasts as long as the session, and nobody tells its holder when that ends. So the connection is read all the time, which shows an end that is
// told, and asked three times in each ttl. The server ends a session that was idle for a ttl: one whose holder is cut off ends, and its holder knew before.
func Postgres(name string, config *pgx.ConnConfig, ttl time.Duration) lockmigrate.Locker {
	config = config.Copy()
	config.RuntimeParams["idle_session_timeout"] = strconv.FormatInt(ttl.Milliseconds(), 10)
	take := func(sql string) func(context.Context, string) (*session, error) {
		return func(ctx context.Context, key string) (*session, error) {
			conn, err := pgx.ConnectConfig(ctx, config)
			if err != nil {
				return nil, err
			}
			var got bool
			if err := conn.QueryRow(ctx, sql, key).Scan(&got); err != nil || !got {
				_ = conn.Close(context.WithoutCancel(ctx))
				if err == nil {
					err = lockmigrate.ErrNotAcquired
				}
				return nil, err
			}
			s := &session{conn: conn, key: key, wants: make(chan request), lost: make(chan struct{})}
			go s.read()
			return s, nil
		}
	}
	return handover.Wrap(name, handover.Funcs[*session]{
		Acquire:    take("SELECT true FROM pg_advisory_lock(hashtextextended($1, 0))"),
		TryAcquire: take("SELECT pg_try_advisory_lock(hashtextextended($1, 0))"),
		Extend: func(ctx context.Context, s *session) error {
			return s.do(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
		},
		Release: func(ctx context.Context, s *session) error {
			return s.do(ctx, func(conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", s.key)
				_ = conn.Close(ctx)
				return err
			})
		},
		Lost: func(s *session) <-chan struct{} { return s.lost },
		TTL:  ttl,
	})
}

// session is a connection that holds one lock.
type session struct {
	conn  *pgx.Conn
	key   string
	wants chan request
	lost  chan struct{} // closed when the connection is
}

// request is what somebody wants to do with the connection.
type request struct {
	do   func(*pgx.Conn) error
	done chan error
}

// read reads the connection until it is closed, and lets those have it who want it.
func (s *session) read() {
	defer close(s.lost)
	for !s.conn.IsClosed() {
		reading, stop := context.WithCancel(context.Background())
		wanted := make(chan request, 1)
		go func() {
			defer close(wanted)
			select {
			case r := <-s.wants:
				wanted <- r
				stop()
			case <-reading.Done():
			}
		}()
		_, _ = s.conn.WaitForNotification(reading) // none comes; it returns when the server ends the session
		stop()
		if r, ok := <-wanted; ok {
			r.done <- r.do(s.conn)
		}
	}
}

func (s *session) do(ctx context.Context, what func(*pgx.Conn) error) error {
	r := request{what, make(chan error, 1)}
	select {
	case s.wants <- r:
		return <-r.done
	case <-s.lost:
		return fmt.Errorf("%w: the session has ended", lockmigrate.ErrLost)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
