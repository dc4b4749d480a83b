// Package reference holds uses of the bridge's scripts from other languages, for services that cannot
// take the Go library. The Java one runs as a holder in the test suites, see testdata/holders.
package reference

import _ "embed"

// Java is a class that needs nothing but a way to call EVAL.
//
//go:embed BridgeLock.java
var Java string

// Python is a module that needs nothing but a way to call EVAL.
//
//go:embed bridge_lock.py
var Python string
