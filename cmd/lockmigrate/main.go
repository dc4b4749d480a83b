// Command lockmigrate is the operator's side of a move from the old SETNX/GETSET locks to locks of
// token and TTL: it shows what is on the keys, who still speaks the old scheme, and takes a fleet from
// stage to stage.
//
// Results go to stdout, progress and diagnostics to stderr. Whatever writes to a server prints its plan
// and writes nothing until --execute is given.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, processEnvironment(), os.Args[1:]))
}
