package witness_test

import (
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

// A witness of another format is refused, by both formats, and left as it is.
func TestWitnessOfAnotherFormat(t *testing.T) {
	for _, first := range []string{"hapax-witness-1\tstore\t7\ttag/t", `hapax-witness-2` + "\t" + `{"store":"s"}`, "hapax-witness-4\t{}"} {
		text := ""
		for _, record := range []string{first, "more\t{}"} {
			text += fmt.Sprintf("%08x\t%s\n", crc32.Checksum([]byte(record), crc32.MakeTable(crc32.Castagnoli)), record)
		}
		path := filepath.Join(t.TempDir(), "w")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, opened := witness.OpenFile(path)
		_, looked := witness.LookFile(path)
		_, read := witness.Read(path)
		kind, _, _ := strings.Cut(first, "\t")
		want := `begins with "` + kind
		also := `, and this version, hapax ` + hapax.Version() + `, reads the format hapax-witness-3`
		for what, err := range map[string]error{"opened": opened, "looked at": looked, "read": read} {
			if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), also) {
				t.Errorf("%s: %v; want %s…%s", what, err, want, also)
			}
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != text {
			t.Errorf("the witness became %q, %v", raw, err)
		}
	}
}

// Rows of another format are refused, by both formats, and left as they are.
func TestRowsOfAnotherFormat(t *testing.T) {
	for _, format := range []int{2, 4} {
		world(t, func(t *testing.T, f *fleet) {
			row := fmt.Sprintf(`{"format":%d,"by":"9.1.0","more":[]}`, format)
			if ok, err := f.store.SwapRow(t.Context(), driver.TableGuard, "format", nil, []byte(row)); !ok || err != nil {
				t.Fatal(ok, err)
			}
			a := f.start("a")
			time.Sleep(2 * wait)
			want := fmt.Sprintf("the store's rows have format %d, written by hapax 9.1.0, and this version, hapax %s, knows format 3", format, hapax.Version())
			if st := a.Status(); st.State != witness.Joining || !strings.Contains(st.Why, want) {
				t.Errorf("it is %s: %s; want %s", st.State, st.Why, want)
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
}

// A fence's row tells why it keeps everybody from the store.
func TestFenceIn(t *testing.T) {
	r := driver.Retirement{Copy: "C", Store: "s", To: "redis://there/0", By: "here"}
	for name, v := range map[string]struct {
		raw  string
		want error
		says string
	}{
		"none":           {"", nil, ""},
		"a fence":        {`{"id":"F","node":"a","why":"it lacks t"}`, hapax.ErrFenced, "it lacks t"},
		"... for one":    {`{"id":"F","node":"a","why":"it lacks t","missing":[{"row":"1-X","name":"b"}]}`, hapax.ErrFenced, "; missing: b (row 1-X"},
		"being filled":   {`{"id":"F","closed":"rows are missing"}`, hapax.ErrStoreUnavailable, "rows are missing"},
		"copied":         {string(r.Encode()), hapax.ErrStoreRetired, "redis://there/0"},
		"what is no row": {"~", hapax.ErrStoreCorrupt, ""},
	} {
		var raw []byte
		if v.raw != "" {
			raw = []byte(v.raw)
		}
		err := witness.FenceIn(raw)
		if !errors.Is(err, v.want) || v.want == nil && err != nil || v.want != nil && !strings.Contains(err.Error(), v.says) {
			t.Errorf("%s: %v; want %v, %q", name, err, v.want, v.says)
		}
	}
	if err := witness.CheckFormat(t.Context(), emptyStore()); err != nil {
		t.Errorf("rows that tell no format: %v", err)
	}
}
