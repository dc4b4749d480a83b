package cluster

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// canned is a connection from which the bytes of a test are read.
type canned struct {
	io.Reader
	net.Conn
}

func (c canned) Read(p []byte) (int, error)     { return c.Reader.Read(p) }
func (canned) Write(p []byte) (int, error)      { return len(p), nil }
func (canned) Close() error                     { return nil }
func (canned) SetReadDeadline(time.Time) error  { return nil }
func (canned) SetWriteDeadline(time.Time) error { return nil }
func (canned) SetDeadline(time.Time) error      { return nil }

func slotsOf(raw []byte) ([]any, error) {
	conn := redis.NewConn(canned{Reader: bufio.NewReader(bytes.NewReader(raw))}, 0, 0)
	return redis.Values(conn.Do("CLUSTER", "SLOTS"))
}

// longLength is a length that redigo would allocate before it has seen a byte of the value.
var longLength = regexp.MustCompile(`[*$][+-]?[0-9]{5,}`)

// FuzzSlots reads what a server, or whoever is in between, answers to CLUSTER SLOTS.
func FuzzSlots(f *testing.F) {
	f.Add([]byte("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n"))
	f.Add([]byte("*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$0\r\n\r\n:0\r\n"))
	f.Add([]byte("*0\r\n"))
	f.Add([]byte("*1\r\n*1\r\n:1\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 4096 || longLength.Match(raw) {
			return
		}
		reply, err := slotsOf(raw)
		if err != nil {
			return
		}
		table, err := topology.ReadSlots(reply, "10.0.0.1:7000", topology.AsTold)
		if err != nil {
			return
		}
		for _, addr := range append(table.Masters, table.Nodes...) {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestSlotsOfTheAskedNode(t *testing.T) {
	reply, err := slotsOf([]byte("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:6379\r\n"))
	assert.NoError(t, err)
	table, err := topology.ReadSlots(reply, "10.0.0.1:7000", topology.AsTold)
	assert.NoError(t, err)
	assert.Equal(t, []string{"10.0.0.1:6379"}, table.Masters)
	assert.Equal(t, 16384, table.Served())
}
