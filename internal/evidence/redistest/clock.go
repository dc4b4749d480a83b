package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// clockSource stands before libc for the wall clock alone: what it adds is in a file that the test writes.
// libfaketime cannot do it: its locks and jemalloc's, which redis-server is linked with, wait for each other.
//
//go:embed testdata/clock.c
var clockSource string

// Clocked is a server whose wall clock the test sets. It needs a C compiler, as the race detector does.
type Clocked struct {
	*Server
	file   string
	offset time.Duration
}

// NewClocked starts one.
func NewClocked(t testing.TB, args ...string) *Clocked {
	t.Helper()
	Need(t, Redis) // before the clock is compiled
	environ, file := clock(t, 0)
	return &Clocked{Server: Shape{Env: environ}.Start(t, args...), file: file}
}

// MovedClock returns what to add to the environment of a program that reads its wall clock through libc, so that it reads it
// moved by d. It costs a program that reads the clock all the time much less than libfaketime: a JVM that loads thousands of
// classes starts in 0.5 s of processor time in place of 4. It needs a C compiler.
func MovedClock(t testing.TB, d time.Duration) []string {
	t.Helper()
	environ, _ := clock(t, d)
	return environ
}

// clock makes the library and the file of its offset.
func clock(t testing.TB, offset time.Duration) (environ []string, file string) {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	file = filepath.Join(dir, "offset")
	if err := os.WriteFile(source, []byte(clockSource), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("compile the clock: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, binary.NativeEndian.AppendUint64(nil, uint64(offset)), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"LD_PRELOAD=" + library, "LOCKMIGRATE_CLOCK=" + file}, file
}

// Step moves the server's clock and checks that it moved.
func (c *Clocked) Step(by time.Duration) {
	c.t.Helper()
	c.offset += by
	f, err := os.OpenFile(c.file, os.O_WRONLY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(c.offset)), 0); err != nil {
		c.t.Fatal(err)
	}
	row, err := redis.Int64s(c.Do("TIME"), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if off := time.Until(time.Unix(row[0], row[1]*1000)) - c.offset; off.Abs() > time.Second {
		c.t.Fatalf("the server's clock is %v from where it was set", off)
	}
}
