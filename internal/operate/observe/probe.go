package observe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// prober reads keys. Each read has its exact place in the MONITOR stream, so its reply is the key's state
// at that place: the reader of the stream, on meeting the line, takes the reply from here.
type prober struct {
	addr    string // of its connection, as the server sees it
	conn    redis.Conn
	wanted  chan traffic.Key
	answers chan answer // closed when no more come
	sent    atomic.Int64
	match   func(key string) bool // the keys of interest, nil for all
	refused notes                 // what this user may not do
}

// answer is the reply to one of the prober's reads.
type answer struct {
	verb, key string
	reply     any
	err       error
}

func newProber(ctx context.Context, end *endpoint.Endpoint, addr string) (*prober, error) {
	conn, own, err := beside(ctx, end, addr)
	if err != nil {
		return nil, err
	}
	return &prober{addr: own, conn: conn, wanted: make(chan traffic.Key, 1024), answers: make(chan answer, 4096)}, nil
}

// beside connects for what is asked beside MONITOR. Own is the connection's address, as the server sees it.
func beside(ctx context.Context, end *endpoint.Endpoint, addr string) (conn redis.Conn, own string, err error) {
	if conn, err = end.DialAddr(ctx, addr); err != nil {
		return nil, "", err
	}
	if own, err = ownAddr(ctx, conn); err != nil {
		_ = conn.Close()
	}
	return conn, own, err
}

// ownAddr asks the server which address a connection has for it.
func ownAddr(ctx context.Context, conn redis.Conn) (string, error) {
	field, mark, err := identity(func(words ...string) (string, error) {
		reply, err := redis.DoContext(conn, ctx, words[0], redis.Args{}.AddFlat(words[1:])...)
		return fmt.Sprint(reply), err
	})
	if err != nil {
		return "", endpoint.Explain(err)
	}
	list, err := endpoint.Clients(ctx, conn)
	if err != nil {
		return "", endpoint.Explain(err)
	}
	for _, f := range list {
		if f[field] == mark {
			return f["addr"], nil
		}
	}
	return "", errors.New("the server's CLIENT LIST does not show this connection")
}

// identity is by which field of CLIENT LIST a connection is known: its id, or before Redis 5.0 a name that no other has.
func identity(ask func(words ...string) (string, error)) (field, value string, err error) {
	id, err := ask("CLIENT", "ID")
	switch {
	case err == nil:
		return "id", strings.TrimPrefix(id, ":"), nil
	case strings.HasPrefix(err.Error(), "NOPERM"):
		return "", "", err
	}
	name := "lockmigrate-" + rand.Text()
	if _, err := ask("CLIENT", "SETNAME", name); err != nil {
		return "", "", err
	}
	return "name", name, nil
}

func (p *prober) close() { _ = p.conn.Close() }

// refuse notes a command that the server refused. MONITOR does not show such a command, so its reply must not be
// pushed: the reader of the stream would take it for that to the next one. A key that nobody asked for may be refused.
func (p *prober) refuse(command, key string, err redis.Error) {
	if key != "" && p.match != nil && !p.match(key) && !strings.Contains(string(err), "to run the") {
		return
	}
	p.refused.add("%s is refused: %s", command, string(err))
}

// ran tells that the server ran a command, so that MONITOR shows it: it answered, or found another type.
func ran(err error) bool {
	var refused redis.Error
	return err == nil || errors.As(err, &refused) && strings.HasPrefix(string(refused), "WRONGTYPE")
}

// ask sends one command. What the server refuses is noted, and is no error: the reply is then absent.
func (p *prober) ask(ctx context.Context, key, command string, args ...any) (reply any, err error) {
	reply, err = redis.DoContext(p.conn, ctx, command, args...)
	var refused redis.Error
	if errors.As(err, &refused) && !ran(err) {
		p.refuse(command, key, refused)
		return nil, nil
	}
	return reply, err
}

// wonder asks for a key; it never waits.
func (p *prober) wonder(key traffic.Key) {
	key.Name = strings.Clone(key.Name)
	select {
	case p.wanted <- key:
	default:
	}
}

// mostKeysRead is how many keys are read at the start, none if the database has more.
const mostKeysRead = 20_000

const snapshotMark = "lockmigrate: the keys are read"

