package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	sdk "github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
)

// A server is killed, its data directory is lost, and it comes back empty at the same
// address: the clients that knew it take nothing from what is another store. What
// they were granted before they still use.
func TestServerThatLostItsData(t *testing.T) {
	t.Parallel()
	dir, address := t.TempDir(), freeAddress(t)
	start := func() *serving { return serve(t, dir, nil, "--http", address, "--data", "d") }
	s := start()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	dial := func() *sdk.Client {
		c, err := sdk.Dial(ctx, sdk.Options{}, s.url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // it cannot give anything back
		return c
	}
	// The first has plenty; the others soon ask again, and would be granted the same.
	long, short, calls := dial(), dial(), dial()
	flakes := map[*sdk.Client]hapax.Issuer{}
	segments := map[*sdk.Client]hapax.Issuer{}
	for c, grant := range map[*sdk.Client]time.Duration{long: time.Minute, short: time.Second} {
		flake, err := c.Snowflake(ctx, hapax.SnowflakeOptions{Grant: grant, MaxGrant: grant})
		if err != nil {
			t.Fatal(err)
		}
		segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 100, MaxStep: 100})
		if err != nil {
			t.Fatal(err)
		}
		flakes[c], segments[c] = flake, segment
	}
	takers := map[string][]func() (hapax.ID, error){
		"orders": {
			func() (hapax.ID, error) { return segments[long].Next(ctx) },
			func() (hapax.ID, error) { return segments[short].Next(ctx) },
			func() (hapax.ID, error) { return calls.Next(ctx, "orders") },
		},
		"snowflake": {
			func() (hapax.ID, error) { return flakes[long].Next(ctx) },
			func() (hapax.ID, error) { return flakes[short].Next(ctx) },
			func() (hapax.ID, error) { return calls.Next(ctx, "snowflake") },
		},
	}
	ids := map[string][]hapax.ID{}
	for tag, all := range takers {
		for _, take := range all {
			for range 100 {
				id, err := take()
				if err != nil {
					t.Fatal(err)
				}
				ids[tag] = append(ids[tag], id)
			}
		}
	}
	s.kill()
	if err := os.RemoveAll(filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	s = start()
	for tag, all := range takers {
		for i, take := range all {
			refused := tag == "snowflake" && i == 0 // its minute lasts longer than the test
			for n := 0; !refused || n < 2000; n++ {
				id, err := take()
				if err == nil {
					ids[tag] = append(ids[tag], id)
					patience.Slow(100 * time.Microsecond) // a second of time holds millions
					continue
				}
				if refused = errors.Is(err, hapax.ErrStoreReplaced); !refused {
					t.Fatalf("%s, client %d: error is %v, want ErrStoreReplaced", tag, i, err)
				}
				break
			}
		}
	}
	for tag, all := range ids {
		distinct(t, tag, all)
	}
}
