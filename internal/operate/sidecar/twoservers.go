package sidecar

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// atNew carries out a script of the sidecar on New.
func (x *exchange) atNew(command protocol.Command) (any, error) {
	conn, err := x.sidecar.open(x.sidecar.opts.Pool)
	if err != nil {
		return nil, x.failed("new", err)
	}
	defer conn.Close()
	command.NotAfter = x.o.notAfter
	if x.o.Stage == stages.Both && command.Op == protocol.SidecarTake { // nobody waits on New for what Old decides
		command.Queue = ""
	}
	x.sidecar.keys.longer(x.sidecar, command.TTL)
	reply, err := wire.Do(conn, x.sidecar.opts.ReplyTimeout, command)
	switch {
	case err != nil:
		return nil, x.failed("new", err)
	case reply.Kind == protocol.Integer:
		return reply.Int, nil
	case reply.Kind == protocol.Text && command.Sidecar.Form == protocol.FormSet:
		return reply.Text, nil
	case reply.Kind == protocol.Text:
		return []byte(reply.Text), nil
	}
	return nil, nil
}

// runAtNew has sidecar_run.lua carry out a command on New.
func (x *exchange) runAtNew(args [][]byte) (any, error) {
	body, call, why := x.call(x.name, x.known.keys, x.known.mode, args, x.sidecar.opts.Clock(), "")
	if why != "" {
		return nil, redis.Error(why)
	}
	words := redis.Args{scripts.SidecarRun.Bare()}.AddFlat(call)
	if body != nil {
		words[0] = scripts.SidecarRun.Around(string(body))
	}
	conn, err := x.sidecar.open(x.sidecar.opts.Pool)
	if err != nil {
		return nil, x.failed("new", err)
	}
	defer conn.Close()
	reply, err := redis.DoWithTimeout(conn, x.sidecar.opts.ReplyTimeout, "EVAL", words...)
	return reply, x.failed("new", err)
}

// atOld carries out a command on Old as it came.
func (x *exchange) atOld(words ...any) (any, error) {
	conn, err := x.sidecar.open(x.sidecar.old)
	if err != nil {
		return nil, x.failed("old", err)
	}
	defer x.sidecar.old.done(conn)
	reply, err := redis.DoWithTimeout(conn, x.sidecar.opts.ReplyTimeout, textOf(words[0]), words[1:]...)
	return reply, x.failed("old", err)
}

// failed says on which server something went wrong. What a server answers is its own word.
func (x *exchange) failed(which string, err error) error {
	var refused redis.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("%s: the %s server has not answered (%w): it is not known whether it has acted; what was taken ends with its lease", x.name, which, err)
}

func errorIs(err error, word string) bool {
	return err != nil && strings.HasPrefix(err.Error(), word)
}

func or(reply any, err error) any {
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case err != nil:
		return err
	}
	return reply
}

// textOf is a word or a reply as a string; empty where it is none.
func textOf(word any) string {
	s, _ := redis.String(word, nil)
	return s
}

// open is a connection to New within the bound of a command.
func (s *Sidecar) open(pool lockmigrate.Pool) (redis.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ReplyTimeout)
	defer cancel()
	return pool.GetContext(ctx)
}

// oldConns are this process's connections to Old. They never go back to the pool that they are from, so each is told to the record once.
type oldConns struct {
	*redis.Pool
	opened lockers.Opened
	broken atomic.Pointer[time.Time] // when one of them broke last
}

var errAsBad = errors.New("another connection broke while this one was idle")

func (old *oldConns) from(pool lockmigrate.Pool, timeout time.Duration) {
	old.Pool = &redis.Pool{
		MaxIdle: 16,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			conn, err := pool.GetContext(ctx)
			if err == nil {
				old.opened.Ask(conn, timeout)
			}
			return conn, err
		},
		TestOnBorrow: func(conn redis.Conn, since time.Time) error {
			if broken := old.broken.Load(); broken != nil && since.Before(*broken) {
				return errAsBad
			}
			if time.Since(since) < 5*time.Second {
				return nil
			}
			_, err := redis.DoWithTimeout(conn, timeout, "PING")
			return err
		},
	}
}

// done gives a connection back.
func (old *oldConns) done(conn redis.Conn) {
	if conn.Err() != nil {
		now := time.Now()
		old.broken.Store(&now)
	}
	_ = conn.Close()
}

