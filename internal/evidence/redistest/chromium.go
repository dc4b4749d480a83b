package redistest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Chromium is one running browser, for tests of pages and for the pictures of the documents. It speaks the DevTools protocol over a pipe: a few
// commands of it, so that no library of all of them has to be compiled. It is not safe for concurrent use.
type Chromium struct {
	in      *os.File
	out     *bufio.Reader
	id      int
	session string
}

// View is what a reader looks with. A phone is 390 pixels wide.
type View struct {
	Width, Height int // CSS pixels
	Dark          bool
	Still         bool // the reader asks for less motion
}

// NewChromium starts a browser without a window, and ends it with the test.
func NewChromium(t testing.TB) *Chromium {
	t.Helper()
	Need(t, Browser)
	programs := []string{"chromium", "chromium-browser", "google-chrome"}
	i := slices.IndexFunc(programs, func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	require.GreaterOrEqual(t, i, 0, "none of %v is installed (browser is named in LOCKMIGRATE_SUITES)", programs)
	theirs, ours, err := os.Pipe()
	require.NoError(t, err)
	pipe, writes, err := os.Pipe()
	require.NoError(t, err)
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), programs[i], "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--user-data-dir="+folder, "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{theirs, writes} // 3 and 4, where Chromium looks for them
	cmd.Env = append(os.Environ(), "TZ=UTC")
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts processes of its own, which write into the folder
	require.NoError(t, cmd.Start())
	_ = theirs.Close()
	_ = writes.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		for tries := 0; os.RemoveAll(folder) != nil && tries < 50; tries++ {
			time.Sleep(20 * time.Millisecond) // one of them is still on its way out
		}
		_ = ours.Close()
		_ = pipe.Close()
	})
	b := &Chromium{in: ours, out: bufio.NewReaderSize(pipe, 1<<20)}
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.do(t, "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.do(t, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	return b
}

// call sends a command and waits for its answer; what else the browser says is passed over.
func (b *Chromium) call(method string, params, result any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("browser: %s: %w", method, err)
		}
	}()
	b.id++
	message := map[string]any{"id": b.id, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		return err
	}
	for {
		line, err := b.out.ReadBytes(0)
		if err != nil {
			return err
		}
		var reply struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line[:len(line)-1], &reply); err != nil {
			return err
		}
		switch {
		case reply.ID != b.id:
		case reply.Error != nil:
			return errors.New(reply.Error.Message)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(reply.Result, result)
		}
	}
}

// do sends a command that must succeed.
func (b *Chromium) do(t testing.TB, method string, params, result any) {
	t.Helper()
	require.NoError(t, b.call(method, params, result))
}

// Open goes to a page as a view shows it, and waits until it is loaded and ready, an expression of JavaScript, is true.
func (b *Chromium) Open(t testing.TB, url string, v View, ready string) {
	t.Helper()
	b.do(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1, "mobile": v.Width < 600}, nil)
	b.do(t, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": map[bool]string{true: "dark", false: "light"}[v.Dark]},
		{"name": "prefers-reduced-motion", "value": map[bool]string{true: "reduce", false: "no-preference"}[v.Still]},
	}}, nil)
	b.do(t, "Page.navigate", map[string]any{"url": url}, nil)
	var err error
	defer func() {
		if err != nil {
			t.Log(err)
		}
	}()
	Await(t, url+" to be ready", func() bool { // the page is asked; it does not tell
		var done bool
		err = b.eval("location.href !== 'about:blank' && document.readyState === 'complete' && !!("+ready+")", &done)
		return err == nil && done
	})
}

// Press presses a key on what has the focus, such as ArrowRight, whose code is 39.
func (b *Chromium) Press(t testing.TB, key string, code int) {
	t.Helper()
	for _, what := range []string{"rawKeyDown", "keyUp"} {
		b.do(t, "Input.dispatchKeyEvent", map[string]any{"type": what, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
	}
}

// Eval runs an expression on the page and stores its value, unless that is nil. A promise is waited for.
func (b *Chromium) Eval(t testing.TB, expression string, value any) {
	t.Helper()
	require.NoError(t, b.eval(expression, value))
}

func (b *Chromium) eval(expression string, value any) error {
	var reply struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	err := b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &reply)
	switch {
	case err != nil:
		return err
	case reply.Exception != nil:
		return fmt.Errorf("browser: %s: %s", expression, reply.Exception.Text)
	case value == nil:
		return nil
	}
	return json.Unmarshal(reply.Result.Value, value)
}

// Picture writes a PNG of the page to a file: all of it, or its first pixels where most is above 0.
func (b *Chromium) Picture(t testing.TB, file string, most int) {
	t.Helper()
	var size struct{ W, H int }
	b.Eval(t, "({W: document.documentElement.clientWidth, H: document.documentElement.scrollHeight})", &size)
	if most > 0 {
		size.H = min(size.H, most)
	}
	var shot struct {
		Data []byte `json:"data"`
	}
	b.do(t, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": size.W, "height": size.H, "scale": 1}}, &shot)
	require.NoError(t, os.WriteFile(file, shot.Data, 0o644))
}
