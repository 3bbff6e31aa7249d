package console

import (
	"strings"

	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/internal/site"
)

// runbookIDs are the anchors of the runbook's entries.
var runbookIDs = func() map[string]bool {
	ids := map[string]bool{}
	for _, t := range signals.Troubles() {
		ids[t.ID] = true
	}
	return ids
}()

// seeLink returns where this server has the entry of the runbook that a node points at;
// empty for one that is not there. It is relative to a page of the console.
func seeLink(see string) string {
	_, id, _ := strings.Cut(see, "#")
	if !runbookIDs[id] {
		return ""
	}
	return ".." + site.Prefix + "runbook.html#" + id
}

func seeCode(code string) string { return signals.SeeCode(code) }
