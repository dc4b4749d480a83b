package wire

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// refusal is a server's refusal for want of a right. The server does not say which key, and before 7.2 it does
// not say which command of a script; the command that was sent tells.
type refusal struct {
	cause redis.Error
	what  string
}

func (r *refusal) Error() string { return string(r.cause) + ": " + r.what }
func (r *refusal) Unwrap() error { return r.cause }

// Missing says which right it is.
func (r *refusal) Missing() string { return r.what }

// scriptLine finds the line of a script in an error: @user_script:12 or user_script:12:.
var scriptLine = regexp.MustCompile(`user_script:(\d+)`)

// called finds the commands that a line of a script runs.
var called = regexp.MustCompile(`redis\.p?call\('(\w+)'`)

// Explain adds to a refusal which right is missing, or that the server is too old for the script. Any other error, and nil, is returned as it is.
func (r *Request) Explain(err error) error {
	if err == nil {
		return nil
	}
	var refused redis.Error
	if !errors.As(err, &refused) {
		return err
	}
	text := string(refused)
	if r.Script != nil {
		if old := servers.Old(refused, r.Script.Name); old != nil {
			return old
		}
	}
	switch {
	case strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "keys"), strings.Contains(text, "access at least one of the keys"):
		return &refusal{refused, "the user needs each of the keys " + strings.Join(r.keys(), " ")}
	case strings.Contains(text, "Unknown Redis command") && r.Script != nil:
		return &refusal{refused, fmt.Sprintf("%s runs %s", r.Script.Name, r.running(text, "does not exist there, or is renamed or disabled"))}
	case strings.Contains(text, "run this command") && r.Script != nil:
		return &refusal{refused, fmt.Sprintf("%s runs %s", r.Script.Name, r.running(text, "the user may not run"))}
	case strings.Contains(text, "channel") && (strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "executing the script")):
		return &refusal{refused, "the user needs the channel that " + r.what() + " publishes to, one of " + strings.Join(r.texts(), " ")}
	}
	return err
}

// keys are the keys of the request, quoted.
func (r *Request) keys() []string {
	var out []string
	add := func(v any) {
		if key, ok := v.(string); ok {
			if key = quote(key); !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	if r.Script != nil && r.n > 2 {
		n, _ := r.args[1].(int)
		for i := 2; i < min(2+n, r.n); i++ {
			add(r.args[i])
		}
	} else if key, keyed := topology.KeyOf(r.Name, r.Args()); keyed {
		add(key)
	}
	return out
}

// what names the command, or the script behind it.
func (r *Request) what() string {
	if r.Script != nil {
		return r.Script.Name
	}
	return r.Name
}

// texts are all arguments that may be names of channels, quoted.
func (r *Request) texts() []string {
	var out []string
	for i := range r.n {
		if text, ok := r.args[i].(string); ok && strings.Contains(text, ":") && (r.Script == nil || i > 0) {
			out = append(out, quote(text))
		}
	}
	return out
}

// running names the command that the script was about to run, by the line that the error names; without one,
// all that it may run.
func (r *Request) running(text, trouble string) string {
	lines := strings.Split(r.Script.Source, "\n")
	source := r.Script.Source
	if m := scriptLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= len(lines) {
			source = lines[n-1]
		}
	}
	var names []string
	for _, m := range called.FindAllStringSubmatch(source, -1) {
		if name := strings.ToUpper(m[1]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "a command that " + trouble
	}
	if len(names) == 1 {
		return names[0] + ", which " + trouble
	}
	return strings.Join(names, ", ") + ", one of them " + trouble
}

// quote cuts a key to a readable length.
func quote(key string) string {
	if len(key) > 120 {
		return strconv.Quote(key[:120]) + "..."
	}
	return strconv.Quote(key)
}
