// Package pictures makes the pictures of the documents from what the tools really print and show: `make pictures`.
package pictures

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	work "github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var update = flag.Bool("update", false, "write docs/pictures")

// largest bounds a picture: documents load on slow lines too.
const largest = 250 << 10

// TestPictures makes the pictures of docs/pictures; with -update it leaves them there. Without it the fleet is quicker.
func TestPictures(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	redistest.Need(t, redistest.Browser)
	folder, act := t.TempDir(), "500ms"
	if *update {
		folder, act = filepath.Join("..", "..", "..", "..", "docs", "pictures"), "1800ms"
	}
	program := redistest.Built(t, redistest.Operators)
	b := redistest.NewChromium(t)

	t.Run("demo", func(t *testing.T) {
		demo := exec.Command(program, "demo", "--act", act)
		demo.Env = append(os.Environ(), "LOCKMIGRATE_REDIS=", "LOCKMIGRATE_CONFIG=")
		shown, err := demo.Output()
		require.NoError(t, err, "%s", shown)
		assert.True(t, strings.HasSuffix(string(shown), "\noverlaps: 0\n"), "%s", shown)
		if *update {
			require.NotContains(t, string(shown), "error", "this machine is too busy for a picture: make it again")
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, "demo.txt"), shown, 0o644))
	})
	t.Run("page", func(t *testing.T) {
		s := redistest.Real(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		run := func(args ...string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, program, append(args, "--redis", s.URL())...)
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
			cmd.WaitDelay = 5 * time.Second
			return cmd
		}
		fleet(ctx, t, s, func(args ...string) {
			out, err := run(args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
		page := run("serve", "--listen", "127.0.0.1:0", "--namespace", "orders", "--burst", "30s")
		stdout, err := page.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, page.Start())
		defer func() { cancel(); _ = page.Wait() }()
		url, err := bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
		go func() { _, _ = io.Copy(io.Discard, stdout) }()
		ready := "document.getElementById('fresh').textContent.startsWith('live ') && document.querySelector('#members td.kind') && document.querySelector('#clients td.kind')"
		if *update { // something on the charts
			ready += " && performance.now() > 40000"
		}
		b.Open(t, strings.TrimSpace(url), redistest.View{Width: 1100, Height: 900}, ready)
		b.Picture(t, filepath.Join(folder, "page.png"), 1100)
		b.Open(t, strings.TrimSpace(url), redistest.View{Width: 390, Height: 844, Dark: true}, strings.ReplaceAll(ready, "40000", "9000"))
		b.Picture(t, filepath.Join(folder, "page-phone.png"), 844)
	})
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(files), 3)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		assert.Greater(t, info.Size(), int64(2<<10), f.Name())
		assert.Less(t, info.Size(), int64(largest), f.Name())
	}
}

// fleet plays old clients with a connection and a clock each, and two Go services at stage bridge, until ctx ends.
func fleet(ctx context.Context, t *testing.T, s *redistest.Server, run func(args ...string)) {
	t.Helper()
	run("stage", "init", "--namespace", "orders", "--match", "lock.order.*", "--dialect", "jedis-ms", "--shortest-lease", "30s", "--execute")
	referee := work.NewReferee()
	pool := func(name string) *redis.Pool {
		p := &redis.Pool{MaxIdle: 5, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", s.Addr, redis.DialClientName(name))
		}}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	takesTurns := func(name string, think time.Duration, take work.Take) {
		turn := 0
		w := &work.Worker{
			Name: name, Take: take, Hold: func() time.Duration { return 15 * time.Millisecond }, Think: func() time.Duration { return think },
			Key: func() string { turn++; return fmt.Sprintf("lock.order.%d", 1+turn%2) },
		}
		w.Start(ctx, referee, 0)
		t.Cleanup(func() { w.Stop(); _ = w.Wait(context.Background()) })
	}
	for i, ahead := range []time.Duration{0, 2300 * time.Millisecond, -40 * time.Millisecond} {
		name := fmt.Sprintf("billing-%d", i+1)
		old := &work.Old{Pool: pool(name), Dialect: protocol.JedisMS, Lease: 30 * time.Second, Poll: 35 * time.Millisecond, Offset: ahead}
		takesTurns(name, 35*time.Millisecond, old.Acquire)
	}
	for i := range 2 {
		name := fmt.Sprintf("orders-%d", i+1)
		locker, err := compat.New(pool(name), compat.Options{Namespace: "orders", Member: name})
		require.NoError(t, err)
		require.NoError(t, locker.Ready(ctx))
		t.Cleanup(func() { _ = locker.Close() })
		takesTurns(name, 25*time.Millisecond, work.Of(locker.Acquire))
	}
	run("stage", "advance", "--namespace", "orders", "--to", "bridge", "--wait", "--execute")
}
