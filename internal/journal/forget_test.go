package journal

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Forget takes back records, and not what the journal has to say.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	d := &disk{room: 0}
	j := open(t, dir, Options{Open: d.open})
	j.Buffer("too long", strings.Repeat("z", MaxRecord))
	j.Buffer("taken back")
	if err := j.Flush(); !errors.Is(err, errFull) {
		t.Fatalf("on a full disk: %v", err)
	}
	j.Forget()
	if s := j.Stats(); s != (Stats{Waiting: 2, Lost: 1}) {
		t.Errorf("the counts are %+v; want two records of the journal's own waiting", s)
	}
	d.mu.Lock()
	d.room = -1
	d.mu.Unlock()
	if err := j.Append("last"); err != nil {
		t.Fatal(err)
	}
	var got []string
	_, err := Read(t.Context(), dir, "x", func(r []byte) error {
		first, _, _ := strings.Cut(string(r), "\t")
		got = append(got, first)
		return nil
	})
	if want := []string{Opened, Lost, "last"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the journal has %q, %v; want %q", got, err, want)
	}
}

// What is taken back may stand in the file in part, and takes nothing along.
func TestForgetEndsATornRecord(t *testing.T) {
	dir := t.TempDir()
	d := &disk{room: -1}
	j := open(t, dir, Options{Open: d.open})
	if err := j.Append("first"); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.room, d.files[0].stuck = 5, true
	d.mu.Unlock()
	j.Buffer("taken back")
	if err := j.Flush(); !errors.Is(err, errFull) {
		t.Fatalf("on a full disk: %v", err)
	}
	j.Forget()
	d.mu.Lock()
	d.room = -1
	d.mu.Unlock()
	if err := j.Append("last"); err != nil {
		t.Fatal(err)
	}
	if got, damaged := records(t, dir); !slices.Equal(got, []string{"first", "last"}) || damaged != 1 {
		t.Errorf("the journal has %q, and %d are damaged; want the first and the last, and one torn", got, damaged)
	}
}
