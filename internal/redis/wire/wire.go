// Package wire turns a machine's commands into redigo calls and the replies back: the one place that
// knows how a command looks to the server.
package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Do sends one command and waits at most timeout for its reply, and as long for a server that is busy with a script. A server's refusal comes back as a
// Fault with the error beside it; anything else that went wrong is Silence: the command may have run.
func Do(conn redis.Conn, timeout time.Duration, c protocol.Command) (protocol.Reply, error) {
	if c.Op == protocol.Commit {
		return commit(conn, timeout, c)
	}
	request, err := RequestOf(c)
	if err != nil {
		return Translate(nil, err)
	}
	raw, err := send(conn, timeout, request.Script, request.Name, request.Args())
	return Translate(raw, request.Explain(err))
}

// All is Do for several commands. They are sent together, so that a slow network costs one round trip and not one for each. Each is told
// the answers in their order, until it returns false. What the server has not run (the script is gone, the server is busy or another one)
// is then sent by itself.
func All(conn redis.Conn, timeout time.Duration, commands []protocol.Command, each func(i int, reply protocol.Reply, err error) bool) {
	requests, errs, raws := make([]Request, len(commands)), make([]error, len(commands)), make([]any, len(commands))
	for i := range commands {
		if errs[i] = requests[i].Of(&commands[i]); errs[i] == nil {
			errs[i] = conn.Send(requests[i].Name, requests[i].Args()...)
		}
	}
	_ = conn.Flush() // its error is the first reply's
	for i := range commands {
		if errs[i] == nil {
			raws[i], errs[i] = redis.ReceiveWithTimeout(conn, timeout)
		}
	}
	for i := range commands {
		reply, err := Translate(raws[i], requests[i].Explain(errs[i]))
		if IsNoScript(errs[i]) || reply.Kind == protocol.Fault && topology.Elsewhere(reply.Text) || topology.IsBusy(errs[i]) {
			reply, err = Do(conn, timeout, commands[i])
		}
		if !each(i, reply, err) {
			return
		}
	}
}

// send is one command and its reply. A script that the server does not know goes by its text. A server that says that it is busy is asked again until
// timeout is over.
func send(conn redis.Conn, timeout time.Duration, s *scripts.Script, name string, args []any) (raw any, err error) {
	var patience topology.Patience
	for {
		raw, err = redis.DoWithTimeout(conn, timeout, name, args...)
		switch {
		case s != nil && name == "EVALSHA" && IsNoScript(err):
			name, args[0] = "EVAL", s.Source
		case !topology.IsBusy(err) || !patience.Wait(context.Background(), timeout):
			return raw, err
		}
	}
}

// Translate reads a reply as redigo gives it. A script that answers with several values gives up to
// four integers and a text.
func Translate(raw any, err error) (protocol.Reply, error) {
	if err != nil {
		var refused redis.Error // only here: it is allocated
		var notRun *topology.NotRun
		switch {
		case errors.As(err, &refused):
			return protocol.Reply{Kind: protocol.Fault, Text: string(refused)}, err
		case errors.As(err, &notRun): // no server was reached: as good as a refusal
			return protocol.Reply{Kind: protocol.Fault, Text: notRun.Error()}, err
		}
		// A proxy's word for the server's: what it was still to pass on is a matter of its own machine, and of no time.
		over := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
		return protocol.Reply{Kind: protocol.Silence, Over: over}, err
	}
	switch v := raw.(type) {
	case nil:
		return protocol.Reply{Kind: protocol.Nil}, nil
	case int64:
		return protocol.Reply{Kind: protocol.Integer, Int: v}, nil
	case string:
		return protocol.Reply{Kind: protocol.Text, Text: v}, nil
	case []byte:
		return protocol.Reply{Kind: protocol.Text, Text: string(v)}, nil
	case []any:
		return several(v)
	default:
		return malformed(raw)
	}
}

// several reads the reply of a script that answers with more than one value.
func several(row []any) (protocol.Reply, error) {
	reply := protocol.Reply{Kind: protocol.Integer}
	integers := []*int64{&reply.Int, &reply.Int2, &reply.Int3, &reply.Int4}
	for _, element := range row {
		switch v := element.(type) {
		case int64:
			if len(integers) == 0 {
				return malformed(row)
			}
			*integers[0], integers = v, integers[1:]
		case []byte:
			reply.Text = string(v)
		case string:
			reply.Text = v
		default:
			return malformed(row)
		}
	}
	return reply, nil
}

func malformed(raw any) (protocol.Reply, error) {
	err := fmt.Errorf("unexpected reply of type %T", raw)
	return protocol.Reply{Kind: protocol.Fault, Text: err.Error()}, err
}

