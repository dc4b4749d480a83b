package renewal_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/pipeline"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

type many struct {
	lease         renewal.Lease
	renewed, lost *atomic.Int64
	failed        *atomic.Int64
}

func (k *many) Key() string { return "k" }
func (k *many) Renewal() protocol.Command {
	return protocol.Command{Op: protocol.Extend, Key: "k", Value: "v", TTL: time.Minute}
}
func (k *many) Heard(reply protocol.Reply) renewal.Answer { return renewal.Extension(reply) }
func (k *many) Renewed(time.Duration)                     { k.renewed.Add(1) }
func (k *many) RenewalFailed(err error)                   { k.failed.Add(1) }
func (k *many) Lost(why renewal.Loss)                     { k.lost.Add(1) }

// slow serves commands in portions: n, then a pause.
func slow(conn net.Conn, served *atomic.Int64, rate int, sleep func(n int64)) {
	r := bufio.NewReaderSize(conn, 1<<20)
	w := bufio.NewWriter(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		var n int
		fmt.Sscanf(strings.TrimSpace(line), "*%d", &n)
		name := ""
		for i := range n {
			l, _ := r.ReadString('\n')
			var size int
			fmt.Sscanf(strings.TrimSpace(l), "$%d", &size)
			b := make([]byte, size+2)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			if i == 0 {
				name = string(b[:size])
			}
		}
		sleep(served.Add(1))
		if name == "PING" {
			w.WriteString("+PONG\r\n")
		} else {
			w.WriteString(":1\r\n")
		}
		w.Flush()
	}
}

type endless struct {
	net.Conn
	in chan []byte
}

func TestOverload(t *testing.T) {
	for _, c := range []struct {
		n, rate int
		ttl, reply time.Duration
	}{
		{10_000, 2000, 15 * time.Second, 5*time.Second},
		{10_000, 1000, 15 * time.Second, 5*time.Second},
		{10_000, 2000, 15 * time.Second, 3*time.Second},
		{10_000, 2000, 16 * time.Second, 4*time.Second},
		{10_000, 1000, 16 * time.Second, 4*time.Second},
		{1_000, 100, 16 * time.Second, 4*time.Second},
		{1_000, 100, 30 * time.Second, 5*time.Second},
		{3_000, 100, 60 * time.Second, 5*time.Second},
		{100_000, 10_000, 30 * time.Second, 5*time.Second},
		{100_000, 5_000, 30 * time.Second, 5*time.Second},
	} {
		t.Run(fmt.Sprintf("%d_%d_%v_%v", c.n, c.rate, c.ttl, c.reply), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var served, renewed, lost, failed atomic.Int64
				portion := int64(max(c.rate/100, 1))
				dial := func(context.Context) (redis.Conn, error) {
					ours, theirs := net.Pipe()
					go slow(theirs, &served, c.rate, func(n int64) {
						if n%portion == 0 {
							time.Sleep(time.Duration(portion) * time.Second / time.Duration(c.rate))
						}
					})
					return redis.NewConn(ours, 0, 0), nil
				}
				clock := renewal.NewClock()
				p := pipeline.New(pipeline.Options{Dial: dial, Now: clock.Now, ReplyTimeout: c.reply})
				r := renewal.New(renewal.Options{Now: clock.Now, Servers: []renewal.Batcher{p}, ReplyTimeout: c.reply})
				for range c.n {
					k := &many{renewed: &renewed, lost: &lost, failed: &failed}
					k.lease.Owner, k.lease.Span, k.lease.Every = k, c.ttl, c.ttl/3
					now := clock.Now()
					k.lease.Begin(now, now.Add(c.ttl))
					r.Add(&k.lease)
				}
				time.Sleep(4 * c.ttl)
				t.Logf("capacity in a TTL %.2f: lost %d, renewed %d, failed %d, served %d of %d", float64(c.rate)*c.ttl.Seconds()/float64(c.n), lost.Load(), renewed.Load(), failed.Load(), served.Load(), int(4*c.ttl.Seconds())*c.rate)
				r.Close()
				p.Close()
				p.Wait()
			})
		})
	}
}
