package console

import (
	"fmt"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
)

// A code of digits is a code where its tag is given, and not the number that it looks like.
func TestDecodesCodesOfDigits(t *testing.T) {
	s := newStand(t, nil, nil)
	if _, err := s.svc.CreateTag(t.Context(), hapax.Tag{Name: "tickets", Start: 4711, Extra: define.CodeExtra("{id:4}{check}", "")}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	issued, err := s.svc.NextCodes(t.Context(), "tickets", 1)
	if err != nil {
		t.Fatal(err)
	}
	code := issued.Codes[0]
	if _, err := hapax.ParseID(code); err != nil {
		t.Fatalf("the code %q is no number", code)
	}
	_, _, text := s.get(t, Prefix+"decoder?tag=tickets&ids="+code)
	wants(t, "a code", text, "number 4711")
	_, _, text = s.get(t, Prefix+"decoder?tag=tickets&ids="+fmt.Sprint(issued.IDs[0]))
	wants(t, "a number", text, "<code>4711</code>")
}
