package deploy_test

import (
	"debug/elf"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// container is one that runs this program: its arguments and the values of its environment.
type container struct {
	where string
	args  []string
	env   []string
}

// containers finds those of a manifest or of compose.yaml. What the environment takes from a secret or from the pod is made up.
func containers(where string, doc any, server string) (all []container) {
	switch v := doc.(type) {
	case []any:
		for _, item := range v {
			all = append(all, containers(where, item, server)...)
		}
	case map[string]any:
		image, _ := v["image"].(string)
		_, built := v["build"]
		for _, name := range []string{"args", "command"} {
			list, ok := v[name].([]any)
			if !ok || !strings.HasPrefix(image, "lockmigrate:") && !built {
				continue
			}
			c := container{where: where, env: []string{"LOCKMIGRATE_REDIS=" + server, "LOCKMIGRATE_TOKEN=demo"}}
			for _, word := range list {
				c.args = append(c.args, strings.NewReplacer("$(POD_NAME)", "billing-1", "redis://redis:6379/0", server).Replace(word.(string)))
			}
			all = append(all, c)
		}
		for _, item := range v {
			all = append(all, containers(where, item, server)...)
		}
	}
	return all
}

// image is what the Dockerfile puts together: one static file below an empty root, and a user without rights. Where the run does not
// want the image, it is an ordinary build that runs as this process does.
type image struct {
	folder string
	shut   bool // into the folder
}

// build makes the program. The Dockerfile's own command compiles all, the standard library too, once more.
func build(t *testing.T) image {
	t.Helper()
	text := read(t, "deploy/Dockerfile")
	line := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /lockmigrate (\./cmd/lockmigrate)$`).FindStringSubmatch(text)
	require.NotNil(t, line, "the Dockerfile's build")
	for _, want := range []string{"FROM scratch\n", "--chown=65532:65532 /data /data\n", "USER 65532:65532\n", "WORKDIR /data\n", `ENTRYPOINT ["/lockmigrate"]`} {
		require.Contains(t, text, want)
	}
	folder, err := os.MkdirTemp("", "image") // and not t.TempDir: its parents keep another user out
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	require.NoError(t, os.Chmod(folder, 0o755))
	for _, name := range []string{"data", "certificates"} {
		require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
	}
	i := image{folder, redistest.Wanted(redistest.Image)}
	if !i.shut {
		line[1] = "go build"
	}
	command := exec.Command("sh", "-c", fmt.Sprintf("%s -o '%s/lockmigrate' %s", line[1], folder, line[2]))
	command.Dir, command.Env = root, append(os.Environ(), "VERSION=v0.0.0-try")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	if i.shut {
		version, err := exec.Command(filepath.Join(folder, "lockmigrate"), "version").CombinedOutput()
		require.NoError(t, err, "%s", version)
		require.Contains(t, string(version), "lockmigrate v0.0.0-try ")
		program, err := elf.Open(filepath.Join(folder, "lockmigrate"))
		require.NoError(t, err)
		defer program.Close()
		for _, part := range program.Progs {
			require.NotEqual(t, elf.PT_INTERP, part.Type, "the file is not static")
		}
		for _, owned := range []string{"data", "certificates"} { // by COPY --chown; a volume, by fsGroup
			require.NoError(t, os.Chown(filepath.Join(folder, owned), 65532, 65532), "this needs root")
		}
	}
	return i
}

// start runs a container.
func (i image) start(t *testing.T, c container) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	for n, word := range c.args {
		if !i.shut {
			c.args[n] = strings.Replace(word, "/certificates/", i.folder+"/certificates/", 1)
		}
	}
	command := exec.Command(filepath.Join(i.folder, "lockmigrate"), c.args...)
	command.Dir = filepath.Join(i.folder, "data")
	if i.shut {
		command.Path, command.Dir = "/lockmigrate", "/data"
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: i.folder, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	command.Env = append([]string{"HOME=/"}, c.env...) // nothing of this process's
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command, &output
}

// ends runs a container to its end.
func (i image) ends(t *testing.T, c container) string {
	t.Helper()
	command, output := i.start(t, c)
	assert.NoError(t, command.Wait(), "%s: %q: %s", c.where, c.args, output)
	return output.String()
}

// serves runs a container until path answers, and ends it as Docker and Kubernetes do. It returns what its /metrics said.
func (i image) serves(t *testing.T, c container, address, path string) string {
	t.Helper()
	command, output := i.start(t, c)
	ask := func(path string) (text string, ok bool) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer demo")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", false
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err == nil && response.StatusCode == http.StatusOK
	}
	if !assert.Eventually(t, func() bool { _, ok := ask(path); return ok }, time.Minute, 50*time.Millisecond, "%s: %q", c.where, c.args) {
		_ = command.Process.Kill()
	}
	metrics, ok := ask("/metrics")
	assert.True(t, ok, "%s: /metrics", c.where)
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	err := command.Wait()
	assert.NoError(t, err, "%s: %q: %s", c.where, c.args, output)
	return metrics
}

// TestContainers builds what the image has in it, and runs each command line of compose.yaml and of the manifests with it, against a real
// server. Windows are shorter, and addresses are free ones. What alerts and dashboard ask for is what these processes export.
func TestContainers(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	s := redistest.Real(t)
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	record := stages.Record{Patterns: []string{"lock.order.*"}, Dialect: "jedis-ms", Shortest: time.Second, Stage: stages.Bridge}
	require.NoError(t, store.Init(t.Context(), record))
	i := build(t)
	assert.Contains(t, i.ends(t, container{args: []string{"--version"}}), "lockmigrate")
	assert.Contains(t, i.ends(t, container{args: []string{"demo", "--act", "300ms"}}), "OVERLAPS", "on the server inside the program")
	assert.Contains(t, i.ends(t, container{args: []string{"scan", "--redis", s.URL()}}), "locks")

	all := exported(t)
	var ran []string
	var lines []container
	for _, file := range append(manifests(t), "deploy/compose.yaml") {
		for _, doc := range documents(t, file) {
			lines = append(lines, containers(file, doc, s.URL())...)
		}
	}
	for _, c := range lines {
		address := redistest.FreeAddr(t)
		short := strings.NewReplacer("26h", "2s", "10m", "1s", "25h", "1s", "1m", "300ms", "0.0.0.0:8787", address, "0.0.0.0:9180", address)
		for n, word := range c.args {
			c.args[n] = short.Replace(word)
		}
		ran = append(ran, c.args[0])
		switch c.args[0] {
		case "serve":
			all.scraped(i.serves(t, c, address, "/api/state"))
		case "sidecar":
			c.args = append(c.args, "--listen", redistest.FreeAddr(t), "--drain", "100ms")
			all.scraped(i.serves(t, c, address, "/readyz"))
		case "verify":
			command, output := i.start(t, c)
			var ended *exec.ExitError
			if assert.ErrorAs(t, command.Wait(), &ended, "%s", output) {
				assert.Equal(t, 4, ended.ExitCode(), "%s", output)
			}
			assert.Contains(t, output.String(), "no member of namespace orders reports any more", "this server has a record and no fleet")
			assert.FileExists(t, filepath.Join(i.folder, "certificates", "orders.certificate.json"), c.where)
		default:
			i.ends(t, c)
		}
	}
	assert.ElementsMatch(t, []string{"serve", "sidecar", "verify", "observe", "sweep", "demo", "serve"}, ran)
	assert.FileExists(t, filepath.Join(i.folder, "certificates", "orders.profile.json"))
	asksForWhatExists(t, all)
}
