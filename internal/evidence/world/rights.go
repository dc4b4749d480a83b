package world

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// rights are what ACL rules leave of all rights.
type rights struct {
	keys     []string // patterns
	commands map[string]bool
	channels bool
}

// dangerous are the commands of the category that the packages under test use.
var dangerous = []string{"INFO", "KEYS", "CLIENT", "CONFIG", "FLUSHALL", "CLUSTER"}

func rightsOf(rules string) *rights {
	r := &rights{commands: make(map[string]bool), channels: true}
	for _, rule := range strings.Fields(rules) {
		switch {
		case rule == "resetchannels":
			r.channels = false
		case rule == "-@dangerous":
			for _, name := range dangerous {
				r.commands[name] = true
			}
		case rule[0] == '-':
			r.commands[strings.ToUpper(rule[1:])] = true
		case rule[0] == '~':
			r.keys = append(r.keys, rule[1:])
		default:
			panic("world: the tests write no such rule of ACL, and Rights does not know it: " + rule)
		}
	}
	return r
}

// growing are the commands that take memory: without more of it they are refused.
var growing = map[string]bool{
	"SET": true, "SETNX": true, "GETSET": true, "SETEX": true, "PSETEX": true, "INCR": true, "INCRBY": true, "APPEND": true, "MSET": true,
	"HSET": true, "HMSET": true, "HSETNX": true, "HINCRBY": true, "ZADD": true, "ZINCRBY": true, "LPUSH": true, "RPUSH": true, "SADD": true,
}

// writing are the other commands that write.
var writing = map[string]bool{
	"DEL": true, "UNLINK": true, "EXPIRE": true, "PEXPIRE": true, "PEXPIREAT": true, "PERSIST": true, "HDEL": true, "ZREM": true,
	"GETDEL": true, "RENAME": true, "SPOP": true, "LPOP": true, "ZREMRANGEBYSCORE": true, "ZPOPMIN": true,
}

// keyless are the commands without a key.
var keyless = map[string]bool{
	"PING": true, "TIME": true, "INFO": true, "AUTH": true, "SELECT": true, "CLIENT": true, "SCRIPT": true, "CONFIG": true, "PUBLISH": true,
	"SUBSCRIBE": true, "UNSUBSCRIBE": true, "PUNSUBSCRIBE": true, "ECHO": true, "PUBSUB": true, "CLUSTER": true, "FLUSHALL": true, "MULTI": true, "EXEC": true, "DISCARD": true,
	"UNWATCH": true, "COMMAND": true, "KEYS": true, "SCAN": true, "HELLO": true, "ACL": true, "DBSIZE": true,
}

// keysOf returns the keys of a command.
func keysOf(words []string) []string {
	switch {
	case keyless[words[0]] || len(words) < 2:
		return nil
	case words[0] == "EVAL" || words[0] == "EVALSHA":
		n, _ := strconv.Atoi(words[2])
		return words[3:min(3+n, len(words))]
	case slices.Contains([]string{"DEL", "EXISTS", "MGET", "UNLINK", "WATCH"}, words[0]):
		return words[1:]
	}
	return words[1:2]
}

// refuses returns why the server does not run a command; "" where it does. The caller holds mu.
func (s *Server) refuses(words []string, full bool) fault {
	if full && growing[words[0]] {
		return "OOM command not allowed when used memory > 'maxmemory'."
	}
	if s.rights == nil {
		return ""
	}
	inScript := s.running != nil
	if s.rights.commands[words[0]] {
		if inScript {
			return "ERR The user executing the script can't run this command or subcommand"
		}
		return fault(fmt.Sprintf("NOPERM this user has no permissions to run the '%s' command", strings.ToLower(words[0])))
	}
	for _, key := range keysOf(words) {
		if !slices.ContainsFunc(s.rights.keys, func(pattern string) bool { return servers.Match(pattern, key) }) {
			if inScript {
				return "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments"
			}
			return "NOPERM this user has no permissions to access one of the keys used as arguments"
		}
	}
	if channel := words[0] == "SUBSCRIBE" || words[0] == "PUBLISH"; channel && !s.rights.channels {
		if inScript {
			return "ERR The user executing the script can't publish to the channel mentioned in the command"
		}
		return "NOPERM this user has no permissions to access one of the channels used as arguments"
	}
	return ""
}
