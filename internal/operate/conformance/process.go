package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// Hello is what a driver says of itself.
type Hello struct {
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Language string   `json:"language"`
	Levels   []int    `json:"levels"`
	Can      []string `json:"can"`
}

// answer is a line of a driver: an answer, or an event.
type answer struct {
	Hello
	ID     int    `json:"id"`
	OK     bool   `json:"ok"`
	Error  string `json:"error"`
	Text   string `json:"text"`
	Token  string `json:"token"`
	Fence  int64  `json:"fence"`
	Stage  string `json:"stage"`
	Alive  bool   `json:"alive"`
	Event  string `json:"event"`
	Lock   string `json:"lock"`
	Reason string `json:"reason"`
}

// process is one process of the implementation.
type process struct {
	hello  Hello
	cmd    *exec.Cmd
	in     io.WriteCloser
	said   tail
	ended  chan struct{} // its output has ended
	killed bool          // or stopped: it is not used again

	mu      sync.Mutex
	next    int
	waiting map[int]chan answer
	lost    map[string]context.CancelFunc
	broken  error
}

// request is a line for a driver.
type request map[string]any

// process returns one that nobody uses, or starts it.
func (k *kit) process(ctx context.Context) (*process, error) {
	k.mu.Lock()
	if n := len(k.idle); n > 0 {
		p := k.idle[n-1]
		k.idle = k.idle[:n-1]
		k.mu.Unlock()
		return p, nil
	}
	k.mu.Unlock()
	p := &process{cmd: exec.Command(k.Command[0], k.Command[1:]...), ended: make(chan struct{}), waiting: map[int]chan answer{}, lost: map[string]context.CancelFunc{}}
	ownGroup(p.cmd)
	p.cmd.Stderr = &p.said
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	a, err := p.ask(bounded, request{"do": "hello"})
	if err == nil && !a.OK {
		err = fmt.Errorf("it has not answered hello by ok: %s", cmp.Or(a.Text, a.Error, "neither ok nor error is in its answer"))
	}
	if err != nil {
		p.kill()
		if said := p.said.String(); said != "" {
			err = fmt.Errorf("%w; on stderr it said: %q", err, said)
		}
		return nil, fmt.Errorf("%s: %w", k.Command[0], err)
	}
	p.hello = a.Hello
	return p, nil
}

// release gives a process back.
func (k *kit) release(p *process) {
	p.mu.Lock()
	bad := p.killed || p.broken != nil
	p.mu.Unlock()
	if bad {
		p.kill()
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = append(k.idle, p)
}

func (k *kit) end() {
	for _, p := range k.idle {
		_ = p.in.Close()
	}
	for _, p := range k.idle {
		select {
		case <-p.ended:
		case <-time.After(2 * time.Second):
		}
		p.kill()
	}
}

// kill ends it at once, with all that it has started.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = signal(p.cmd, sigKill)
		<-p.ended
		_ = p.cmd.Wait()
	}
	p.killed = true
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	var err error
	for err == nil && lines.Scan() {
		var a answer
		if e := json.Unmarshal(lines.Bytes(), &a); e != nil {
			err = fmt.Errorf("a line on stdout is no JSON object: %.200q", lines.Text())
			break
		}
		p.mu.Lock()
		if a.Event == "lost" {
			fmt.Fprintf(&p.said, "lost %s: %s\n", a.Lock, a.Reason)
			if end := p.lost[a.Lock]; end != nil {
				end()
				delete(p.lost, a.Lock)
			}
		} else if c := p.waiting[a.ID]; c != nil {
			c <- a
			delete(p.waiting, a.ID)
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	if p.broken = cmp.Or(err, lines.Err()); p.broken == nil {
		p.broken = errors.New("the driver has ended")
	}
	for id, c := range p.waiting {
		c <- answer{ID: id, Error: "failed", Text: p.broken.Error()}
	}
	clear(p.waiting)
	p.mu.Unlock()
	_, _ = io.Copy(io.Discard, out) // it may talk on
}

// watch returns a context that ends when the driver says that a lock is lost.
func (p *process) watch(name string) context.Context {
	held, end := context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost[name] = end
	return held
}

// ask sends a request, and waits for its answer.
func (p *process) ask(ctx context.Context, r request) (answer, error) {
	reply := make(chan answer, 1)
	p.mu.Lock()
	if p.broken != nil {
		p.mu.Unlock()
		return answer{}, p.broken
	}
	p.next++
	r["id"] = p.next
	p.waiting[p.next] = reply
	line, _ := json.Marshal(r)
	_, err := p.in.Write(append(line, '\n'))
	p.mu.Unlock()
	if err != nil { // it has ended, or has closed its stdin
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
	}
	select {
	case a := <-reply:
		return a, nil
	case <-ctx.Done():
		return answer{}, errors.Join(fmt.Errorf("no answer to %s", bytes.TrimSpace(line)), err)
	}
}

// tail keeps the last that was said.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-2000):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