// commit takes over by transaction: MULTI, SET, EXEC. The SET goes out only after the server has accepted
// MULTI: behind one that was refused it would run by itself, whatever stands on the key by then.
func commit(conn redis.Conn, timeout time.Duration, c protocol.Command) (protocol.Reply, error) {
	if _, err := redis.DoWithTimeout(conn, timeout, "MULTI"); err != nil {
		GiveUp(conn)
		return Translate(nil, err)
	}
	request := Plain("SET", c.Key, c.Value)
	if s := script(&c); s != nil {
		request.call(s, &c)
		request.ByText() // inside MULTI a NOSCRIPT would come too late to send it again
	}
	if err := conn.Send(request.Name, request.Args()...); err != nil {
		return Translate(nil, err)
	}
	raw, err := redis.DoWithTimeout(conn, timeout, "EXEC")
	if err != nil { // Redis 5 keeps a transaction whose EXEC it refuses (BUSY), and refuses or queues this one too; 6.0 and later have discarded it
		if answer, _ := redis.String(redis.DoWithTimeout(conn, timeout, "UNWATCH")); answer != "OK" {
			GiveUp(conn)
		}
	}
	return executed(raw, err)
}

// GiveUp breaks a connection that is within WATCH or MULTI: nothing else may go over it. Its Close would ask the server to end that, and wait for the
// answer without a limit.
func GiveUp(conn redis.Conn) { _, _ = redis.DoWithTimeout(conn, time.Nanosecond, "UNWATCH") }

// executed reads the reply of EXEC: that of its only command, or nil when a watched key has changed.
func executed(raw any, err error) (protocol.Reply, error) {
	row, ok := raw.([]any)
	if err != nil || !ok || len(row) == 0 {
		return Translate(raw, err)
	}
	if refused, ok := row[0].(redis.Error); ok {
		return Translate(nil, refused)
	}
	return Translate(row[0], nil)
}

// Request is how a command looks on the wire: a plain command, or EVALSHA of a script. It holds its
// arguments in itself, so that making one allocates nothing but the boxes of the values.
type Request struct {
	Name   string
	Script *scripts.Script // nil for a plain command

	// AnswerLast asks that the messages which the command publishes be on their way before its reply is.
	AnswerLast bool

	args [24]any
	n    int
}

// Plain is a command of at most 24 arguments.
func Plain(name string, args ...any) (r Request) {
	r.plain(name, args...)
	return r
}

func (r *Request) plain(name string, args ...any) { r.Name, r.n = name, copy(r.args[:], args) }

// Args returns what follows the name; it is valid as long as the request.
func (r *Request) Args() []any { return r.args[:r.n] }

// Clear makes it as new, so that it can be spelled once more, and forgets its arguments.
func (r *Request) Clear() {
	clear(r.args[:r.n])
	r.Name, r.Script, r.AnswerLast, r.n = "", nil, false, 0
}

// ByText makes an EVALSHA an EVAL, for a server that has forgotten the script.
func (r *Request) ByText() {
	r.Name = "EVAL"
	r.args[0] = r.Script.Source
}

// Key returns the key that decides which server of a cluster the request goes to; every other key of it is
// in the same slot. It is empty where any server will do.
func (r *Request) Key() string {
	key, _ := topology.KeyOf(r.Name, r.Args())
	return key
}

// RequestOf spells a command out. Commit has no such form: it is three commands.
func RequestOf(c protocol.Command) (r Request, err error) {
	err = r.Of(&c)
	return r, err
}

// Of is RequestOf in place: a goroutine that acquires pays for each stack that has to grow.
func (r *Request) Of(c *protocol.Command) error {
	if s := script(c); s != nil {
		r.call(s, c)
		return nil
	}
	switch c.Op {
	case protocol.SetNX:
		r.plain("SETNX", c.Key, c.Value)
	case protocol.Get:
		r.plain("GET", c.Key)
	case protocol.GetSet:
		r.plain("GETSET", c.Key, c.Value)
	case protocol.Del:
		r.plain("DEL", c.Key)
	case protocol.Watch:
		r.plain("WATCH", c.Key)
	case protocol.Unwatch:
		r.plain("UNWATCH")
	case protocol.SetToken:
		r.plain("SET", c.Key, c.Value, "NX", "PX", milliseconds(c.TTL))
	case protocol.Unqueue:
		r.plain("ZREM", c.Queue, c.TokenEntry())
	case protocol.WaitReplicas:
		r.plain("WAIT", c.Count, milliseconds(c.TTL))
	default:
		return fmt.Errorf("wire: no command for op %d", c.Op)
	}
	return nil
}

// Eval runs a script by its digest, and by its text when the server does not know it.
func Eval(conn redis.Conn, timeout time.Duration, s *scripts.Script, values scripts.Values) (any, error) {
	args, err := s.Call(values)
	if err != nil {
		return nil, err
	}
	args = append([]any{s.ByDigest}, args...)
	raw, err := send(conn, timeout, s, "EVALSHA", args)
	request := Plain("EVAL", args[:2+args[1].(int)]...)
	request.Script = s
	return raw, request.Explain(err)
}

// IsNoScript tells that the server has forgotten a script (restart, SCRIPT FLUSH, failover).
func IsNoScript(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused) && strings.HasPrefix(string(refused), "NOSCRIPT")
}
