package endpoint

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		url  string
		want Endpoint
		text string
	}{
		{"redis://localhost", Endpoint{Addrs: []string{"localhost:6379"}}, "redis://localhost:6379/0"},
		{"redis://localhost:6380/3", Endpoint{Addrs: []string{"localhost:6380"}, DB: 3}, "redis://localhost:6380/3"},
		{"REDIS://h:1/", Endpoint{Addrs: []string{"h:1"}}, "redis://h:1/0"},
		{"redis://h?db=7", Endpoint{Addrs: []string{"h:6379"}, DB: 7}, "redis://h:6379/7"},
		{"redis://:secret@h:1", Endpoint{Addrs: []string{"h:1"}, password: "secret"}, "redis://h:1/0"},
		{"redis://secret@h:1", Endpoint{Addrs: []string{"h:1"}, password: "secret"}, "redis://h:1/0"},
		{"redis://joe:se%3Acr%2fet%40@h:1", Endpoint{Addrs: []string{"h:1"}, User: "joe", password: "se:cr/et@"}, "redis://joe@h:1/0"},
		{"redis://joe:a:b@h:1", Endpoint{Addrs: []string{"h:1"}, User: "joe", password: "a:b"}, "redis://joe@h:1/0"},
		{"redis://joe:a@b@h:1", Endpoint{Addrs: []string{"h:1"}, User: "joe", password: "a@b"}, "redis://joe@h:1/0"},
		{"redis://[::1]:6380/1", Endpoint{Addrs: []string{"[::1]:6380"}, DB: 1}, "redis://[::1]:6380/1"},
		{"redis://[::1]", Endpoint{Addrs: []string{"[::1]:6379"}}, "redis://[::1]:6379/0"},
		{"redis+sentinel://a,b:2,a:26379/orders?db=2", Endpoint{Kind: Sentinel, Addrs: []string{"a:26379", "b:2"}, Master: "orders", DB: 2}, "redis+sentinel://a:26379,b:2/orders?db=2"},
		{"redis+sentinel://:pw@a/m?sentinel_password=s%20p&sentinel_user=u", Endpoint{Kind: Sentinel, Addrs: []string{"a:26379"}, Master: "m", password: "pw", sentinelUser: "u", sentinelPass: "s p"}, "redis+sentinel://a:26379/m?db=0"},
		{"redis+cluster://a:7000,b:7001", Endpoint{Kind: Cluster, Addrs: []string{"a:7000", "b:7001"}}, "redis+cluster://a:7000,b:7001"},
		{"redis+cluster://a/0", Endpoint{Kind: Cluster, Addrs: []string{"a:6379"}}, "redis+cluster://a:6379"},
		{"unix:///run/redis%20a.sock", Endpoint{Addrs: []string{"/run/redis a.sock"}, unix: true}, "unix:///run/redis a.sock?db=0"},
		{"unix://joe:pw@/run/r.sock?db=2", Endpoint{Addrs: []string{"/run/r.sock"}, User: "joe", password: "pw", DB: 2, unix: true}, "unix://joe@/run/r.sock?db=2"},
	} {
		t.Run(c.url, func(t *testing.T) {
			got, err := Parse(c.url, TLSFiles{})
			require.NoError(t, err)
			assert.Equal(t, &c.want, got)
			assert.Equal(t, c.text, got.String())
		})
	}
}

func TestParseTLS(t *testing.T) {
	for _, url := range []string{"rediss://h:1", "rediss+sentinel://h/m", "rediss+cluster://h"} {
		e, err := Parse(url, TLSFiles{Insecure: true})
		require.NoError(t, err, url)
		require.True(t, e.TLS(), url)
		assert.True(t, e.tls.InsecureSkipVerify, url)
		assert.True(t, strings.HasPrefix(e.String(), "rediss"), e.String())
	}
	_, err := Parse("redis://h:1", TLSFiles{Insecure: true})
	assert.EqualError(t, err, "--tls-insecure is given, but the server URL does not use TLS")
	_, err = Parse("rediss://h:1", TLSFiles{Cert: "x"})
	assert.EqualError(t, err, "only one of --tls-cert and --tls-key is given")
	_, err = Parse("rediss://h:1", TLSFiles{CA: "no-such-file"})
	assert.EqualError(t, err, "--tls-ca: open no-such-file: no such file or directory")
}

