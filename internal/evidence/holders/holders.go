// Package holders drives the programs in testdata/holders from Go tests: the real locks of Java, Python, Node, PHP and
// Go services, each a process that takes commands on stdin and prints one JSON event a line.
package holders

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Kind names a holder program.
type Kind struct {
	Name   string // its name on the holder's command line
	module string // where its program is, see command
}

// The kinds, by the lock that they hold.
var (
	JedisLock  = Kind{"jedis-lock", "old"}     // the released jar, dialect A
	Article    = Kind{"article", "old"}        // dialect A with a clock hook
	JedisUUID  = Kind{"jedis-uuid", "old"}     // dialect B
	ArticleHA  = Kind{"article-ha", "current"} // dialect A over a cluster or sentinels, current Jedis
	SetNXPX    = Kind{"set-nx-px", "current"}  // SET NX PX and Lua, current Jedis
	Redisson   = Kind{"redisson", "current"}   // RLock
	HashUID    = Kind{"hash-uid", "current"}   // hash lock of article 001
	JavaMember = Kind{"member", "current"}     // the library clients/java
	RedisPy    = Kind{"redis-py", "python"}    // redis-py 2.9.1's Lock, dialect C
	SetNXUUID  = Kind{"setnx-uuid", "python"}  // SETNX of a UUID without TTL
	PySetNXPX  = Kind{"set-nx-px", "python"}   // SET NX PX and Lua from Python
)

// The locks of released packages that a fleet may bring along, by package.
var (
	Jboot        = Kind{"jboot", "jboot"}                  // jboot 3.16.0
	RedisPy27    = Kind{"redis-py", "python-2.7.6"}        // redis-py 2.7.6's Lock, dialect C'
	RedisLockPy  = Kind{"redis-lock", "python-2.7.6"}      // PyPI redis-lock 0.2.0
	Retools      = Kind{"retools", "python-2.7.6"}         // retools 0.3
	RedisPyLua   = Kind{"redis-py-lua", "python-2.10.6"}   // redis-py 2.10.6's LuaLock
	PythonMember = Kind{"member", "python-suite"}          // the library clients/python
	RedisPySetNX = Kind{"redis-py-setnx", "python-2.10.6"} // redis-py 2.10.6's Lock
	Netlock      = Kind{"redis-netlock", "python-2.10.6"}  // redis-netlock 1.6
	CeleryOnce   = Kind{"celery-once", "python-2.10.6"}    // celery_once 1.2.0
	RedisLock0   = Kind{"redis-lock-0", "node"}            // npm redis-lock 0.0.8
	RedisLock1   = Kind{"redis-lock-1", "node"}            // npm redis-lock 1.0.0
	QueueLock    = Kind{"resque-queue-lock", "node"}       // node-resque 9.7.1
	JobLock      = Kind{"resque-job-lock", "node"}         // node-resque 9.7.1
	Laravel      = Kind{"laravel", "php"}                  // Debian's php-illuminate-cache
	Machinery    = Kind{"machinery", "gohold"}             // machinery 1.10.8
	GoRedisSetNX = Kind{"go-redis-setnx", "gohold"}        // article 000 on go-redis 9.23.0's SetNX
)

// Component returns what a suite with this kind needs, for redistest.Need.
func (k Kind) Component() string {
	language, _, _ := strings.Cut(k.module, "-")
	if slices.Contains([]string{redistest.Python, redistest.Node, redistest.PHP, redistest.GoHold}, language) {
		return language
	}
	return redistest.Java
}

