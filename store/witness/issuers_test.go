package hapax_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// An issuer that starts after a crash believes its store only as far as the
// witness does.
func TestIssuersHeedTheWitness(t *testing.T) {
	type opener func(context.Context, *memstore.Store, *hapax.Witness) (hapax.Issuer, error)
	issuers := map[string]opener{
		"segment": func(ctx context.Context, store *memstore.Store, w *hapax.Witness) (hapax.Issuer, error) {
			return hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{Clock: newTestClock(), Witness: w})
		},
		"snowflake": func(ctx context.Context, store *memstore.Store, w *hapax.Witness) (hapax.Issuer, error) {
			return hapax.NewSnowflake(ctx, store, hapax.SnowflakeOptions{
				Clock: newTestClock(), Witness: w, Workers: hapax.Grant{Lo: 0, Hi: 1}, Holder: "node",
			})
		},
	}
	troubles := map[string]struct {
		trouble func(store, used *memstore.Store)
		want    error
	}{
		"none":                 {func(store, used *memstore.Store) {}, nil},
		"restored to its past": {func(store, used *memstore.Store) { store.Restore(used) }, hapax.ErrStoreRolledBack},
		"replaced":             {func(store, used *memstore.Store) { store.Restore(memstore.New()) }, hapax.ErrStoreReplaced},
	}
	for kind, open := range issuers {
		for _, earlier := range []int{0, 1} { // runs before the backup was made
			for name, c := range troubles {
				name = kind + ", " + name + map[int]string{0: ", without the line", 1: ""}[earlier]
				bubble(t, name, func(t *testing.T) {
					store, path := memstore.New(), filepath.Join(t.TempDir(), "witness")
					run := func() error {
						w, err := hapax.OpenWitness(path)
						if err != nil {
							t.Fatal(err)
						}
						defer w.Close() // before the issuer closes: a crash
						s, err := open(t.Context(), store, w)
						if err != nil {
							return err
						}
						t.Cleanup(func() { _ = s.Close(context.Background()) })
						_, err = s.Next(t.Context())
						return err
					}
					for range earlier {
						if err := run(); err != nil {
							t.Fatal(err)
						}
					}
					backup := store.Snapshot()
					if err := run(); err != nil {
						t.Fatal(err)
					}
					c.trouble(store, backup)
					if err := run(); !errors.Is(err, c.want) {
						t.Errorf("error is %v, want %v", err, c.want)
					}
				})
			}
		}
	}
}
