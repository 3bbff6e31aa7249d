package storetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// kept is a store whose Close leaves it open.
type kept struct{ driver.Store }

func (kept) Close() error { return nil }

// TestAdoptControls breaks the refusal or the adoption in one way at a time, and
// expects the suite to see it.
func TestAdoptControls(t *testing.T) {
	for _, c := range []struct {
		name    string
		refusal error // nil: opened all the same
		refuses int   // how often, until it forgets
		adopts  bool
		fresh   bool // adopt makes a new store
		caught  bool
	}{
		{"as it should be", hapax.ErrStoreReplaced, 1 << 20, true, false, false},
		{"never refused", nil, 0, true, false, true},
		{"refused once", hapax.ErrStoreReplaced, 1, true, false, true},
		{"refused for now", hapax.ErrStoreUnavailable, 1 << 20, true, false, true},
		{"adopted in vain", hapax.ErrStoreReplaced, 1 << 20, false, false, true},
		{"adopted as another", hapax.ErrStoreReplaced, 1 << 20, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Harness{Open: func(testing.TB) Handle { return memstore.New() }, Capabilities: Capabilities{NoRows: true}}
			h.Estrange = func(testing.TB) Estranged {
				store, strange, refused := driver.Store(memstore.New()), false, 0
				return Estranged{
					Open: func(context.Context) (Handle, error) {
						if strange && refused < c.refuses && c.refusal != nil {
							refused++
							return nil, fmt.Errorf("%w: another server", c.refusal)
						}
						return kept{store}, nil
					},
					Estrange: func() { strange = true },
					Adopt: func(context.Context) error {
						strange = !c.adopts
						if c.fresh {
							store = memstore.New()
						}
						return nil
					},
				}
			}
			failures := check{name: "identity/adopt", run: checkAdopt}.failures(t, h)
			if caught := len(failures) > 0; caught != c.caught {
				t.Errorf("the suite says %q", failures)
			}
		})
	}
}
