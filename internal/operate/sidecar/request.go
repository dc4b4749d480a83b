package sidecar

import (
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// appendRequest appends a command. With five keys and one argument it stays within the ten words that a server allows before AUTH, also
// where it names a database: the script selects that one itself.
func appendRequest(out []byte, client *proxy.Client, c protocol.Command, database string) []byte {
	request, err := wire.RequestOf(c)
	if err != nil { // no such op: a mistake in this package
		panic(err)
	}
	args := request.Args()
	count := 1 + len(args)
	if database != "" {
		count++
	}
	out = append(out, '*')
	out = strconv.AppendInt(out, int64(count), 10)
	out = client.AppendCall(append(out, "\r\n"...), calls[request.Script])
	for _, arg := range args[1:] {
		switch v := arg.(type) {
		case string:
			out = wire.AppendWord(out, v)
		case int:
			out = wire.AppendWord(out, strconv.Itoa(v))
		}
	}
	if database != "" {
		out = wire.AppendWord(out, database)
	}
	return out
}

// calls are the scripts of the service's commands.
var calls = func() map[*scripts.Script]*proxy.Script {
	all := map[*scripts.Script]*proxy.Script{}
	for _, s := range scripts.All() {
		if strings.HasPrefix(s.Name, "sidecar_") {
			all[s] = proxy.NewScript(s.Bare())
		}
	}
	return all
}()
