package storetest

import (
	"errors"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// unreadable are rows that are no definitions of tags.
var unreadable = map[string]string{
	"text":              "orders are at 500",
	"no JSON":           `{"kind":"segment`,
	"another type":      `{"kind":"segment","step":"ten"}`,
	"an unknown field":  `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":10,"delta":1,"mark":11,"steps":10}`,
	"a mark out of it":  `{"kind":"segment","start":1,"step":10,"min_step":10,"max_step":10,"delta":1,"mark":-5}`,
	"another kind":      `{"kind":"counter","start":1}`,
	"one that is large": strings.Repeat("x", driver.MaxValueBytes/2),
}

// checkKVUnreadable: a tag whose row cannot be read blocks its own line alone.
func checkKVUnreadable(e *env) {
	k := e.kv(e.roles)
	k.table = ""
	good, bad := e.segment("good", 10).Name, e.segment("bad", 10).Name
	e.allocate(bad, 10)
	whole := string(k.cell(bad).Value)
	for what, row := range unreadable {
		k.set(bad, row)
		for _, h := range e.handles(2) {
			_, errTag := h.store.Tag(e.ctx, bad)
			_, errGrant := h.store.Allocate(e.ctx, bad, 1, "")
			for call, err := range map[string]error{"Tag": errTag, "Allocate": errGrant} {
				if u, ok := errors.AsType[*driver.UnreadableError](err); !ok || u.Tag != bad {
					e.Errorf("%s: %s: error is %v; want one of this tag alone", what, call, err)
				}
			}
			tags, err := h.store.Tags(e.ctx, "", 1<<20)
			e.must(err)
			found := map[string]hapax.Kind{}
			for _, t := range tags {
				found[t.Name] = t.Kind
			}
			equal(e, what+": the kind of the bad tag in a list", found[bad], hapax.KindUnreadable)
			equal(e, what+": the kind of the good tag in a list", found[good], hapax.KindSegment)
			_, err = h.store.Allocate(e.ctx, good, 1, "")
			e.must(err)
		}
	}
	k.set(bad, whole)
	equal(e, "the first number after the row was mended", e.allocate(bad, 1).Grant.Lo, 11)
}
