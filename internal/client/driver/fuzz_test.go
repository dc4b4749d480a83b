package driver

import (
	"context"
	"net"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// longLength is a length that redigo would allocate before it has seen a byte of the value.
var longLength = regexp.MustCompile(`[*$][+-]?[0-9]{5,}`)

// FuzzReplies answers with any bytes. Every caller gets a reply or an error, and the line ends.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("+OK\r\n:1\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n-ERR no\r\n"))
	f.Add([]byte("-NOSCRIPT No matching script.\r\n-NOSCRIPT again\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n"))
	f.Add([]byte("+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+one too many\r\n"))
	f.Add([]byte("*-1\r\n$5\r\nab"))
	f.Fuzz(func(t *testing.T, replies []byte) {
		if longLength.Match(replies) {
			t.Skip("redigo allocates what a length says, before anything of it has come; see SECURITY.md")
		}
		l := NewShared(SharedOptions{ReplyTimeout: time.Second, Dial: func(context.Context) (redis.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				go func() { // the server reads whatever comes, and hangs up after its last word
					buf := make([]byte, 4096)
					for {
						if _, err := theirs.Read(buf); err != nil {
							return
						}
					}
				}()
				_, _ = theirs.Write(replies)
				_ = theirs.Close()
			}()
			return redis.NewConn(ours, 0, 0), nil
		}})
		defer func() { l.Close(); l.Wait() }()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				reply, err := l.Do(ctx, protocol.Command{Op: protocol.CompareDel, Key: "k", Value: "token"})
				if err == nil && reply.Kind == protocol.Silence || err != nil && reply.Kind != protocol.Silence && reply.Kind != protocol.Fault {
					t.Errorf("%+v with error %v", reply, err)
				}
			})
		}
		all.Wait()
	})
}
