package endpoint

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

// hold takes and gives back a lock of each kind over a URL.
func hold(t *testing.T, url string, files TLSFiles) {
	t.Helper()
	e, err := Parse(url, files)
	require.NoError(t, err)
	pool, err := e.Locks()
	require.NoError(t, err)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mode redistest.Mode
	m, err := modern.New(pool, modern.Options{FenceTTL: time.Minute, Observer: mode.Observe})
	require.NoError(t, err)
	defer m.Close()
	l, err := legacy.New(pool, legacy.Options{})
	require.NoError(t, err)
	defer l.Close()
	for _, key := range []string{"a", "b", "c"} { // in three slots
		require.NoError(t, m.Do(ctx, "modern:"+key, func(context.Context) error { return nil }))
		require.NoError(t, l.Do(ctx, "legacy:"+key, func(context.Context) error { return nil }))
	}
	// Waiting too: it has connections of its own.
	k, err := m.Acquire(ctx, "modern:a")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() { waiting <- m.Do(ctx, "modern:a", func(context.Context) error { return nil }) }()
	redistest.Await(t, "a waiter", 5*time.Second, func() bool { return mode.Is() == "tracking" })
	require.NoError(t, k.Release(ctx))
	require.NoError(t, <-waiting)
}

func TestLocksOverTLSWithACertificateAndAnACLUser(t *testing.T) {
	certs := redistest.NewCertificates(t)
	s := redistest.TLS(t, certs)
	s.Do("ACL", "SETUSER", "locks", "on", ">p@ss:w/rd", "~*", "&*", "+@all", "-@dangerous", "+client", "+info")
	s.Do("ACL", "SETUSER", "default", "nopass", "on")
	hold(t, "rediss://locks:p%40ss%3Aw%2Frd@"+s.Addr, TLSFiles{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey})
}

func TestLocksOverAClusterWithTLSAndAnACLUser(t *testing.T) {
	certs := redistest.NewCertificates(t)
	c := redistest.NewTLSCluster(t, certs, 3)
	for _, s := range c.Masters {
		s.Do("ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all", "-@dangerous", "+client", "+info", "+cluster|slots")
	}
	url := "rediss+cluster://locks:secret@" + strings.Join(c.Addrs(), ",")
	hold(t, url, TLSFiles{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey})
}

func TestLocksOverSentinels(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 1)
	hold(t, g.URL(), TLSFiles{})
}
