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
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, processEnvironment(), os.Args[1:]))
}

// interrupts are the signals that end a command and keep its results so far. A hang-up is one of them, unless
// the command was started to survive it, as nohup does.
func interrupts() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}
