package server

import "log/slog"

// Limits of the process's open files.
const (
	defaultHTTPConnections = 20_000

	ownFiles = 256 // for the store, the log, files that are read anew, and connections being refused
)

// fitFiles lowers the limits on connections until the process may open that many
// files: accepting on one listener must not fail for what came in on another.
func (c *Config) fitFiles(log *slog.Logger, ls listeners) {
	limit, ok := maxFiles()
	if !ok {
		return
	}
	limits := []*int{&c.HTTPConnections}
	if ls.resp != nil {
		limits = append(limits, &c.RESPConnections)
	}
	listeners := len(limits)
	if ls.admin != nil { // it has the limit of the other one, as those of foreign systems have
		listeners++
	}
	for _, e := range c.foreignEndpoints() {
		if e.address != "" {
			listeners++
		}
	}
	if share, lowered := fit(limit, listeners, limits...); lowered {
		log.Warn("the limit on open files is too low for the settings of connections; they are lowered",
			"files", limit, "connections", share, "http_connections", c.HTTPConnections, "resp_connections", c.RESPConnections)
	}
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