func TestParseErrors(t *testing.T) {
	for url, want := range map[string]string{
		"":                                       "the server URL has no scheme",
		"localhost:6379":                         "the server URL has no scheme",
		"http://h":                               "the server URL has an unknown scheme",
		"redis+tcp://h":                          "the server URL has an unknown scheme",
		"redis://":                               "the server URL has no host",
		"redis://:6379":                          "the server URL has no host",
		"redis://h:":                             "the server URL has no valid port",
		"redis://h:0":                            "the server URL has no valid port",
		"redis://h:65536":                        "the server URL has no valid port",
		"redis://h:1/x":                          "the server URL has no valid database",
		"redis://h:1/-1":                         "the server URL has no valid database",
		"redis://h:1?color=red":                  "the server URL has a parameter that means nothing here",
		"redis://a,b":                            "the server URL names 2 hosts",
		"redis://::1":                            "the server URL has more than one colon in a host",
		"redis://[::1":                           "the server URL has an IPv6 address that cannot be read",
		"redis://h h":                            "the server URL holds a blank or control character at byte 9",
		"redis://joe@:h":                         "the server URL has no host",
		"redis://joe:@h":                         "the server URL names a user but no password",
		"redis://:pass%zzword@h":                 "the server URL has a % in its user information that no two hexadecimal digits follow",
		"redis://:hunter2/x@h":                   "the server URL has an @ behind its first / or ?",
		"redis://:hunter2?x@h":                   "the server URL has an @ behind its first / or ?",
		"redis://:hunter2#x@h":                   "the server URL has a part after a #",
		"unix://host/x.sock":                     "the server URL names no socket by a whole path",
		"unix://":                                "the server URL names no socket by a whole path",
		"unix+cluster:///x":                      "the server URL has an unknown scheme",
		"redis+sentinel://h":                     "the server URL names no master",
		"redis+cluster://h/3":                    "the server URL names a database, but a cluster has only number 0",
		"redis+sentinel://h/m?db=x":              "the server URL has no valid database",
		"hunter2@redis://h":                      "the server URL has an unknown scheme",
		"redis://h:" + strings.Repeat("1", 9000): "the server URL is longer than 8192 bytes",
	} {
		_, err := Parse(url, TLSFiles{})
		var usage *Error
		if assert.ErrorAs(t, err, &usage, "%.60s", url) {
			assert.Equal(t, want, usage.Error(), "%.60s", url)
			assert.True(t, usage.Usage())
			assert.NotEmpty(t, usage.Hint(), "%.60s", url)
			assert.NotContains(t, usage.Error()+usage.Hint(), "hunter2")
		}
	}
}

// FuzzParse: no URL makes the parser panic or accept nonsense, and no error shows a password. What it
// accepts, it prints as a URL without password that it reads the same again.
func FuzzParse(f *testing.F) {
	f.Add("redis://joe:%s@host:6379/0")
	f.Add("rediss://%s@host")
	f.Add("redis+sentinel://:%s@a:1,b:2/master?db=3&sentinel_password=%s")
	f.Add("redis+cluster://u:%s@[::1]:7000,b")
	f.Add("%s@redis://h")
	f.Add("redis://h/%s@h")
	f.Add("redis://h?password=%s")
	const secret = "hUnTeR2"
	f.Fuzz(func(t *testing.T, form string) {
		url := strings.ReplaceAll(form, "%s", secret)
		e, err := Parse(url, TLSFiles{})
		if err != nil {
			var bad *Error
			require.False(t, !errors.As(err, &bad) || !bad.Usage() || bad.Hint() == "", "%q: not a usage error with a hint: %v", url, err)
			require.False(t, strings.Contains(bad.Error()+bad.Hint(), secret), "%q: the error shows the password: %v: %s", url, bad, bad.Hint())
			return
		}
		text := e.String()
		require.False(t, e.password == secret && strings.Count(url, secret) == 1 && strings.Contains(text, secret), "%q: prints its password: %s", url, text)
		if e.User != "" || strings.Contains(e.Master, "%") || strings.ContainsAny(e.Master, "/?#@") {
			return // a user without a password is refused; escapes in names are not written back
		}
		again, err := Parse(text, TLSFiles{})
		require.NoError(t, err, "%q: printed as %q, which does not parse", url, text)
		require.True(t, again.String() == text, "%q: printed as %q, then as %q", url, text, again)
	})
}
