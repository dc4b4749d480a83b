package main

import (
	"io"
	"os"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/terminal"
)

// environment is all that a command touches of the process, so that a test can be the process.
type environment struct {
	stdout     io.Writer
	stderr     io.Writer
	getenv     func(string) string
	isTerminal func(io.Writer) bool
	width      func(io.Writer) int // of a terminal, in columns
	now        func() time.Time

	global globalFlags // what every command understands, valid once a command runs
}

// globalFlags are the flags of the root.
type globalFlags struct {
	redis       string
	tlsCA       string
	tlsCert     string
	tlsKey      string
	tlsInsecure bool
	json        bool
}

func processEnvironment() *environment {
	return &environment{
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		getenv:     os.Getenv,
		isTerminal: terminal.Is,
		width:      terminal.Width,
		now:        time.Now,
	}
}

// status returns the line of progress: on stderr where that is a terminal, silent otherwise.
func (env *environment) status() *terminal.Status {
	if !env.isTerminal(env.stderr) {
		return terminal.NewStatus(nil, nil)
	}
	return terminal.NewStatus(env.stderr, func() int { return env.width(env.stderr) })
}
