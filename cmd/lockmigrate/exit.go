package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// Exit codes, which scripts rely on.
const (
	exitDone         = 0
	exitFailed       = 1
	exitUsage        = 2
	exitUnsafe       = 3 // a promise was violated, or the thing asked for would be unsafe
	exitInconclusive = 4
)

// exitError is an error that knows its exit code and what to do about it. Any error without one exits 1.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) Hint() string  { return e.hint }

// usageError says that the command line asks for something that does not exist.
func usageError(hint, format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...), hint}
}

// failedError says that a command could not do its work.
func failedError(hint, format string, args ...any) error {
	return &exitError{exitFailed, fmt.Errorf(format, args...), hint}
}

// unsafeError says that something promised did not hold, or that going on would be unsafe.
func unsafeError(hint, format string, args ...any) error {
	return &exitError{exitUnsafe, fmt.Errorf(format, args...), hint}
}

// inconclusiveError says that the evidence does not decide the question.
func inconclusiveError(hint, format string, args ...any) error {
	return &exitError{exitInconclusive, fmt.Errorf(format, args...), hint}
}

// fileError is about a file that the caller named.
func fileError(err error) error {
	var where *fs.PathError
	if !errors.As(err, &where) {
		return err
	}
	return usageError("name another file", "%s: %w", where.Path, where.Err)
}

// exitCode maps an error to the process's exit code. Packages below cmd say that an error is the
// caller's by a method Usage.
func exitCode(err error) int {
	var exit *exitError
	var usage interface{ Usage() bool }
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage) && usage.Usage():
		return exitUsage
	default:
		return exitFailed
	}
}

// hintOf returns what to do about an error: what it says itself, or what there is to say about the server or
// connection behind it; empty if nothing.
func hintOf(err error) string {
	var hinted interface{ Hint() string }
	if !errors.As(err, &hinted) {
		errors.As(endpoint.Explain(err), &hinted)
	}
	if hinted == nil {
		return ""
	}
	return hinted.Hint()
}

// errorLine is the one line that an error becomes: `lockmigrate: what: hint`.
func errorLine(err error) string {
	line := "lockmigrate: " + err.Error()
	if hint := hintOf(err); hint != "" {
		line += ": " + hint
	}
	return safe(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\n", "; "))
}
