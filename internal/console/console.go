// Package console serves the web console: pages for people over what the service knows.
//
//	request ---> who is it? ---> may it see? ---> a page from this node's facts
//	             |               |                and those of the other nodes
//	             v               v
//	             the form that   a page that says
//	             takes a token   what is needed
//
// A visitor with a token in a header, or a certificate that stands for one, needs no form.
// Others show a token once and get a session, a signed cookie that names the token's
// digest: the token is looked up with each request, so that its end ends the session.
// A browser sends the cookie with requests that a page of another origin made, too, for
// which reason the cookie is SameSite=Strict, what changes something is a POST, and a POST
// whose origin is another one is refused.
//
// Pages are whole without a program in the browser, charts included; the programs refresh
// them and copy commands. All URLs are relative, so that the console works below any path
// of a proxy. What other nodes tell comes from package fleet.
package console

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/site"
)

// Prefix is where the pages are.
const Prefix = "/console/"

// Options are the parts of a console. Service and Fleet are required.
type Options struct {
	Service *service.Service
	Policy  *auth.Policy // may be nil
	Logger  *slog.Logger // default slog.Default()
	Log     *Log         // what was logged; nil: the page is empty

	Name    string // what operators know this node by
	Address string // where others find it, as HOST:PORT
	URL     string // for the commands that pages show

	// Secrets is the file that keeps the key of sessions, and which of them were ended;
	// it is made. Empty: sessions end with the process.
	Secrets string

	Fleet *fleet.Fleet // asks the other nodes
}

// A Console is the handler of the pages. Close must be called.
type Console struct {
	opts     Options
	svc      *service.Service
	mux      *http.ServeMux
	sessions *sessions
	origins  *http.CrossOriginProtection
	watcher  *watcher
	heard    heard
}

// New returns a console, which watches the service until it is closed.
func New(opts Options) *Console {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	c := &Console{
		opts: opts, svc: opts.Service, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		sessions: openSessions(opts), watcher: newWatcher(opts.Service),
	}
	opts.Fleet.Tell(aboutConsole, c.tellFacts)
	for pattern, p := range c.pages() {
		c.mux.HandleFunc(pattern, c.shown(p))
	}
	c.mux.HandleFunc("GET "+Prefix+"login", c.loginForm)
	c.mux.HandleFunc("POST "+Prefix+"login", c.login)
	c.mux.HandleFunc("POST "+Prefix+"logout", c.logout)
	c.mux.HandleFunc("GET "+Prefix+"assets/{name}", asset)
	c.mux.HandleFunc("GET "+site.Prefix, site.Serve)
	c.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { redirect(w, "console/") })
	c.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the console has no such page", http.StatusNotFound)
	})
	return c
}

// Close ends the watching.
func (c *Console) Close() { c.watcher.close() }

// Routes are the patterns that the console serves.
func (c *Console) Routes() []string { return []string{"GET /{$}", Prefix, site.Prefix} }

// Knows reports whether a request comes with a session.
func (c *Console) Knows(r *http.Request) bool {
	if !strings.HasPrefix(r.URL.Path, Prefix) {
		return false
	}
	_, err := c.opts.Policy.Wearer(c.sessions.badge(r))
	return err == nil
}

// policy tells browsers what to load and to do: nothing from elsewhere, no program
// or style within a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// maxForm bounds the body of a request, in bytes.
const maxForm = 64 << 10

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			c.opts.Logger.Error("panic while serving a page", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			http.Error(w, "an internal error", http.StatusInternalServerError)
		}
	}()
	if err := c.origins.Check(r); err != nil {
		c.refuse(w, r, nil, http.StatusForbidden, fmt.Errorf("%w: the request comes from a page of another origin", errForeign))
		return
	}
	most := int64(maxForm)
	if r.URL.Path == Prefix+"fence" { // which reads none of it before it knows who sends it
		most = maxWitness
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	c.mux.ServeHTTP(w, r)
}

var errForeign = errors.New("refused")

// redirect sends a browser to a relative URL, which stays below whatever path a proxy has.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// A visit is a request of a visitor who may see the console.
type visit struct {
	*http.Request
	w       http.ResponseWriter
	caller  *auth.Caller
	session bool // it came with a cookie, so that there is a way to log out
}

// who returns the maker of a request.
func (c *Console) who(r *http.Request) (caller *auth.Caller, session bool, err error) {
	p := c.opts.Policy
	// A header, which no browser sends by itself, counts before a cookie.
	if p.HasTokens() && len(r.Header["Authorization"]) == 0 {
		if badge := c.sessions.badge(r); badge != "" {
			caller, err = p.Wearer(badge)
			if err == nil {
				return caller, true, nil
			}
		}
	}
	// A session that has ended is nobody's, but the connection's certificate may be somebody's.
	caller, err = p.Enter(r.Context(), r.RemoteAddr, r.Header["Authorization"])
	return caller, false, err
}

// admit lets a request in, and counts it until done is called.
func (c *Console) admit(r *http.Request) (v *visit, done func(), err error) {
	caller, session, err := c.who(r)
	if err != nil {
		return nil, nil, err
	}
	if err := auth.ConnFromContext(r.Context()).Use(caller); err != nil {
		return nil, nil, err
	}
	if err := caller.Begin(); err != nil {
		return nil, nil, err
	}
	r = r.WithContext(auth.NewContext(r.Context(), caller, r.RemoteAddr))
	return &visit{Request: r, caller: caller, session: session}, caller.End, nil
}

// A page answers a visit.
type page func(v *visit) error

// shown returns the handler of a page for visitors who may see it.
func (c *Console) shown(p page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, done, err := c.admit(r)
		if err != nil {
			c.turnAway(w, r, err)
			return
		}
		defer done()
		v.w = w
		if err := v.caller.Allow(auth.Watch, ""); err != nil {
			c.refuse(w, r, v, http.StatusForbidden, fmt.Errorf("%w; the console needs a token with the scope read or admin, for all tags and pools", err))
			return
		}
		if err := p(v); err != nil {
			c.refuse(w, r, v, statusOf(err), err)
		}
	}
}

// turnAway sends a person to the form, and tells a program what is wrong.
func (c *Console) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	if _, limited := errors.AsType[*auth.LimitError](err); limited {
		w.Header().Set("Retry-After", "1")
		c.refuse(w, r, nil, http.StatusTooManyRequests, err)
		return
	}
	if len(r.Header["Authorization"]) > 0 || strings.HasSuffix(r.URL.Path, ".json") {
		c.refuse(w, r, nil, http.StatusUnauthorized, err)
		return
	}
	if r.Header.Get("Hx-Request") != "" { // a page that is open learns that its session has ended
		w.Header().Set("Hx-Redirect", "login")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	redirect(w, "login")
}
