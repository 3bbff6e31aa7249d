package console

import (
	"net/http"
	"strings"

	"github.com/hapax-id/hapax/internal/signals"
)

// runbookIDs are the anchors of the runbook's entries.
var runbookIDs = func() map[string]bool {
	ids := map[string]bool{}
	for _, t := range signals.Troubles() {
		ids[t.ID] = true
	}
	return ids
}()

// seeLink returns the address, on this console, of an entry of the runbook that a node
// points at; empty for one that is not there.
func seeLink(see string) string {
	_, id, _ := strings.Cut(see, "#")
	if !runbookIDs[id] {
		return ""
	}
	return "runbook#" + id
}

func seeCode(code string) string { return signals.SeeCode(code) }

// A piece is a part of a text: code, or words.
type piece struct {
	Text string
	Code bool
}

// pieces takes apart a text in which code stands between backquotes.
func pieces(text string) []piece {
	var all []piece
	for i, part := range strings.Split(text, "`") {
		if part != "" {
			all = append(all, piece{part, i%2 == 1})
		}
	}
	return all
}

// runbook shows what each error, alarm and message of the log means and what to do: it is
// within the program, so that it is at hand when nothing else is.
func (c *Console) runbook(v *visit) error {
	out := c.view(v, "Runbook", "runbook")
	out.Command, out.Body = c.at("status"), signals.Sections()
	c.render(v.w, http.StatusOK, "runbook", out)
	return nil
}
