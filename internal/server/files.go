package server

import (
	"log/slog"
	"slices"
	"sync"
)

// Limits of the process's open files.
const (
	defaultHTTPConnections = 20_000

	ownFiles = 256 // for the store, the log, files that are read anew, and connections being refused
)

// fitFiles lowers the limits on connections until the process may open that many
// files: accepting on one listener must not fail for connections on another. A
// connection that is refused then is reported to c.crowded, the first time as a
// warning. What fitFiles returns tells the log of it, once the server has opened
// everything: a server that cannot start says nothing but why.
func (c *Config) fitFiles(log *slog.Logger) (tell func()) {
	tell, c.crowded = func() {}, func() {}
	files, ok := maxFiles()
	if !ok {
		return tell
	}
	limits := []*int{&c.HTTPConnections}
	if c.RESP != "" {
		limits = append(limits, &c.RESPConnections)
	}
	if share, lowered := fit(files, c.listeners(), limits...); lowered {
		lowered := []any{"files", files, "connections", share, "http_connections", c.HTTPConnections, "resp_connections", c.RESPConnections}
		tell = func() {
			log.Info("the limit on open files allows fewer connections than the settings", lowered...)
		}
		c.crowded = sync.OnceFunc(func() {
			log.Warn("connections are refused: the limit on open files is too low for the settings of connections; raise it (ulimit -n, LimitNOFILE)", lowered...)
		})
	}
	return tell
}

// listeners is how many addresses are listened on. But for that of Redis, they have
// the limit of HTTP.
func (c *Config) listeners() (n int) {
	for _, e := range slices.Concat(c.endpoints(), c.mountEndpoints()) {
		if e.address != "" {
			n++
		}
	}
	return n
}

// fit lowers limits that are above a listener's share of the files, if those are too
// few for all of them.
func fit(files, listeners int, limits ...*int) (share int, lowered bool) {
	wanted := 0
	for i, limit := range limits {
		wanted += *limit
		if i == 0 {
			wanted += *limit * (listeners - len(limits))
		}
	}
	share = max((files-min(ownFiles, files/2))/listeners, 1)
	if wanted+ownFiles <= files {
		return share, false
	}
	for _, limit := range limits {
		lowered = lowered || *limit > share
		*limit = min(*limit, share)
	}
	return share, lowered
}
