package endpoint

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func parsed(t *testing.T, url string, files TLSFiles) *Endpoint {
	t.Helper()
	e, err := Parse(url, files)
	require.NoError(t, err)
	return e
}

// writes dials an endpoint, and sets k there.
func writes(t *testing.T, e *Endpoint) {
	t.Helper()
	conn, err := e.Dial(context.Background())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Do("SET", "k", "v")
	require.NoError(t, err)
}

// dialError dials a URL and returns what goes wrong.
func dialError(t *testing.T, url string, files TLSFiles) *Error {
	t.Helper()
	e := parsed(t, url, files)
	conn, err := e.Dial(context.Background())
	if err == nil {
		_ = conn.Close()
		t.Fatalf("%s: connected", e)
	}
	var explained *Error
	require.ErrorAs(t, err, &explained)
	assert.NotEmpty(t, explained.Hint(), explained.Error())
	assert.False(t, explained.Usage(), explained.Error())
	assert.NotContains(t, explained.Error()+explained.Hint(), "\n")
	assert.NotContains(t, explained.Error()+explained.Hint(), "hunter2")
	return explained
}

func TestDial(t *testing.T) {
	redistest.EachTCP(t, func(t *testing.T, s *redistest.Server) {
		e := parsed(t, fmt.Sprintf("redis://%s/3", s.Addr), TLSFiles{})
		writes(t, e)
		assert.Empty(t, s.Value("k"), "database 0 has the key of database 3")
	})
}

func TestDialNobody(t *testing.T) {
	addr := redistest.FreeAddr(t)
	assert.EqualError(t, dialError(t, "redis://:hunter2@"+addr, TLSFiles{}), "cannot connect to "+addr+": connection refused")
	assert.Contains(t, dialError(t, "redis://no-such-host.invalid", TLSFiles{}).Error(), "cannot connect to no-such-host.invalid:6379: ")
}

func TestDialEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	require.NoError(t, err)
	defer l.Close()
	e := parsed(t, "redis://"+l.Addr().String(), TLSFiles{})

	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = e.Dial(ctx)
	assert.ErrorIs(t, err, context.Canceled)

	ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = e.Dial(ctx)
	assert.EqualError(t, err, "cannot connect to "+l.Addr().String()+": no answer in time")
}

func TestDialWrongPassword(t *testing.T) {
	s := redistest.Real(t, "--requirepass", "hunter2right")
	s.Do("ACL", "SETUSER", "joe", "on", ">hunter2joe", "~*", "+@all", "-ping")
	for url, want := range map[string]string{
		"redis://" + s.Addr:                       "the server wants a password",
		"redis://:hunter2@" + s.Addr:              "the server refuses the user and password",
		"redis://:hunter2%72ight@" + s.Addr:       "",
		"redis://joe:hunter2wrong@" + s.Addr:      "the server refuses the user and password",
		"redis://joe:hunter2joe@" + s.Addr:        "",
		"redis://:hunter2right@" + s.Addr + "/99": "the server has no database of that number",
	} {
		if want != "" {
			assert.EqualError(t, dialError(t, url, TLSFiles{}), want)
			continue
		}
		writes(t, parsed(t, url, TLSFiles{}))
	}
}

// TestDialNeverShowsThePassword: old servers and proxies answer an AUTH they do not know with its words.
func TestDialNeverShowsThePassword(t *testing.T) {
	for reply, want := range map[string]string{
		"-ERR unknown command 'AUTH', with args beginning with: 'hunter2'": "the server does not know a command that this needs",
		"-SOMETHING hunter2": "the server refuses to authenticate this client",
		"-ERR wrong number of arguments for 'auth' command hunter2": "the server knows no users, only a password",
		"-WRONGPASS hunter2": "the server refuses the user and password",
		"-LOADING hunter2":   "the server is loading its data",
		"-ERR Client sent AUTH, but no password is set hunter2": "the server has no password, but the URL gives one",
	} {
		addr := answer(t, reply)
		err := dialError(t, "redis://joe:hunter2@"+addr, TLSFiles{})
		assert.EqualError(t, err, want)
		for cause := err.Unwrap(); cause != nil; {
			assert.NotContains(t, cause.Error(), "hunter2")
			unwrapped, ok := cause.(interface{ Unwrap() error })
			if !ok {
				break
			}
			cause = unwrapped.Unwrap()
		}
	}
}

// answer serves one reply to whatever comes.
func answer(t *testing.T, reply string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = conn.Write([]byte(reply + "\r\n"))
			time.AfterFunc(time.Second, func() { _ = conn.Close() })
		}
	}()
	return l.Addr().String()
}

