package redistest

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
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
	require.NoError(t, b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	require.NoError(t, b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached))
	b.session = attached.SessionID
	return b
}

// call sends a command and waits for its answer; what else the browser says is passed over.
func (b *Chromium) call(method string, params, result any) error {
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
		return fmt.Errorf("browser: %s: %w", method, err)
	}
	for {
		line, err := b.out.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("browser: %s: %w", method, err)
		}
		var reply struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line[:len(line)-1], &reply); err != nil {
			return fmt.Errorf("browser: %s: %w", method, err)
		}
		switch {
		case reply.ID != b.id:
		case reply.Error != nil:
			return fmt.Errorf("browser: %s: %s", method, reply.Error.Message)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(reply.Result, result)
		}
	}
}

// Open goes to a page as a view shows it, and waits until it is loaded and ready, an expression of JavaScript, is true.
func (b *Chromium) Open(url string, v View, ready string) error {
	scheme := "light"
	if v.Dark {
		scheme = "dark"
	}
	motion := "no-preference"
	if v.Still {
		motion = "reduce"
	}
	if err := b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1, "mobile": v.Width < 600}, nil); err != nil {
		return err
	}
	if err := b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}}}, nil); err != nil {
		return err
	}
	if err := b.call("Page.navigate", map[string]any{"url": url}, nil); err != nil {
		return err
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // the page is asked; it does not tell
		var done bool
		err := b.Eval("location.href !== 'about:blank' && document.readyState === 'complete' && !!("+ready+")", &done)
		if err == nil && done {
			return nil
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("browser: %s is not ready after a minute (%v)", url, err)
		}
	}
}

// Press presses a key on what has the focus, such as ArrowRight, whose code is 39.
func (b *Chromium) Press(key string, code int) error {
	for _, what := range []string{"rawKeyDown", "keyUp"} {
		if err := b.call("Input.dispatchKeyEvent", map[string]any{"type": what, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Eval runs an expression on the page and stores its value. A promise is waited for.
func (b *Chromium) Eval(expression string, value any) error {
	var reply struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	if err := b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &reply); err != nil {
		return err
	}
	if reply.Exception != nil {
		return fmt.Errorf("browser: %s: %s", expression, reply.Exception.Text)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(reply.Result.Value, value)
}

// Picture writes a PNG of the page to a file: all of it, or its first pixels where most is above 0.
func (b *Chromium) Picture(file string, most int) error {
	var size struct{ W, H int }
	if err := b.Eval("({W: document.documentElement.clientWidth, H: document.documentElement.scrollHeight})", &size); err != nil {
		return err
	}
	if most > 0 {
		size.H = min(size.H, most)
	}
	var shot struct {
		Data string `json:"data"`
	}
	err := b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": size.W, "height": size.H, "scale": 1}}, &shot)
	if err != nil {
		return err
	}
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		return err
	}
	return os.WriteFile(file, png, 0o644)
}
