package httpapi

import (
	"net/http"
	"net/url"
	"strings"
)

// isOwn reports whether a request names this server by a name of its own and, if a
// browser sent it, whether a page of this server or the user made it.
func isOwn(r *http.Request, hosts func(string) bool) bool {
	if !hosts(r.Host) {
		return false
	}
	if origin := r.Header["Origin"]; len(origin) > 0 {
		u, err := url.Parse(origin[0])
		if err != nil || len(origin) > 1 || !strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	site := r.Header["Sec-Fetch-Site"]
	return len(site) == 0 || len(site) == 1 && (site[0] == "same-origin" || site[0] == "none")
}

// refuseForeign answers what isOwn refuses.
func (a *restAPI) refuseForeign(w http.ResponseWriter) {
	detail := "Host must be an address or a name of this server (the setting hosts adds names), and a page of another origin cannot call it"
	if a.opts.LoopbackOnly {
		detail = "this listener serves programs on the same machine: Host must be a loopback name, and a page of another origin cannot call it"
	}
	a.refuse(w, http.StatusForbidden, problem{Code: "permission_denied", Title: "the request comes from elsewhere", Detail: detail})
}