func TestExplain(t *testing.T) {
	for refusal, want := range map[string]string{
		"READONLY You can't write against a read only replica.":             "the server is a read-only replica",
		"LOADING Redis is loading the dataset in memory":                    "the server is loading its data",
		"NOPERM this user has no permissions to run the 'scan' command":     "this user may not run a command there (NOPERM this user has no permissions to run the 'scan' command)",
		"NOPERM this user has no permissions to access one of the keys":     "this user may not touch a key there (NOPERM this user has no permissions to access one of the keys)",
		"NOAUTH Authentication required.":                                   "the server wants a password",
		"MOVED 5061 10.0.0.1:7001":                                          "the server is part of a cluster",
		"WRONGTYPE Operation against a key holding the wrong kind of value": "a key holds another type than this command works with",
		"ERR max number of clients reached":                                 "the server has no connection left for another client",
		"DENIED Redis is running in protected mode because":                 "the server is in protected mode and takes no connections from other hosts",
		"ERR unknown command 'GETRANGE'":                                    "the server does not know the command GETRANGE",
		"ERR unknown command":                                               "the server does not know a command that this needs",
		"ERR something else":                                                "the server says: ERR something else",
	} {
		err := Explain(fmt.Errorf("wrapped: %w", redis.Error(refusal)))
		var explained *Error
		require.ErrorAs(t, err, &explained)
		assert.EqualError(t, err, want)
		assert.NotEmpty(t, explained.Hint())
		passes := regexp.MustCompile("replica|loading|connection left").MatchString(want)
		assert.Equal(t, []bool{!passes, !passes}, []bool{Lasting(redis.Error(refusal)), Lasting(err)}, refusal)
	}
	assert.NoError(t, Explain(nil))
	full := &fs.PathError{Op: "write", Path: "journal", Err: syscall.ENOSPC}
	assert.Equal(t, error(full), Explain(full), "a full disk is no server's")
	assert.Equal(t, context.Canceled, Explain(context.Canceled))
}

func TestDialTLS(t *testing.T) {
	certs := redistest.NewCertificates(t)
	pair, err := tls.LoadX509KeyPair(certs.Cert, certs.Key)
	require.NoError(t, err)
	serve := func(addr string, config *tls.Config) string {
		mini := miniredis.NewMiniRedis()
		if config == nil {
			require.NoError(t, mini.StartAddr(addr))
		} else {
			require.NoError(t, mini.StartAddrTLS(addr, config))
		}
		t.Cleanup(mini.Close)
		return mini.Addr()
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	here, elsewhere, plain := serve("127.0.0.1:0", config), serve("127.0.0.2:0", config), serve("127.0.0.1:0", nil)

	for _, files := range []TLSFiles{{CA: certs.CA}, {Insecure: true}, {Insecure: true, Cert: certs.Cert, Key: certs.Key}} {
		e := parsed(t, "rediss://"+here, files)
		writes(t, e)
		raw, err := e.DialRaw(context.Background(), here)
		require.NoError(t, err)
		_ = raw.Close()
	}
	to := "cannot connect to "
	stranger := dialError(t, "rediss://"+here, TLSFiles{})
	assert.EqualError(t, stranger, to+here+": its certificate is signed by an unknown authority")
	assert.True(t, Lasting(stranger))
	assert.EqualError(t, dialError(t, "rediss://"+elsewhere, TLSFiles{CA: certs.CA}), to+elsewhere+": its certificate is for localhost, 127.0.0.1, not for 127.0.0.2")
	assert.EqualError(t, dialError(t, "rediss://"+plain, TLSFiles{}), to+plain+": it closed the connection within the TLS handshake")
	notRedis := answer(t, "HTTP/1.1 400 Bad Request")
	assert.EqualError(t, dialError(t, "rediss://"+notRedis, TLSFiles{}), to+notRedis+": it does not speak TLS")
	assert.EqualError(t, dialError(t, "redis://"+notRedis, TLSFiles{}), to+notRedis+": it does not answer as a Redis server does")
	assert.Contains(t, dialError(t, "redis://"+here, TLSFiles{}).Hint(), "rediss://")
	wantsOurs := serve("127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert})
	assert.Contains(t, dialError(t, "rediss://"+wantsOurs, TLSFiles{Insecure: true}).Hint(), "--tls-cert")
}

// TestDialTLSOfRealServers: one without TLS waits for the end of what it takes for a line. One that wants a certificate of ours ends
// the connection after the handshake.
func TestDialTLSOfRealServers(t *testing.T) {
	t.Parallel()
	plain := redistest.Real(t)
	err := dialError(t, "rediss://"+plain.Addr, TLSFiles{Insecure: true})
	assert.EqualError(t, err, "cannot connect to "+plain.Addr+": no TLS handshake in time")
	assert.Contains(t, err.Hint(), "redis://")
	certs := redistest.NewCertificates(t)
	s := redistest.Shape{TLS: certs}.Start(t)
	for range 20 { // what the server says before it closes is lost at times
		err = dialError(t, "rediss://"+s.Addr, TLSFiles{CA: certs.CA})
		assert.Contains(t, err.Hint(), "--tls-cert", err.Error())
		assert.NotContains(t, err.Hint(), "rediss://", err.Error())
	}
}

func TestDialUnix(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "r.sock")
	redistest.Real(t, "--unixsocket", socket, "--requirepass", "hunter2")
	e := parsed(t, "unix://:hunter2@"+socket+"?db=3", TLSFiles{})
	writes(t, e)

	bare, err := e.DialBare(context.Background(), e.Addrs[0])
	require.NoError(t, err)
	defer bare.Close()
	_, err = bare.Write([]byte("GET k\r\n"))
	require.NoError(t, err)
	reply, err := bufio.NewReader(bare).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "-NOAUTH Authentication required.\r\n", reply, "no command was sent before")

	assert.EqualError(t, dialError(t, "unix:///no/such.sock", TLSFiles{}), "cannot connect to /no/such.sock: no such file or directory")
}
