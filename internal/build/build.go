// Package build tells what the running binary was built from.
package build

import (
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/hapax-id/hapax"
)

// Info describes a binary.
type Info struct {
	Version  string `json:"version"`            // as the file VERSION has it
	Revision string `json:"revision,omitempty"` // the commit; empty where it was built outside a checkout
	Modified bool   `json:"modified,omitempty"` // built from a tree with local changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read returns what the running binary was built from.
var Read = sync.OnceValue(func() Info {
	i := Info{Version: hapax.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return i
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Revision = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
})

// Product names the program and its version, as the header Server of HTTP has it.
func Product() string { return "hapax/" + hapax.Version() }
