package server

import (
	"log/slog"
	"slices"
)

// Limits of the process's open files.
const (
	defaultHTTPConnections = 20_000

	ownFiles = 256 // for the store, the log, files that are read anew, and connections being refused
)

// fitFiles lowers the limits on connections until the process may open that many
// files: accepting on one listener must not fail for what came in on another. What it
// returns tells the log of it, once the server has opened everything: what keeps a
// server from starting is to be the only thing that it says.
func (c *Config) fitFiles() (tell func(*slog.Logger)) {
	tell = func(*slog.Logger) {}
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
		tell = func(log *slog.Logger) {
			log.Warn("the limit on open files is too low for the settings of connections; they are lowered", lowered...)
		}
	}
	return tell
}

// listeners is how many addresses are listened on. But for that of Redis, they have
// the limit of HTTP.
func (c *Config) listeners() (n int) {
	for _, e := range slices.Concat(c.endpoints(), c.foreignEndpoints()) {
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
