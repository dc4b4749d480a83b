package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

//go:embed assets
var assets embed.FS

//go:embed assets/page.css
var style template.CSS

// Style is the sheet of every page and report, for light and dark, screen and phone. It defines the colours as variables: --bg, --card, --ink,
// --dim, --line, --link, --good, --warn, --bad, and one for each kind of client. A table of class "stack" becomes a list on a phone: its head
// goes, and each cell shows its data-label.
func Style() template.CSS { return style }

// Handler serves the page, the API and the metrics. With a token every request needs it: as a bearer token,
// or once as ?token=, which then becomes a cookie. Hosts are the names that the page may be addressed by
// where there is no token: a page of another origin that points its own name at this address is refused.
func Handler(state func() State, token string, hosts []string) http.Handler {
	mux := http.NewServeMux()
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // embedded at build time: a missing folder is a programming error
	}
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /api/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state())
	})
	mux.Handle("GET /metrics", metrics(state))
	return guarded(mux, token, hosts)
}

const cookieName = "lockmigrate"

// guarded lets pass who may see the page, and tells browsers to run and load nothing but its own files.
func guarded(next http.Handler, token string, hosts []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		given := r.URL.Query().Get("token")
		bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		cookie, err := r.Cookie(cookieName)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
		case token == "" && !addressedBy(r.Host, hosts):
			http.Error(w, "this page is not known by that name", http.StatusMisdirectedRequest)
		case token != "" && same(given, token):
			http.SetCookie(w, &http.Cookie{Name: cookieName, Value: given, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, r.URL.Path, http.StatusSeeOther) // the token leaves the address bar
		case token == "" || same(bearer, token) || err == nil && same(cookie.Value, token):
			next.ServeHTTP(w, r)
		default:
			h.Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token is needed: open the address that lockmigrate serve printed", http.StatusUnauthorized)
		}
	})
}

// same compares in constant time.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func addressedBy(host string, hosts []string) bool {
	name := (&url.URL{Host: host}).Hostname()
	return slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(name, h) })
}

// Serve answers requests until ctx ends, and then at most half a second longer.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