// Event is one line of a holder's output; which fields count depends on Event.
type Event struct {
	Event    string  `json:"event"`
	Kind     string  `json:"kind"`
	Version  string  `json:"version"`
	PID      int     `json:"pid"`
	ID       string  `json:"id"`
	Key      string  `json:"key"`
	WaitedMS float64 `json:"waited_ms"`
	Op       string  `json:"op"`
	Class    string  `json:"class"`
	Message  string  `json:"message"`
	Reading  string  `json:"reading"`
	N        int     `json:"n"`
	Inside   int     `json:"inside"`
	Turns    int     `json:"turns"`
	Overlaps int     `json:"overlaps"`
	Errors   int     `json:"errors"`
	OffsetMS int64   `json:"offset_ms"`

	// Of a turn of a lock that says its deadline, in microseconds since 1970 on the host's clock: when the lock was acquired, until when it was
	// certain at most, when the work was over, when its holder knew that the context had ended (0: it had not), when that was due by its process's
	// clock (before a time in which it did not run), and when the release was over.
	Began int64  `json:"began"`
	Until int64  `json:"until"`
	Left  int64  `json:"left"`
	Told  int64  `json:"told"`
	Due   int64  `json:"due"`
	Ended int64  `json:"ended"`
	Lost  bool   `json:"lost"`  // the acquisition or release said ErrLost
	Late  bool   `json:"late"`  // the reason was the deadline, or the deadline had passed
	Stage string `json:"stage"` // of the lock
	Long  bool   `json:"long"`  // the turn is one of the long ones that the argument rarely asks for
}

// Stood tells that a Go process heard of a loss because it stood still beyond its deadline: it got less time than its lock, or
// none. A turn that lost its lock in less than min is none of that: its work takes a moment.
func (e Event) Stood(min time.Duration) bool {
	took := time.Duration(e.Ended-e.Began) * time.Microsecond
	return e.Lost && e.Late && took >= min
}

// Holder is a running holder process.
type Holder struct {
	Kind Kind
	ID   string
	PID  int

	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	events chan Event
	stderr redistest.Output
	exited chan struct{} // closed with state
	state  *os.ProcessState
}

// Option changes how a holder is started.
type Option func(*exec.Cmd)

// Arg passes name=value to the holder: lease, wait, poll, id, clock, the first three in milliseconds; book, cluster,
// sentinels and master as text. A Go holder has one turn in `rarely` that lasts `long`,
// and pauses for `pause` between two, on average.
func Arg(name string, value any) Option {
	if d, ok := value.(time.Duration); ok {
		value = d.Milliseconds()
	}
	return func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, fmt.Sprintf("%s=%v", name, value)) }
}

// Clock moves the holder's wall clock by d, see redistest.MovedClock: for locks that read the system's clock and have no hook, such as the
// jedis-lock jar.
func Clock(t testing.TB, d time.Duration) Option {
	t.Helper()
	environ := redistest.MovedClock(t, d)
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), environ...) }
}

// Start starts a holder, waits until it is ready, and ends it with the test.
func Start(t testing.TB, kind Kind, url string, options ...Option) *Holder {
	t.Helper()
	redistest.Need(t, kind.Component())
	cmd := command(t, kind)
	cmd.Args = append(cmd.Args, kind.Name, url)
	return start(t, kind, cmd, options)
}

func start(t testing.TB, kind Kind, cmd *exec.Cmd, options []Option) *Holder {
	t.Helper()
	h := &Holder{Kind: kind, t: t, cmd: cmd, events: make(chan Event, 4096), exited: make(chan struct{})}
	for _, o := range options {
		o(h.cmd)
	}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.cmd.Stderr, h.cmd.WaitDelay = &h.stderr, 5*time.Second // for what a child of the holder keeps open
	var err error
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatalf("start holder %s: %v", kind.Name, err)
	}
	go func() {
		h.state, _ = h.cmd.Process.Wait()
		close(h.exited)
	}()
	read := make(chan struct{})
	go h.read(stdout, read)
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		<-read
	})
	ready := h.Next(2 * time.Minute) // patience: a machine with a load of 50 starts no Java process within 30 s
	if ready.Event != "ready" {
		t.Fatalf("holder %s began with %+v\n%s", kind.Name, ready, h.LastWords())
	}
	h.ID, h.PID = ready.ID, ready.PID
	return h
}

