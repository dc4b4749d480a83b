package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// Error is a failure of a URL, a connection or a server, in words for the person at the command line.
type Error struct {
	What     string // one line
	Advice   string // what to do about it
	BadInput bool   // the command line is at fault, not the server
	Cause    error  // what stands behind it

	stays bool // the server is too old, or the two do not agree about TLS
}

func (e *Error) Error() string { return e.What }
func (e *Error) Unwrap() error { return e.Cause }

// Hint says what to do.
func (e *Error) Hint() string { return e.Advice }

// Usage tells that the command line is at fault.
func (e *Error) Usage() bool { return e.BadInput }

// refusal is an error reply of the server that has an answer, by the words that it begins with and holds.
type refusal struct {
	begins, holds string
	what, hint    string
	passes        bool // the server says so while it cannot serve yet, or for a moment
}

var refusals = []refusal{
	{"WRONGPASS", "", "the server refuses the user and password", "check them in the URL: redis://user:password@host, and write special characters as %XX", false},
	{"ERR", "invalid password", "the server refuses the password", "check it in the URL: redis://:password@host, and write special characters as %XX", false},
	{"ERR", "without any password configured", "the server has no password, but the URL gives one", "leave it out of the URL", false},
	{"ERR", "no password is set", "the server has no password, but the URL gives one", "leave it out of the URL", false},
	{"NOAUTH", "", "the server wants a password", "put it in the URL: redis://user:password@host (:password@host for the default user)", false},
	{"NOPERM", "channel", "this user may not use a channel there", "grant it, e.g. ACL SETUSER name allchannels, or use another user", false},
	{"NOPERM", "access", "this user may not touch a key there", "grant the keys, e.g. ACL SETUSER name ~*, or use another user", false},
	{"NOPERM", "", "this user may not run a command there", "grant the command with ACL SETUSER, or use another user; SECURITY.md lists all that each command needs", false},
	{"ERR", "user executing the script", "this user may not run a command of a server script", "grant what is named with ACL SETUSER, or use another user; SECURITY.md lists what each command needs", false},
	{"READONLY", "", "the server is a read-only replica", "name the master in the URL, or use redis+sentinel://", true},
	{"LOADING", "", "the server is loading its data", "wait until it has, and try again", true},
	{"MASTERDOWN", "", "the server is a replica that has lost its master", "name the master in the URL, or wait", true},
	{"MISCONF", "", "the server cannot save to disk and refuses writes", "see its log; CONFIG SET stop-writes-on-bgsave-error no lifts it", true},
	{"OOM", "", "the server is out of memory and refuses writes", "raise maxmemory, or remove keys", true},
	{"NOREPLICAS", "", "the server has too few replicas and refuses writes", "connect one, or see its min-replicas-to-write", true},
	{"BUSY", "", "a script is keeping the server busy", "wait, or end it with SCRIPT KILL", true},
	{"MOVED", "", "the server is part of a cluster", "use redis+cluster:// in the URL", false},
	{"CROSSSLOT", "", "the keys lie in different slots of a cluster", "give their names a common {hash tag}", false},
	{"CLUSTERDOWN", "", "the cluster is down", "see CLUSTER INFO on one of its nodes", true},
	{"TRYAGAIN", "", "the keys are moving between nodes of the cluster", "try again in a moment", true},
	{"DENIED", "", "the server is in protected mode and takes no connections from other hosts", "set a password there, or connect from its own host", false},
	{"WRONGTYPE", "", "a key holds another type than this command works with", "see what it holds with lockmigrate scan --all --match KEY", false},
	{"ERR", "max number of clients", "the server has no connection left for another client", "close some, or raise its maxclients", true},
	{"ERR", "DB index is out of range", "the server has no database of that number", "use a smaller one in the URL, mostly 0", false},
	{"ERR", "invalid DB index", "the server has no database of that number", "use a smaller one in the URL, mostly 0", false},
	{"ERR", "unknown command", "the server does not know a command that this needs", "it may be renamed or disabled there; the server may be too old for it; a sentinel or a proxy may lack it; lockmigrate doctor says what works there", false},
	{"ERR", "SELECT is not allowed in cluster mode", "the server is part of a cluster and has only database 0", "use redis+cluster:// in the URL", false},
}

// refusalOf finds the answer to an error reply; without one it has no words.
func refusalOf(text string) refusal {
	for _, r := range refusals {
		if strings.HasPrefix(text, r.begins) && strings.Contains(text, r.holds) {
			return r
		}
	}
	return refusal{}
}

// Explain turns an error of a connection or server into an *Error that has an answer where there is one.
// It returns the error itself where it is one already, where a context was cancelled, and where neither a
// server nor a connection stands behind it; and nil for nil.
func Explain(err error) error {
	var explained *Error
	var refused redis.Error
	var network net.Error
	var old *servers.TooOld
	var file *fs.PathError // it passes for a net.Error
	switch {
	case err == nil, errors.As(err, &explained), errors.As(err, &file), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &old):
		return &Error{What: old.What(), Advice: old.Instead(), Cause: err, stays: true}
	case errors.As(err, &refused):
		return explainRefusal(refused, err)
	case errors.As(err, &network), closed(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), strings.HasPrefix(err.Error(), "redigo: "):
		return explainIO("the connection to the server broke", err)
	default:
		return err
	}
}

