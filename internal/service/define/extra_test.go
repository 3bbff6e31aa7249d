package define

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
)

// A tag is read anew where its Extra is another, and only there.
func TestNow(t *testing.T) {
	coded, later := hapax.Tag{Name: "t", Mark: 1, Extra: CodeExtra("A{id:6}", "")}, hapax.Tag{Name: "t", Mark: 2, Extra: CodeExtra("B{id:6}", "")}
	for _, tt := range []struct {
		name  string
		known Tag
		now   hapax.Tag
		spec  string
		isOur bool
	}{
		{"nothing known", Tag{}, coded, "A{id:6}", true},
		{"nothing known, nothing said", Tag{}, hapax.Tag{Name: "t"}, "", true},
		{"another code", Read(coded), later, "B{id:6}", true},
		{"no code any more", Read(coded), hapax.Tag{Name: "t", Mark: 2}, "", true},
		{"a text of another's", Read(coded), hapax.Tag{Name: "t", Extra: "mine"}, "", false},
		{"of another version", Read(coded), hapax.Tag{Name: "t", Extra: `{"code":2}`}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.known.Now(tt.now)
			if got.Tag != tt.now || got.Says.Spec != tt.spec || got.IsOur != tt.isOur || (got.Unread != nil) != (Read(tt.now).Unread != nil) {
				t.Errorf("got %+v", got)
			}
		})
	}
	known, moved := Read(coded), coded
	moved.Mark, moved.Step = 900, 7
	if n := testing.AllocsPerRun(100, func() { _ = known.Now(moved) }); n != 0 || known.Now(moved).Tag != moved || known.Now(moved).Says.Spec != "A{id:6}" {
		t.Errorf("%v allocations, %+v: the Extra is read again, or another tag returned", n, known.Now(moved))
	}
}

// Nothing is made of an Extra that another version has written.
func TestUnread(t *testing.T) {
	strange := Read(hapax.Tag{Name: "t", Kind: hapax.KindSegment, Extra: `{"code":1,"spec":"{id:6}","shuffled":true}`})
	seq := strange
	seq.Extra = `{"code":1,"spec":"{seq:6}","shuffled":true}`
	given := Read(hapax.Tag{Extra: CodeExtra("B{id:6}", "")})
	var k Keys
	for name, do := range map[string]func() error{
		"Code":              func() error { _, err := k.Code(strange); return err },
		"Canonical":         func() error { _, err := k.Canonical(strange); return err },
		"Supersede":         func() error { _, err := k.Supersede(strange, given); return err },
		"Supersede, by it":  func() error { _, err := k.Supersede(given, strange); return err },
		"Revive":            func() error { _, err := k.Revive(strange, given, given.Says); return err },
		"CheckLease":        func() error { return k.CheckLease(Read(seq.Tag)) },
		"WithStrategy":      func() error { _, err := WithStrategy(strange.Tag, "own"); return err },
		"WithFloors":        func() error { _, err := WithFloors(strange.Extra, FloorsNone()); return err },
		"Frozen by plugins": func() error { _, err := strange.Frozen([]string{"p/1"}); return err },
	} {
		if err := do(); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v, want invalid_argument", name, err)
		}
	}
	if v := Shown(strange.Tag); v.Code != "" || v.Strategy != "" || v.FloorFrom != nil {
		t.Errorf("it is shown as %+v", v)
	}
}