// run takes the snapshot, and then reads what the observer wonders about.
func (p *prober) run(ctx context.Context, db int) {
	defer close(p.answers)
	defer p.close()
	if err := p.snapshot(ctx); err != nil {
		return // the connection broke
	}
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-p.wanted:
			if id.DB != db {
				if _, err := redis.DoContext(p.conn, ctx, "SELECT", id.DB); err != nil {
					return
				}
				db = id.DB
			}
			if p.reads(ctx, []string{id.Name}) != nil {
				return
			}
		}
	}
}

// snapshot reads all keys of the database, if they are not too many. Without it, or without a part of it, the
// outcomes on a key are unknown until they are settled.
func (p *prober) snapshot(ctx context.Context) error {
	size, err := p.ask(ctx, "", "DBSIZE")
	if n, ok := size.(int64); err != nil || !ok || n > mostKeysRead {
		return err
	}
	if ok, err := p.mark(ctx, "begin"); err != nil || !ok {
		return err
	}
	cursor := "0"
	for n := 0; n <= 5*mostKeysRead; {
		reply, err := p.ask(ctx, "", "SCAN", cursor, "COUNT", 200)
		page, ok := reply.([]any)
		if err != nil || !ok {
			return err
		}
		var keys []string
		if _, err := redis.Scan(page, &cursor, &keys); err != nil {
			return err
		}
		n += len(keys)
		if err := p.reads(ctx, keys); err != nil {
			return err
		}
		if cursor == "0" {
			if len(p.refused.all()) > 0 {
				return nil // not all keys were read
			}
			_, err := p.mark(ctx, "end")
			return err
		}
	}
	return nil
}

// mark puts a sign into the stream, and tells whether it stands there.
func (p *prober) mark(ctx context.Context, what string) (there bool, err error) {
	text := snapshotMark + " " + what
	reply, err := p.ask(ctx, "", "ECHO", text)
	if err != nil || reply == nil {
		return false, err
	}
	p.push(ctx, answer{"ECHO", text, reply, nil})
	return true, nil
}

// reads sends GET and PTTL for keys. Of one that is no string the first tells that it is there.
func (p *prober) reads(ctx context.Context, keys []string) error {
	for _, k := range keys {
		_ = p.conn.Send("GET", k)
		_ = p.conn.Send("PTTL", k)
	}
	p.sent.Add(int64(2 * len(keys)))
	if err := p.conn.Flush(); err != nil {
		return err
	}
	for _, k := range keys {
		for _, verb := range []string{"GET", "PTTL"} {
			reply, err := redis.ReceiveContext(p.conn, ctx)
			var refused redis.Error
			switch {
			case err != nil && !errors.As(err, &refused):
				return err
			case !ran(err):
				p.refuse(verb, k, refused)
				continue
			}
			p.push(ctx, answer{verb, k, reply, err})
		}
	}
	return ctx.Err()
}

func (p *prober) push(ctx context.Context, a answer) {
	select {
	case p.answers <- a:
	case <-ctx.Done():
	}
}

// take meets one of our own lines in the stream and takes in the reply that belongs to it.
func (p *prober) take(ctx context.Context, o *Observer, l *traffic.Command) error {
	word := l.Words[0]
	if mark := word == "ECHO" && len(l.Words) == 2 && strings.HasPrefix(l.Words[1], snapshotMark); !mark && word != "GET" && word != "PTTL" {
		return nil
	}
	ctx, done := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("a read of our own has no answer"))
	defer done()
	select {
	case a, more := <-p.answers:
		switch {
		case !more:
		case a.verb != word || a.key != l.Words[1]:
			return fmt.Errorf("the stream shows %s, but the answer is to %s", word, a.verb)
		default:
			p.learn(o, l, a)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *prober) learn(o *Observer, l *traffic.Command, a answer) {
	switch id := (traffic.Key{DB: l.DB, Name: a.key}); {
	case a.verb == "ECHO" && strings.HasSuffix(a.key, "begin"):
		o.Keys.Scanning(l.DB)
	case a.verb == "ECHO":
		o.Keys.Complete()
	case a.verb == "PTTL" && a.err == nil:
		if n, err := redis.Int64(a.reply, nil); err == nil {
			o.Keys.LearnTTL(id, l.At, n)
		}
	case a.verb == "GET" && a.err != nil:
		o.Keys.LearnThere(id)
	case a.verb == "GET" && a.reply == nil:
		o.Keys.LearnAbsent(id)
		o.settleBy(id)
	case a.verb == "GET":
		if text, err := redis.String(a.reply, nil); err == nil {
			o.Keys.Learn(id, text)
			o.settleBy(id)
		}
	}
}
