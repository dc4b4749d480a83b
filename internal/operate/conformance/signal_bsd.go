//go:build unix && !linux

package conformance

import "syscall"

func endsWithUs(*syscall.SysProcAttr) {}
