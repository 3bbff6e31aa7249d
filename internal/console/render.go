package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

//go:embed templates/*.html
var pageFiles embed.FS

//go:embed assets vendored
var files embed.FS

// assets are the files that pages load, by the name with which they ask for them: its
// digest is in there, so that a browser keeps each as long as it likes.
var assets, assetNames = func() (map[string][]byte, map[string]string) {
	byName, names := map[string][]byte{}, map[string]string{}
	for _, dir := range []string{"assets", "vendored"} {
		entries, err := fs.ReadDir(files, dir)
		if err != nil {
			panic(err) // they are within the binary
		}
		for _, e := range entries {
			if path.Ext(e.Name()) == ".LICENSE" {
				continue
			}
			data, err := files.ReadFile(dir + "/" + e.Name())
			if err != nil {
				panic(err)
			}
			sum := sha256.Sum256(data)
			name := hex.EncodeToString(sum[:6]) + "-" + e.Name()
			byName[name], names[e.Name()] = data, "assets/"+name
		}
	}
	return byName, names
}()

// asset serves a file that pages load, to anybody.
func asset(w http.ResponseWriter, r *http.Request) {
	data, ok := assets[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(r.PathValue("name"))))
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(data) // an error means that the client has disconnected
}

// A view is what a template shows.
type view struct {
	Title   string
	Page    string // the name of the page in the navigation
	Bare    bool   // nobody has come in yet: there is nothing to navigate to
	Live    bool   // it is refreshed
	Query   string // of its URL, with the ? before it
	Command string // that tells or does the same on a command line
	Done    string // what was done just now
	Error   string

	Node    string // who answers
	Caller  string // the caller's name; empty where nobody is asked
	Session bool
	Admin   bool // may change things
	Nodes   []nodeView
	More    int // nodes that are not among them
	Body    any
}

// view returns the view of a page of a visit.
func (c *Console) view(v *visit, title, name string) view {
	out := view{
		Title: title, Page: name, Node: c.opts.Name, Session: v.session,
		Admin: v.caller.Allow(auth.Operate, "") == nil,
	}
	out.Nodes, out.More = c.nodes(v.Context())
	if c.opts.Policy.HasTokens() {
		out.Caller = v.caller.Name()
	}
	if v.Method == http.MethodGet && v.URL.RawQuery != "" {
		out.Query = "?" + v.URL.RawQuery
	}
	return out
}

// render writes a page.
func (c *Console) render(w http.ResponseWriter, status int, name string, v view) {
	// Into memory first: a template that fails must not leave half a page behind a good status.
	var b bytes.Buffer
	if err := templates()[name].ExecuteTemplate(&b, "layout.html", v); err != nil {
		c.opts.Logger.Error("a page of the console cannot be shown", "page", name, "err", err)
		http.Error(w, "an internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error means that the client has disconnected
}

// refuse answers with a page that says what is wrong.
func (c *Console) refuse(w http.ResponseWriter, _ *http.Request, v *visit, status int, err error) {
	out := view{Title: http.StatusText(status), Bare: true, Error: messageOf(err)}
	if v != nil {
		out.Session, out.Caller = v.session, v.caller.Name()
	}
	c.render(w, status, "error", out)
}

// statusOf returns the status of an answer that an error ends.
func statusOf(err error) int {
	switch _, limited := errors.AsType[*auth.LimitError](err); {
	case limited:
		return http.StatusTooManyRequests
	case errors.Is(err, api.ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, api.ErrPermissionDenied):
		return http.StatusForbidden
	case errors.Is(err, hapax.ErrTagNotFound), errors.Is(err, hapax.ErrPoolNotFound):
		return http.StatusNotFound
	case errors.Is(err, hapax.ErrStoreUnavailable), errors.Is(err, hapax.ErrFenced):
		return http.StatusServiceUnavailable
	case errors.Is(err, hapax.ErrInvalidArgument), errors.Is(err, hapax.ErrInvalidID), errors.Is(err, hapax.ErrInvalidTag), errors.Is(err, hapax.ErrInvalidLayout), errors.Is(err, hapax.ErrTagExists):
		return http.StatusBadRequest
	case hapax.CodeOf(err) == hapax.ErrInternal.Code():
		return http.StatusInternalServerError
	}
	return http.StatusConflict
}

// messageOf returns what a person may know of an error.
func messageOf(err error) string { return hapax.Message(err) }

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// command returns a command line that a shell takes as these words.
func command(words ...string) string {
	for i, w := range words {
		if !plainWord.MatchString(w) {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// at returns a command line of hapax that asks this server.
func (c *Console) at(words ...string) string {
	words = append([]string{"hapax"}, words...)
	return command(append(words, "--server", c.opts.URL)...)
}

// templates are parsed for the first page, since every command would wait for it.
var templates = sync.OnceValue(func() map[string]*template.Template {
	all := map[string]*template.Template{}
	names, err := fs.Glob(pageFiles, "templates/*.html")
	if err != nil {
		panic(err) // it is a constant
	}
	for _, name := range names {
		if base := path.Base(name); base != "layout.html" && base != "parts.html" {
			all[strings.TrimSuffix(base, ".html")] = template.Must(template.New(base).Funcs(funcs).ParseFS(pageFiles, "templates/layout.html", "templates/parts.html", name))
		}
	}
	return all
})

var funcs = template.FuncMap{
	"asset": func(name string) string { return assetNames[name] },
	"count": count, "rate": rate, "span": span, "at": stamp, "dur": duration, "ago": span,
	"list": func(words ...string) []string { return words },
	"narrow": func(all []bitField) bool {
		return slices.ContainsFunc(all, func(f bitField) bool { return f.Width < 4*bitWidth })
	},
	"page": pageOf, "sparkOf": newSpark,
	"short": shown, "see": seeLink, "seconds": func(s float64) time.Duration { return api.Budget{Seconds: s}.Lasts() }, "ending": health.Ending,
	"until": func(t time.Time) string { return span(max(0, time.Until(t))) },
	"years": func(t time.Time) string { return fmt.Sprintf("%.1f years", time.Until(t).Hours()/24/365.25) },
}

// count writes a number with spaces between its thousands.
func count(v any) string {
	text := fmt.Sprint(v)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return sign + text
}

// rate writes numbers a second.
func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0"
	case perSecond < 10:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	}
	return count(int64(perSecond + 0.5))
}

// span writes how long something lasts, to be read at a glance.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "not used now"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 100*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	case d < 1000*24*time.Hour:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	}
	return fmt.Sprintf("%.1f years", d.Hours()/24/365.25)
}

// duration writes a length of time that may be negative.
func duration(d time.Duration) string {
	if d <= -time.Millisecond {
		return "-" + span(-d)
	}
	return span(max(d, 0))
}

// stamp writes a time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}
