package service

import (
	"testing"

	"github.com/hapax-id/hapax/store/memstore"
)

// A caller that has looked for a line before the attempt of another one ended gets that line: a
// second one would leave what is granted to the first unused.
func TestAttemptAfterTheLineIsOpen(t *testing.T) {
	s := open(t, memstore.New(), Options{})
	mustNext(t, s, "orders")
	there := s.tags.find("orders")
	a, err := s.attempt(t.Context(), "orders") // as by that caller
	if err != nil {
		t.Fatal(err)
	}
	<-a.done
	if a.err != nil || a.line != there || s.tags.find("orders") != there {
		t.Errorf("the attempt has line %p, %v; want %p, which is open", a.line, a.err, there)
	}
	if id := mustNext(t, s, "orders"); id != 2 {
		t.Errorf("the next number is %d; want 2", id)
	}
}
