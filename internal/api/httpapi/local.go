package httpapi

import "net/http"

// IsLocal reports whether a request can be answered on loopback: it names this machine
// by a loopback name, and no page of another origin made a browser send it.
func IsLocal(r *http.Request) bool { return isOwn(r, isLoopbackHost) }
