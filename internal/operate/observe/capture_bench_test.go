package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// BenchmarkReadCapture reads what tcpdump wrote of a busy server: 50 connections, each with a thousand commands, one in ten on a lock.
// It tells commands and packets a second.
func BenchmarkReadCapture(b *testing.B) {
	var all []conversation
	for n := range 50 {
		c := conversation{client: uint16(4000 + n)}
		for i := range 500 {
			key := fmt.Sprintf("cache:%d", i%100)
			if i%10 == 0 {
				key = fmt.Sprint("lock:", n)
				c.pieces = append(c.pieces, piece{bytes: resp("SETNX", key, "1700000030000")}, piece{server: true, bytes: ":1\r\n"},
					piece{bytes: resp("DEL", key)}, piece{server: true, bytes: ":1\r\n"})
				continue
			}
			c.pieces = append(c.pieces, piece{bytes: resp("SET", key, "some value of a cache that is no lock's")}, piece{server: true, bytes: "+OK\r\n"},
				piece{bytes: resp("GET", key)}, piece{server: true, bytes: "$3\r\nabc\r\n"})
		}
		all = append(all, c)
	}
	data := pcap(b, nil, false, all...)
	b.ReportAllocs()
	var seen *traffic.Captured
	for b.Loop() {
		var err error
		seen, err = observe.ReadCapture(context.Background(), bytes.NewReader(data), 6379, observe.New(observe.Options{}))
		require.NoError(b, err)
		require.EqualValues(b, 50_000, seen.Commands)
	}
	b.ReportMetric(float64(seen.Commands)*float64(b.N)/b.Elapsed().Seconds(), "commands/s")
	b.ReportMetric(float64(seen.Packets)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}
