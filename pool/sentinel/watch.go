package sentinel

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// The sentinels publish that a master was replaced. A pool that hears of it asks for the table again at
// once: what one sentinel says is a reason to ask all of them, and no more.
const (
	switched = "+switch-master"

	pingEvery    = 10 * time.Second       // so that a sentinel that is cut off is noticed
	silence      = 25 * time.Second       // after which it is taken to be
	firstPause   = 100 * time.Millisecond // before a sentinel that cannot be reached is tried again; it doubles
	longestPause = 5 * time.Second
)

// watcher listens to every sentinel, from the pool's first use until it is closed.
type watcher struct {
	opts    Options
	refresh func() // has the table asked for again

	ctx     context.Context
	cancel  context.CancelFunc
	begun   sync.Once // or closed before
	running sync.WaitGroup
}

func (w *watcher) start() {
	w.begun.Do(func() {
		for _, addr := range w.opts.Addrs {
			w.running.Go(func() { w.follow(addr) })
		}
	})
}

func (w *watcher) close() {
	w.begun.Do(func() {})
	w.cancel()
	w.running.Wait()
}

// follow listens to one sentinel, and connects again when the connection breaks.
func (w *watcher) follow(addr string) {
	pause := firstPause
	for {
		if w.listen(addr) {
			pause = firstPause
		}
		if !topology.Sleep(w.ctx, pause) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// listen returns when the connection is broken, and tells whether there was one.
func (w *watcher) listen(addr string) (heard bool) {
	dialling, cancel := context.WithTimeout(w.ctx, askTimeout)
	conn, err := w.opts.DialSentinel(dialling, addr)
	cancel()
	if err != nil {
		return false
	}
	var closing sync.Once
	closeConn := func() { closing.Do(func() { _ = conn.Close() }) }
	defer closeConn()
	defer context.AfterFunc(w.ctx, closeConn)()
	channel := redis.PubSubConn{Conn: conn}
	if channel.Subscribe(switched) != nil {
		return false
	}
	over := make(chan struct{})
	var pinging sync.WaitGroup
	pinging.Go(func() {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				if channel.Ping("") != nil {
					return
				}
			}
		}
	})
	defer pinging.Wait()
	defer close(over)
	for {
		switch message := channel.ReceiveWithTimeout(silence).(type) {
		case error:
			return heard
		case redis.Subscription: // what was published before it, nobody heard
			heard = true
			w.refresh()
		case redis.Message: // name, address and port of the old master, and of the new one
			if name, _, _ := strings.Cut(string(message.Data), " "); name == w.opts.Master {
				w.refresh()
			}
		}
	}
}
