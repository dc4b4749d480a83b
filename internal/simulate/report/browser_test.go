package report

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// The page is opened in a real browser. A script that is added to a copy of it clicks, measures and
// writes what it saw into the title, which --dump-dom prints: no driver is needed.
const probe = `<script>
window.addEventListener("load", function () { setTimeout(function () {
  var out = [], say = function (k, v) { out.push(k + "=" + v); };
  var shown = function () { return [].filter.call(document.querySelectorAll(".card"), function (c) { return c.offsetParent !== null; }); };
  say("before", shown().map(function (c) { return c.id; }).join(","));
  var cells = document.querySelectorAll(".map a"), last = cells[cells.length - 1];
  say("cells", cells.length);
  last.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  setTimeout(function () {
    say("target", last.getAttribute("href"));
    say("after", shown().map(function (c) { return c.id; }).join(","));
    say("copy", document.querySelectorAll("button[data-copy]:not([hidden])").length);
    cells[0].focus();
    cells[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    say("moved", document.activeElement === cells[1]);
    say("requests", performance.getEntriesByType("resource").length);
    say("wide", document.documentElement.scrollWidth - document.documentElement.clientWidth);
    var boxes = [].map.call(document.querySelectorAll("main > *, body > section > *, body > header, article.scheme figure"), function (e) { return e; })
      .filter(function (e) { return e.offsetParent !== null && e.getBoundingClientRect().height > 0; });
    var overlaps = 0;
    boxes.forEach(function (a, i) { boxes.slice(i + 1).forEach(function (b) {
      if (a.contains(b) || b.contains(a)) { return; }
      var r = a.getBoundingClientRect(), s = b.getBoundingClientRect();
      if (Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 1) { overlaps++; }
    }); });
    say("overlaps", overlaps);
    var texts = [].slice.call(document.querySelectorAll(".card[id='" + location.hash.slice(1) + "'] .run text.nm, .card[id='" + location.hash.slice(1) + "'] .run text.sc, .card[id='" + location.hash.slice(1) + "'] .run text.ax")), clash = 0;
    texts.forEach(function (a, i) { texts.slice(i + 1).forEach(function (b) {
      var r = a.getBoundingClientRect(), s = b.getBoundingClientRect();
      if (Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 1) { clash++; }
    }); });
    say("clash", clash);
    document.title = "PROBE " + out.join(" ");
  }, 300);
}, 100); });
</script>`

func TestInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	page := string(sample(t))
	dir := t.TempDir()
	probed := filepath.Join(dir, "probed.html")
	require.NoError(t, os.WriteFile(probed, []byte(strings.Replace(page, "</body>", probe+"</body>", 1)), 0o644))
	for _, size := range []string{"1280,1600", "800,1200", "480,900"} {
		t.Run(size, func(t *testing.T) {
			dom := browse(t, "--window-size="+size, "--virtual-time-budget=5000", "--dump-dom", "file://"+probed)
			title := regexp.MustCompile(`<title>PROBE ([^<]*)</title>`).FindStringSubmatch(dom)
			require.NotNil(t, title, "the probe did not run")
			saw := map[string]string{}
			for _, field := range strings.Fields(title[1]) {
				k, v, _ := strings.Cut(field, "=")
				saw[k] = v
			}
			t.Log(title[1])
			require.NotContains(t, saw["before"], ",", "one run is shown at first")
			require.NotEmpty(t, saw["before"])
			require.Equal(t, saw["target"], "#"+saw["after"], "the click shows its run")
			require.NotEqual(t, "0", saw["copy"])
			require.Equal(t, "true", saw["moved"], "arrow keys move between cells")
			require.Equal(t, "0", saw["requests"], "nothing is loaded")
			require.Equal(t, "0", saw["wide"], "the page does not scroll sideways")
			require.Equal(t, "0", saw["overlaps"])
			require.Equal(t, "0", saw["clash"], "no label covers another")
		})
	}
}

// TestWithoutScript: all that the page says is there when nothing runs.
func TestWithoutScript(t *testing.T) {
	page := string(sample(t))
	without := regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(page, "")
	require.Contains(t, without, "SETNX orders")
	require.Contains(t, without, "lockmigrate replay --scheme legacy")
	require.Contains(t, without, "inside at the same time")
}

func browse(t *testing.T, args ...string) string {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	require.NotEmpty(t, path, "no browser is installed, and LOCKMIGRATE_SUITES names one")
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--user-data-dir=" + t.TempDir(),
	}, args...)...)
	out, err := cmd.Output()
	require.NoError(t, err)
	return string(out)
}
