package sidecar

import (
	"context"
	"crypto/sha1" // a name, not a protection
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// A script's text goes with each command, as EVAL: with EVALSHA the server could answer NOSCRIPT, which the proxy would not
// see and the client not understand. It costs the server some microseconds to read. Where the server has functions (Redis 7,
// Valkey), the scripts are a library there, which is persistent and replicated, and a command is an FCALL.

// appendRequest appends a command. With five keys and one argument it stays within the ten words that a server allows before AUTH, also
// where it names a database: the script selects that one itself.
func appendRequest(out []byte, c protocol.Command, function bool, database string) []byte {
	request, err := wire.RequestOf(c)
	if err != nil { // no such op: a mistake in this package
		panic(err)
	}
	args, how := request.Args(), calls[request.Script]
	count := 1 + len(args)
	if database != "" {
		count++
	}
	out = append(out, '*')
	out = strconv.AppendInt(out, int64(count), 10)
	out = append(out, "\r\n"...)
	if function {
		out = append(out, how.fcall...)
	} else {
		out = append(out, how.eval...)
	}
	for _, arg := range args[1:] {
		switch v := arg.(type) {
		case string:
			out = appendWord(out, v)
		case int:
			out = appendWord(out, strconv.Itoa(v))
		}
	}
	if database != "" {
		out = appendWord(out, database)
	}
	return out
}

func appendWord(out []byte, word string) []byte {
	out = append(out, '$')
	out = strconv.AppendInt(out, int64(len(word)), 10)
	return append(append(append(out, "\r\n"...), word...), "\r\n"...)
}

// call is how a script is called, up to the number of keys.
type call struct{ eval, fcall []byte }

// calls are the scripts of the service's commands; library is all of them as functions.
var calls, library, libraryName = func() (map[*scripts.Script]call, string, string) {
	var code strings.Builder
	all, digest := map[*scripts.Script]call{}, sha1.New()
	for _, s := range scripts.All() {
		if strings.HasPrefix(s.Name, "sidecar_") {
			digest.Write([]byte(s.Source))
		}
	}
	version := hex.EncodeToString(digest.Sum(nil))[:10]
	library := "lockmigrate_sidecar_" + version
	fmt.Fprintf(&code, "#!lua name=%s\n", library)
	for _, s := range scripts.All() {
		if !strings.HasPrefix(s.Name, "sidecar_") {
			continue
		}
		name, text := s.Function(version), s.Bare()
		fmt.Fprintf(&code, "redis.register_function('%s', function(KEYS, ARGV)\n%send)\n", name, text)
		all[s] = call{appendWord(appendWord(nil, "EVAL"), text), appendWord(appendWord(nil, "FCALL"), name)}
	}
	return all, code.String(), library
}()

// FunctionGone tells that the server did not know a function, as after FUNCTION FLUSH: from now on each command carries its script, until
// the functions are loaded again, at once.
func (s *Sidecar) FunctionGone() {
	if s.functions.CompareAndSwap(true, false) {
		select {
		case s.flushed <- struct{}{}:
		default:
		}
	}
}

// loadFunctions makes sure that the server has the library, and tells whether it does. Final says that the server will not have it: it
// has no functions, or the sidecar's user may not ask for them. To ask again would only add to the server's log of denials.
func (s *Sidecar) loadFunctions(ctx context.Context) (loaded, final bool) {
	if _, one := s.opts.Pool.(*redis.Pool); !one {
		return false, true // of several servers one may be new, and would not have it
	}
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return false, false
	}
	defer conn.Close()
	there, err := redis.Values(redis.DoContext(conn, ctx, "FUNCTION", "LIST", "LIBRARYNAME", libraryName))
	if err == nil && len(there) == 0 {
		_, err = redis.DoContext(conn, ctx, "FUNCTION", "LOAD", "REPLACE", library)
	}
	var refused redis.Error
	if errors.As(err, &refused) && (strings.HasPrefix(string(refused), "NOPERM") || strings.HasPrefix(string(refused), "ERR unknown")) {
		if s.refused.CompareAndSwap(false, true) {
			s.opts.Log.Info("the server does not take the scripts as functions: each command carries its script", "reason", string(refused))
		}
		return false, true
	}
	return err == nil, false
}
