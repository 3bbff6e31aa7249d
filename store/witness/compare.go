package witness

import (
	"context"
	"errors"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// used are the tags of which this process was granted numbers, those first that were
// compared with the store longest ago.
type used struct {
	mu    sync.Mutex // guards the fields below
	known map[string]bool
	order []string
}

func (u *used) add(tag string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known[tag] {
		return
	}
	if u.known == nil {
		u.known = map[string]bool{}
	}
	u.known[tag] = true
	u.order = append(u.order, tag)
}

// next returns the tags that are to be compared now.
func (u *used) next() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := min(len(u.order), driver.MaxNamed)
	some := u.order[:n:n]
	u.order = append(u.order[n:], some...)
	return some
}

// compare reads some of the tags of which this process was granted numbers: one that is
// lower than the witness knows was set back by itself, whoever uses it meanwhile.
func (g *Guarded) compare(ctx context.Context, s store) error {
	names := g.used.next()
	return g.compareTags(ctx, s, names)
}

// compareTags compares tags with what the witness knows of them.
func (g *Guarded) compareTags(ctx context.Context, s store, names []string) error {
	if len(names) == 0 {
		return nil
	}
	known := make(map[string]Pair, len(names))
	for _, name := range names {
		known[name], _ = g.witness.Pair(TagLine(name))
	}
	tags, err := s.TagsNamed(ctx, names)
	if err != nil {
		return unavailable(err)
	}
	have := make(map[string]Pair, len(tags))
	for _, t := range tags {
		have[t.Name] = Pair{t.Token, t.Mark}
	}
	for name, want := range known {
		if has, ok := have[name]; ok && !has.Less(want) {
			continue
		}
		switch t, err := s.Tag(ctx, name); { // a server that lagged behind may have answered
		case errors.Is(err, hapax.ErrTagNotFound), errors.Is(err, hapax.ErrStoreRolledBack):
			return g.isBehind(lacksLine(TagLine(name), want, Pair{}))
		case err != nil:
			return unavailable(err)
		case Pair{t.Token, t.Mark}.Less(want):
			return g.isBehind(lacksLine(TagLine(name), want, Pair{t.Token, t.Mark}))
		}
	}
	return nil
}