func explainRefusal(refused redis.Error, cause error) error {
	text := string(refused)
	r := refusalOf(text)
	if r.what == "" {
		return &Error{What: "the server says: " + text, Advice: "this command cannot go on", Cause: cause}
	}
	if m := unknownCommand.FindStringSubmatch(text); r.holds == "unknown command" && m != nil {
		r.what = "the server does not know the command " + strings.ToUpper(m[1])
	}
	if r.begins == "NOPERM" || strings.Contains(r.holds, "executing") { // names the command, the keys or the channel
		r.what += " (" + text + missing(cause) + ")"
	}
	return &Error{What: r.what, Advice: r.hint, Cause: cause}
}

// unknownCommand finds the name in "ERR unknown command 'AUTH', with args beginning with: ...". The arguments may be
// a password: they are never shown.
var unknownCommand = regexp.MustCompile("unknown command ['`\"]?([A-Za-z0-9|._-]+)")

// missing says which right an error knows to be missing, beyond the server's words.
func missing(err error) string {
	var knows interface{ Missing() string }
	if errors.As(err, &knows) {
		return ": " + knows.Missing()
	}
	return ""
}

// explainIO says what a failure below the protocol means.
func explainIO(what string, err error) error {
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		alert     *net.OpError
		secure    *tlsError
		timeout   net.Error
		system    syscall.Errno
	)
	reason, hint, stays := err.Error(), "check the address, and that a server is running there", false
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
	errors.As(err, &secure)
	switch {
	case secure != nil && !secure.shaken && (late || closed(err)): // a Redis that speaks none waits for the end of a line
		reason = map[bool]string{true: "no TLS handshake in time", false: "it closed the connection within the TLS handshake"}[late]
		hint = "it may not speak TLS there: write redis:// instead of rediss://, or use its TLS port"
	case late:
		reason, hint = "no answer in time", "check the address, firewalls between, and whether the server is overloaded"
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "choose another address, or stop what listens there"
	case errors.As(err, &dns):
		reason, hint = "no such host", "check its name"
		if !dns.IsNotFound {
			reason = "its name cannot be looked up"
		}
	case errors.As(err, &authority):
		reason, hint, stays = "its certificate is signed by an unknown authority", "name the authority's certificate with --tls-ca FILE", true
	case errors.As(err, &hostname):
		reason, stays = fmt.Sprintf("its certificate is for %s, not for %s", namesOf(hostname.Certificate), hostname.Host), true
		hint = "use a name that the certificate has: in the URL, or as what a cluster's node or a sentinel announces"
	case errors.As(err, &invalid):
		reason, hint, stays = "its certificate is not valid: "+invalid.Error(), "renew it, or check this host's clock", true
	case errors.As(err, &record):
		reason, hint, stays = "it does not speak TLS", "write redis:// instead of rediss://, or use its TLS port", true
	case errors.As(err, &alert) && alert.Op == "remote error": // crypto/tls has no type for what the peer says
		reason, hint = "it refuses this client: "+alert.Err.Error(), "it may want a certificate of ours: --tls-cert FILE --tls-key FILE"
	case closed(err) && secure != nil:
		reason, hint = "it closed the connection after the TLS handshake", "see its log; it may want a certificate of ours: --tls-cert FILE --tls-key FILE"
	case closed(err):
		reason, hint = "it closed the connection", "see its log; if it wants TLS, write rediss:// instead of redis://"
	case strings.HasPrefix(reason, "redigo: "):
		reason, hint = "it does not answer as a Redis server does", "check the address and the port: something else listens there, or a proxy in between has failed"
	case errors.As(err, &system):
		reason = system.Error()
	}
	return &Error{What: what + ": " + reason, Advice: hint, Cause: err, stays: stays}
}

// namesOf are the first names and addresses that a certificate is for.
func namesOf(c *x509.Certificate) string {
	names := c.DNSNames
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) > 5 {
		names = append(names[:5:5], "others")
	}
	return cmp.Or(strings.Join(names, ", "), "no name")
}

// Lasting tells that a failure stays until somebody changes the command line or the server's settings. To try again is no use.
func Lasting(err error) bool {
	var refused redis.Error
	if errors.As(err, &refused) {
		return !refusalOf(string(refused)).passes
	}
	var explained *Error
	return errors.As(Explain(err), &explained) && (explained.BadInput || explained.stays)
}

// tlsError is a failure to connect over TLS: within the handshake, or, shaken, after it.
type tlsError struct {
	error
	shaken bool
}

func (e *tlsError) Unwrap() error { return e.error }

func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
