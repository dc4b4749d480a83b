// Package endpoint turns the command line's server URLs into connections, and what goes wrong with them
// into one line that says what happened and what to do.
//
// # Forms
//
//	redis://[user:pass@]host[:port][/db]
//	rediss://...                                      the same over TLS
//	unix://[user:pass@]/path/of/socket[?db=0]
//	redis+sentinel://[user:pass@]h1[:p],h2[:p]/master[?db=0&sentinel_user=...&sentinel_password=...]
//	redis+cluster://[user:pass@]h1[:p],h2[:p]
//	rediss+sentinel://, rediss+cluster://             the same over TLS
//
// As with redis-cli, user information without a colon is a password, and %XX stands for a byte.
//
// # Passwords
//
// No error and no String ever holds any part of a URL that could be a password. That is why the parser is
// written out here: net/url quotes what it cannot parse, and an unescaped slash in a password puts its
// first half where a port should be.
package endpoint

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Kind says how the servers behind a URL belong together.
type Kind uint8

const (
	Single   Kind = iota // one server
	Sentinel             // the master that sentinels name
	Cluster              // the masters of a cluster
)

// maxURL bounds what the parser looks at.
const maxURL = 8 << 10

// Endpoint is where a URL leads. It is not changed after Parse and safe for concurrent use.
type Endpoint struct {
	Kind   Kind
	Addrs  []string // host:port each, or the path of a Unix socket; one unless Kind is Sentinel or Cluster
	DB     int
	Master string // the name that sentinels know the master by
	User   string

	password     string
	sentinelUser string
	sentinelPass string
	unix         bool
	tls          *tls.Config // nil without TLS
}

// Parse reads a URL. Every error is an *Error with Usage.
func Parse(text string, files TLSFiles) (*Endpoint, error) {
	e, err := parse(text)
	if err != nil {
		return nil, err
	}
	if e.tls == nil {
		return e, files.refuse()
	}
	config, err := files.config()
	if err != nil {
		return nil, err
	}
	e.tls = config
	return e, nil
}

// TLS tells whether connections are encrypted.
func (e *Endpoint) TLS() bool { return e.tls != nil }

// String names the endpoint without its passwords.
func (e *Endpoint) String() string {
	scheme, at := "redis", strings.Join(e.Addrs, ",")
	if e.tls != nil {
		scheme = "rediss"
	}
	if e.User != "" {
		at = e.User + "@" + at
	}
	switch {
	case e.unix:
		return fmt.Sprintf("unix://%s?db=%d", at, e.DB)
	case e.Kind == Sentinel:
		return fmt.Sprintf("%s+sentinel://%s/%s?db=%d", scheme, at, e.Master, e.DB)
	case e.Kind == Cluster:
		return fmt.Sprintf("%s+cluster://%s", scheme, at)
	}
	return fmt.Sprintf("%s://%s/%d", scheme, at, e.DB)
}

const example = "write it like redis://user:password@host:6379/0"

func parse(text string) (*Endpoint, error) {
	if len(text) > maxURL {
		return nil, badURL(example, "is longer than %d bytes", maxURL)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }); i >= 0 {
		return nil, badURL("write blanks and control characters as %XX", "holds a blank or control character at byte %d", i)
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return nil, badURL(example, "has no scheme")
	}
	s, known := schemes[strings.ToLower(scheme)]
	if !known { // it is not shown: in "secret@host://..." it would be the password
		return nil, badURL("use redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded", "has an unknown scheme")
	}
	e := &Endpoint{Kind: s.kind, unix: s.unix}
	if s.secure {
		e.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}

	if at := strings.IndexByte(rest, '#'); at >= 0 {
		return nil, badURL("write # in a password as %23", "has a part after a #")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Contains(path, "@") || strings.Contains(query, "@") && !strings.Contains(authority, "@") {
		return nil, badURL("in a password write / as %2F, ? as %3F and @ as %40", "has an @ behind its first / or ?")
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		if err := e.setUser(authority[:at]); err != nil {
			return nil, err
		}
		authority = authority[at+1:]
	}
	var err error
	if e.unix {
		err = e.setSocket(authority, path)
	} else if err = e.setAddrs(authority); err == nil {
		err = e.setPath(path)
	}
	if err != nil {
		return nil, err
	}
	return e, e.setQuery(query)
}

// schemes are what a URL may begin with.
var schemes = map[string]struct {
	kind         Kind
	unix, secure bool
}{
	"redis": {}, "rediss": {secure: true}, "unix": {unix: true},
	"redis+sentinel": {kind: Sentinel}, "rediss+sentinel": {kind: Sentinel, secure: true},
	"redis+cluster": {kind: Cluster}, "rediss+cluster": {kind: Cluster, secure: true},
}

