package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/health"
)

// counted counts and measures what a handler answers.
func counted(route *health.Route, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { count(route, h, w, r) }
}

// count has a handler answer, and counts that.
func count(route *health.Route, h http.Handler, w http.ResponseWriter, r *http.Request) {
	began, failed := time.Now(), 1 // a handler that panics has failed
	told := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		route.Served(1, failed)
		route.Took(time.Since(began).Seconds())
	}()
	h.ServeHTTP(told, r)
	if told.status < http.StatusBadRequest && !told.failed {
		failed = 0
	}
}

// Counted has the requests to a foreign system counted and measured, under the system's
// name and its routes: a path, which may have a slash or a suffix such as .json behind it,
// or what begins with a path that ends in a slash. Others count together.
func Counted(svc *service.Service, system string, routes []string, h http.Handler) http.Handler {
	counts := make([]*health.Route, len(routes))
	for i, route := range routes {
		counts[i] = svc.Route(system, route)
	}
	other := svc.Route(system, routeName("/"))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := other
		path, _, _ := strings.Cut(r.URL.Path, ";") // parameters of a path, as in Java
		for i, route := range routes {
			if isOf(path, route) {
				of = counts[i]
				break
			}
		}
		count(of, h, w, r)
	})
}

// isOf reports whether a path is one of a route's.
func isOf(path, route string) bool {
	rest, ok := strings.CutPrefix(path, route)
	return ok && (rest == "" || rest == "/" || rest[0] == '.' || strings.HasSuffix(route, "/"))
}

// A statusWriter remembers how a request was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
	failed bool
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Failed notes that the answer reports an error, whatever its status.
func (w *statusWriter) Failed() { w.failed = true }

// Flush implements http.Flusher, which streams look for.
func (w *statusWriter) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // an error means that the client has disconnected
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
