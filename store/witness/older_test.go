package witness_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// older writes a witness as an older version did, for a store of which %s is the identity.
func (f *fleet) older(name string, records ...string) {
	f.t.Helper()
	id, err := f.store.StoreID(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var text strings.Builder
	for _, r := range records {
		r = strings.ReplaceAll(r, "%s", id)
		fmt.Fprintf(&text, "%08x\t%s\n", crc32.Checksum([]byte(r), crc32.MakeTable(crc32.Castagnoli)), r)
	}
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// A witness of an older version keeps the store from going below its marks, which are no
// reason to stop: it may have handed numbers back.
func TestWitnessOfAnOlderVersion(t *testing.T) {
	for name, records := range map[string][]string{
		"first":  {"hapax-witness-1\t", "change\t%s", "change\t\t1001\ttag/t", "change\t\t2001\ttag/t"},
		"second": {"hapax-witness-2\t{}", `change` + "\t" + `{"node":"EQ6Z5UNEQ5RYCEZN6JXW2CLZCB"}`, `change` + "\t" + `{"store":"%s","beat":4,"at":5,"peers":{"x":"y"}}`, `change` + "\t" + `{"marks":{"tag/t":9001}}`, `change` + "\t" + `{"offers":{"tag/t":2001}}`, `change` + "\t" + `{"marks":{"tag/t":2001},"offers":{"tag/t":-1}}`},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				f.older("a", records...)
				a := f.start("a")
				time.Sleep(wait + time.Second)
				a.must("t", 10)
				if mark := f.used["t"][0].grant.Lo; mark != 2001 {
					t.Errorf("the first number is %d; want 2001", mark)
				}
				a.stop()
				time.Sleep(2 * wait)
				again := f.start("a") // in the present format, with nothing left to take over
				time.Sleep(wait + time.Second)
				again.must("t", 10)
				if len(f.used["t"]) != 2 || f.used["t"][1].grant.Lo != 2011 {
					t.Errorf("then it is granted %v; want 2011 on", f.used)
				}
				again.stop()
			})
		})
	}
}

// A node of an older version that runs is waited for, by name. When it has ended, its
// version is kept from the store.
func TestNodesOfAnOlderVersion(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		beat := func(n int) {
			old := f.row("nodes", "EQ6Z5UNEQ5RYCEZN6JXW2CLZCB")
			value := fmt.Appendf(nil, `{"beat":%d,"run":"r","name":"old-1","every_ms":1000,"since_ms":1,"at_ms":1}`, n)
			if ok, err := f.store.SwapRow(t.Context(), "nodes", "EQ6Z5UNEQ5RYCEZN6JXW2CLZCB", old, value); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		beat(1)
		a := f.start("a")
		for n := range 12 {
			time.Sleep(time.Second)
			beat(2 + n)
			if a.Status().State != witness.Joining {
				t.Fatalf("the node is %s beside one of an older version", a.Status().State)
			}
		}
		time.Sleep(time.Second / 2)
		if why := a.Status().Why; !strings.Contains(why, `node "old-1" of an older version runs`) {
			t.Errorf("it says %q", why)
		}
		if raw := f.row(driver.TableFence, "fence"); raw != nil {
			t.Errorf("the older node is fenced: %s", raw)
		}
		time.Sleep(3 * wait) // it was stopped
		a.must("t", 10)
		if raw := string(f.row(driver.TableFence, "fence")); !strings.Contains(raw, "newer version") {
			t.Errorf("the older version's fence is %q", raw)
		}
		if raw := f.row("nodes", "EQ6Z5UNEQ5RYCEZN6JXW2CLZCB"); raw != nil {
			t.Errorf("its row is %s", raw)
		}
		b := f.start("b")
		b.must("t", 10)
	})
}

// A fence that an older version raised is left to that version.
func TestFenceOfAnOlderVersion(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		if ok, err := f.store.SwapRow(t.Context(), driver.TableFence, "fence", nil, []byte(`{"id":"x","node":"n","name":"old-1","at":"2026-01-01T00:00:00Z","why":"it went back"}`)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		a := f.start("a")
		ctx, cancel := context.WithTimeout(t.Context(), 3*wait)
		defer cancel()
		if _, err := a.Allocate(ctx, "t", 1, ""); err == nil || errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("under the fence: %v", err)
		}
		if why := a.Status().Why; !strings.Contains(why, "hapax adopt") || !strings.Contains(why, "old-1") {
			t.Errorf("it says %q", why)
		}
	})
}

// A witness and rows that a newer version has written are refused, by both formats, and
// left as they are.
func TestNewerVersion(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		f.older("w", "hapax-witness-4\t{}", "more\t{}")
		path := filepath.Join(f.dir, "w")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = witness.OpenFile(path)
		if want := `begins with "hapax-witness-4", and this version, hapax ` + hapax.Version() + `, reads the formats hapax-witness-1 to hapax-witness-3`; !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("the witness: %v; want %s", err, want)
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != string(text) {
			t.Errorf("the witness became %q, %v", raw, err)
		}

		const row = `{"format":4,"by":"9.1.0","more":[]}`
		if ok, err := f.store.SwapRow(t.Context(), driver.TableGuard, "format", nil, []byte(row)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		a := f.start("a")
		time.Sleep(2 * wait)
		want := "the store's rows have format 4, written by hapax 9.1.0, and this version, hapax " + hapax.Version() + ", knows formats up to 3"
		if st := a.Status(); st.State != witness.Joining || !strings.Contains(st.Why, want) {
			t.Errorf("on rows of a newer version it is %s: %s; want %s", st.State, st.Why, want)
		}
		if raw := f.row(driver.TableGuard, "format"); string(raw) != row {
			t.Errorf("the row became %s", raw)
		}
		beats, err := f.store.ListRows(t.Context(), driver.TableBeats, "", 10)
		if err != nil || len(beats) > 0 {
			t.Errorf("it has joined: %v, %v", beats, err)
		}
	})
}
