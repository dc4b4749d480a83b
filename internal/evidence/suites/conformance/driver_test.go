package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/conformance"
	"github.com/lockmigrate/lockmigrate/internal/operate/link"
)

// TestMain is the tests, or the driver that they start: see driver.
func TestMain(m *testing.M) {
	if wrong, is := os.LookupEnv("LOCKMIGRATE_DRIVER"); is {
		drive(wrongs[wrong])
		return
	}
	redistest.Main(m)
}

// golang is the command of the Go library's driver: this program. With the name of something that it does wrong it is another implementation.
func golang(wrong string) []string { return []string{"env", "LOCKMIGRATE_DRIVER=" + wrong, os.Args[0]} }

// request is what the kit asks.
type request struct {
	ID        int    `json:"id"`
	Do        string `json:"do"`
	Locker    string `json:"locker"`
	Lock      string `json:"lock"`
	Key       string `json:"key"`
	Redis     string `json:"redis"`
	Namespace string `json:"namespace"`
	Member    string `json:"member"`
	TTL       int64  `json:"ttl_ms"`
	Lease     int64  `json:"lease_ms"`
	Reply     int64  `json:"reply_ms"`
	FenceTTL  int64  `json:"fence_ttl_ms"`
	Wait      int64  `json:"wait_ms"`
}

type answer map[string]any

// driver is the Go library behind the line protocol of docs/conformance.md. It has everything that the kit has opened.
type driver struct {
	wrong          *wrong      // nil: right
	out            *log.Logger // whole lines, from any goroutine
	lockers, locks sync.Map    // by the kit's name: compat.Locker, lockmigrate.Lock
}

// drive answers the kit until it has no more to ask.
func drive(w *wrong) {
	d := &driver{wrong: w, out: log.New(os.Stdout, "", 0)}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			os.Exit(2)
		}
		go func() {
			a, err := d.do(r)
			if a == nil {
				a = answer{}
			}
			if a["id"] = r.ID; err != nil {
				a["error"], a["text"] = conformance.WordOf(err), err.Error()
			} else {
				a["ok"] = true
			}
			d.say(a)
		}()
	}
}

func (d *driver) say(a answer) {
	text, _ := json.Marshal(a)
	d.out.Print(string(text))
}

var errUnknown = errors.New("no such locker or lock")

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (d *driver) do(r request) (answer, error) {
	ctx := context.Background()
	opened, _ := d.lockers.Load(r.Locker)
	taken, _ := d.locks.Load(r.Lock)
	locker, _ := opened.(compat.Locker)
	lock, _ := taken.(lockmigrate.Lock)
	switch r.Do {
	case "hello":
		return answer{"name": "lockmigrate", "version": "0.1.0", "language": "go", "levels": []int{1, 2, 3, 4}, "can": []string{"legacy", "queue", "fence"}}, nil
	case "open":
		return nil, d.open(ctx, r)
	}
	switch {
	case r.Do == "acquire" && locker != nil:
		lock, err := conformance.Attempt(ctx, locker, r.Key, ms(r.Wait))
		if err != nil {
			return nil, err
		}
		d.locks.Store(r.Lock, lock)
		context.AfterFunc(lock.Context(), func() {
			if cause := context.Cause(lock.Context()); errors.Is(cause, lockmigrate.ErrLost) && !d.wrong.deaf() {
				d.say(answer{"event": "lost", "lock": r.Lock, "reason": cause.Error()})
			}
		})
		return answer{"token": lock.Token(), "fence": lock.Fence(), "stage": lock.Stage().String()}, nil
	case r.Do == "close" && locker != nil:
		return nil, locker.Close()
	case r.Do == "check" && lock != nil:
		return answer{"alive": lock.Context().Err() == nil && time.Now().Before(lock.Expiry()) || d.wrong.deaf()}, nil
	case r.Do == "release" && lock != nil:
		return nil, lock.Release(ctx)
	}
	return nil, errUnknown
}

func (d *driver) open(ctx context.Context, r request) error {
	url := r.Redis
	if d.wrong != nil {
		changes, err := link.Start(strings.TrimSuffix(strings.TrimPrefix(url, "redis://"), "/0"), true)
		if err != nil {
			return err
		}
		changes.Rewrite(d.wrong.rewrite)
		url = changes.URL()
	}
	pool := &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialURLContext(ctx, url) }}
	locker, err := compat.New(pool, compat.Options{
		Namespace: r.Namespace, Member: r.Member, TTL: ms(r.TTL), Lease: ms(r.Lease), ReplyTimeout: ms(r.Reply), FenceTTL: ms(r.FenceTTL),
	})
	if err != nil {
		return err
	}
	d.lockers.Store(r.Locker, locker)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return locker.Ready(ctx)
}