// command finds the program; testdata/holders/setup must have built it.
func command(t testing.TB, kind Kind) *exec.Cmd {
	t.Helper()
	root := Root(t)
	switch kind.module {
	case "python", "python-2.7.6", "python-2.10.6", "python-suite": // by redis-py's version, see python/holder.py
		environment := strings.Replace(kind.module, "python", ".venv", 1)
		return exec.Command(filepath.Join(root, "python", environment, "bin/python"), filepath.Join(root, "python/holder.py"))
	case "node":
		return exec.Command("node", filepath.Join(root, "node/holder.js"))
	case "php":
		return exec.Command("php", filepath.Join(root, "php/holder.php"))
	case "gohold":
		return exec.Command(filepath.Join(root, "go/bin/holder"))
	}
	flags := []string{"-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-XX:+UseSerialGC"}
	if kind.module == "jboot" { // its serializer looks into these packages of the JDK, as any program of jboot must allow it to
		for _, p := range []string{"lang", "util", "util.concurrent", "math", "net", "text"} {
			flags = append(flags, "--add-opens=java.base/java."+p+"=ALL-UNNAMED")
		}
	}
	return exec.Command("java", append(flags,
		"-cp", filepath.Join(root, "java", kind.module, "target/lib/*"), "lockmigrate.holders."+kind.module+".Main")...)
}

// Root returns the folder testdata/holders.
func Root(testing.TB) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../../testdata/holders")
}

// read hands out what the holder says until it has ended, and all of its last words are there.
func (h *Holder) read(stdout io.Reader, done chan<- struct{}) {
	defer close(done)
	defer close(h.events)
	defer func() {
		<-h.exited
		_ = h.cmd.Wait() // for what it wrote to stderr; how it ended is in state
	}()
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = Event{Event: "garbage", Message: lines.Text()}
		}
		h.events <- e
	}
	if err := lines.Err(); err != nil {
		h.events <- Event{Event: "garbage", Message: err.Error()}
		_, _ = io.Copy(io.Discard, stdout) // the holder must neither block on it nor die of it
	}
}

// Send gives the holder a command without waiting for what it says.
func (h *Holder) Send(format string, args ...any) {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.stdin, format+"\n", args...); err != nil {
		h.t.Fatalf("holder %s is gone: %v; %s", h.ID, err, h.LastWords())
	}
}

// Next waits for the next event.
func (h *Holder) Next(timeout time.Duration) Event {
	h.t.Helper()
	select {
	case e, open := <-h.events:
		if !open {
			h.t.Fatalf("holder %s %s has ended: %s", h.Kind.Name, h.ID, h.LastWords())
		}
		return e
	case <-time.After(timeout):
		h.t.Fatalf("holder %s %s says nothing for %v: %s", h.Kind.Name, h.ID, timeout, h.LastWords())
	}
	return Event{}
}

// Events is the stream of what the holder says; it is closed when the process has ended.
func (h *Holder) Events() <-chan Event { return h.events }

// Do gives the holder a command and returns the first event that answers it.
func (h *Holder) Do(format string, args ...any) Event {
	h.t.Helper()
	h.Send(format, args...)
	return h.Next(30 * time.Second)
}

// Kill ends the process at once, as kill -9 does, and waits until it is gone.
func (h *Holder) Kill() {
	_ = h.cmd.Process.Kill()
	<-h.exited
}

// Stop stops the process (SIGSTOP) and returns when all its threads have stopped, one that was sending a command too: on a busy
// machine that is some time after the signal. A process that has ended is no error. SIGCONT lets it go on.
func (h *Holder) Stop() {
	h.t.Helper()
	h.Signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) { // a wait that blocks would miss its end
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, h.cmd.Process.Pid, &info, unix.WSTOPPED|unix.WNOHANG, nil); info.Signo != 0 || errors.Is(err, unix.ECHILD) {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("holder %v does not stop", h)
		}
	}
}

// Signal sends SIGSTOP, SIGCONT ...
func (h *Holder) Signal(sig syscall.Signal) { _ = h.cmd.Process.Signal(sig) }

// LastWords returns how the holder has ended, as the system tells it, and what it wrote to stderr: an exit, a
// panic and a signal (SIGPIPE at a closed stdout, SIGKILL for want of memory) are told apart. They are complete once Events is closed.
func (h *Holder) LastWords() string {
	ended := "running"
	select {
	case <-h.exited:
		ended = "no longer known" // another has waited for the process
		if h.state != nil {
			ended = h.state.String()
		}
	default:
	}
	if said := h.stderr.String(); said != "" {
		return ended + ", and said:\n" + said
	}
	return ended + ", and said nothing"
}

// String names the holder for messages.
func (h *Holder) String() string {
	return h.Kind.Name + " " + h.ID + " (pid " + strconv.Itoa(h.PID) + ")"
}