// ErrUnfit says that the record is not for this sidecar: somebody has to change one of them.
var ErrUnfit = errors.New("this sidecar cannot follow the record")

// fits says why this sidecar cannot follow a record: package handover asks the same. At stage new nobody needs Old any more, so one that cannot be asked
// is asked again when the stage is another.
func (s *Sidecar) fits(ctx context.Context, o stages.Order) error {
	switch {
	case (o.Handover == nil) != (s.opts.Old == nil):
		return fmt.Errorf("%w: --handover is for the record of a handover, and --namespace for one that moves from legacy to modern", ErrUnfit)
	case s.opts.Old == nil || s.fitted != nil && *s.fitted == *o.Handover:
		return nil
	}
	var ours stages.Halves
	var errs [2]error
	ours.Old.Mark, errs[0] = stages.ReadMark(ctx, s.opts.Old, o.Namespace, s.opts.ReplyTimeout)
	ours.New.Mark, errs[1] = stages.ReadMark(ctx, s.opts.Pool, o.Namespace, s.opts.ReplyTimeout)
	switch err := errors.Join(errs[:]...); {
	case errs[0] != nil && errs[1] == nil && o.Stage == stages.New:
		return nil
	case err != nil:
		return err
	case ours.Old.Mark == ours.New.Mark:
		return fmt.Errorf("%w: both servers are one", ErrUnfit)
	}
	if err := o.Handover.Differs(ours); err != nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	s.fitted = o.Handover
	return nil
}

// stripe is what the commands on a key that this process carries out by itself wait for.
func (s *Sidecar) stripe(key string) *sync.Mutex {
	return &s.stripes[maphash.String(seed, key)%uint64(len(s.stripes))]
}

var seed = maphash.MakeSeed()

// sight is what stands on the two servers.
type sight struct {
	asked, there, live bool // Old has answered; it has a value; and that is not over
	told, held         bool // New has answered; somebody has its key
}

// sights looks at keys on both servers.
func (s *Sidecar) sights(keys []string) map[string]sight {
	all := map[string]sight{}
	if s.opts.Old == nil {
		return all
	}
	old, new := s.each(s.old, keys, "GET", "PTTL"), s.each(s.opts.Pool, keys, "EXISTS")
	for i, key := range keys {
		v := sight{}
		if old != nil {
			value, left := old[2*i], old[2*i+1]
			failed, _ := value.(redis.Error)
			ms, _ := left.(int64)
			s.keys.longer(s, time.Duration(ms)*time.Millisecond)
			wrong := errorIs(failed, "WRONGTYPE")
			if failed == "" || wrong { // with a TTL it may be a lock of SET NX PX, whatever its text
				v = sight{asked: true, there: value != nil, live: wrong || ms > 0 || value != nil && s.lives(textOf(value))}
			}
		}
		if new != nil {
			_, failed := new[i].(redis.Error)
			v.told, v.held = !failed, new[i] == int64(1)
		}
		all[key] = v
	}
	return all
}

// each sends commands about each key in one round trip. The replies may be errors; there are none where the server has not answered.
func (s *Sidecar) each(pool lockmigrate.Pool, keys []string, commands ...string) []any {
	conn, err := s.open(pool)
	if err != nil {
		return nil
	}
	defer func() {
		if pool == lockmigrate.Pool(s.old) {
			s.old.done(conn)
		} else {
			_ = conn.Close()
		}
	}()
	for _, key := range keys {
		for _, command := range commands {
			_ = conn.Send(command, key)
		}
	}
	replies, _ := redis.Values(redis.DoWithTimeout(conn, s.opts.ReplyTimeout, ""))
	return replies
}

// lives tells whether a text on Old may be a lock of the service: not where each of its dialects that can read it takes it for over.
func (s *Sidecar) lives(value string) bool {
	s.dialectsMu.Lock()
	defer s.dialectsMu.Unlock()
	now := protocol.InstantOf(s.opts.Clock())
	for _, d := range s.dialects {
		if d == nil || value == d.Forever {
			return true
		}
		if ends, ok := d.Written(value); !ok || now < ends.Add(time.Second) { // a count of seconds lasts to the end of its second
			return true
		}
	}
	return false
}
