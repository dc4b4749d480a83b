package sidecar

import (
	"fmt"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// appendRequest appends a command. With five keys and one argument it stays within the ten words that a server allows before AUTH, also
// where it names a database: the script selects that one itself.
func appendRequest(out []byte, client *proxy.Client, c protocol.Command, database string) []byte {
	request, err := wire.RequestOf(c)
	if err != nil { // no such op: a mistake in this package
		panic(err)
	}
	var words []string
	for _, arg := range request.Args()[1:] {
		words = append(words, fmt.Sprint(arg))
	}
	if database != "" {
		words = append(words, database)
	}
	return proxy.AppendCall(out, client, calls[request.Script], words...)
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