func (e *Endpoint) setUser(info string) error {
	user, pass, both := strings.Cut(info, ":")
	if !both {
		user, pass = "", info
	}
	var ok1, ok2 bool
	e.User, ok1 = unescape(user)
	e.password, ok2 = unescape(pass)
	switch {
	case !ok1 || !ok2:
		return badURL("write a % in a password as %25", "has a %% in its user information that no two hexadecimal digits follow")
	case e.password == "" && e.User != "":
		return badURL(example, "names a user but no password")
	}
	return nil
}

func (e *Endpoint) setAddrs(authority string) error {
	port := "6379"
	if e.Kind == Sentinel {
		port = "26379"
	}
	hosts := strings.Split(authority, ",")
	if e.Kind == Single && len(hosts) > 1 {
		return badURL("use redis+sentinel:// or redis+cluster:// for more than one", "names %d hosts", len(hosts))
	}
	for _, h := range hosts {
		addr, err := address(h, port)
		if err != nil {
			return err
		}
		if !slices.Contains(e.Addrs, addr) {
			e.Addrs = append(e.Addrs, addr)
		}
	}
	return nil
}

// address completes host, host:port, [v6] or [v6]:port.
func address(text, defaultPort string) (string, error) {
	host, port := text, defaultPort
	if inside, ok := strings.CutPrefix(text, "["); ok {
		v6, after, closed := strings.Cut(inside, "]")
		if !closed || net.ParseIP(v6) == nil || after != "" && after[0] != ':' {
			return "", badURL("write it like redis://[::1]:6379/0", "has an IPv6 address that cannot be read")
		}
		host = v6
		if after != "" {
			port = after[1:]
		}
	} else if h, p, found := strings.Cut(text, ":"); found {
		if strings.Contains(p, ":") {
			return "", badURL("put an IPv6 address in brackets; in a password write : as %3A and @ as %40", "has more than one colon in a host")
		}
		host, port = h, p
	}
	if host == "" {
		return "", badURL(example, "has no host")
	}
	if strings.ContainsAny(host, `\"'<>^{}|%`+"`") || strings.ContainsFunc(host, func(r rune) bool { return r >= 0x80 }) {
		return "", badURL(example, "has a host with a character that no host has")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", badURL("write a number from 1 to 65535; in a password write / as %2F and @ as %40", "has no valid port")
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

func (e *Endpoint) setPath(path string) error {
	path = strings.TrimSuffix(path, "/")
	switch e.Kind {
	case Sentinel:
		name, ok := unescape(path)
		if !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return badURL("write it like redis+sentinel://host1:26379,host2:26379/mymaster?db=0", "names no master")
		}
		e.Master = name
		return nil
	case Cluster:
		if path != "" && path != "0" {
			return badURL("leave it away", "names a database, but a cluster has only number 0")
		}
		return nil
	default:
		return e.setDB(path)
	}
}

// setSocket reads the path of a Unix socket.
func (e *Endpoint) setSocket(host, path string) error {
	path, ok := unescape(path)
	if host != "" || !ok || path == "" {
		return badURL("write it like unix:///run/redis/redis.sock?db=0", "names no socket by a whole path")
	}
	e.Addrs = []string{"/" + path}
	return nil
}

func (e *Endpoint) setDB(text string) error {
	if text == "" {
		return nil
	}
	db, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return badURL("write a number, mostly 0 to 15: redis://host:6379/0", "has no valid database")
	}
	e.DB = int(db)
	return nil
}

// setQuery reads name=value pairs. Values are never shown, unknown names neither: somebody may have put a
// password there.
func (e *Endpoint) setQuery(query string) error {
	if query == "" {
		return nil
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, raw, _ := strings.Cut(pair, "=")
		value, ok := unescape(raw)
		if !ok {
			return badURL("write a % as %25", "has a %% after its ? that no two hexadecimal digits follow")
		}
		switch {
		case name == "db" && e.Kind != Cluster:
			if err := e.setDB(value); err != nil {
				return err
			}
		case name == "sentinel_user" && e.Kind == Sentinel:
			e.sentinelUser = value
		case name == "sentinel_password" && e.Kind == Sentinel:
			e.sentinelPass = value
		default:
			return badURL("after the ? there may be db=N; a user and a password stand before the host", "has a parameter that means nothing here")
		}
	}
	return nil
}

// unescape decodes %XX; ok is false for a % without them.
func unescape(text string) (plain string, ok bool) {
	plain, err := url.PathUnescape(text)
	return plain, err == nil
}

func badURL(hint, format string, args ...any) error {
	return &Error{What: "the server URL " + fmt.Sprintf(format, args...), Advice: hint, BadInput: true}
}
