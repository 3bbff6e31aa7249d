package driver

import (
	"strings"
	"testing"
)

// A store whose copy is not known to be whole says how that is finished.
func TestRetiredErrorTellsToFinish(t *testing.T) {
	for _, whole := range []bool{false, true} {
		r := Retirement{Copy: "c", Store: "s", To: "redis://other/0", Whole: whole}
		read := RetirementIn(r.Encode())
		if read == nil {
			t.Fatal("the fence's row says nothing of the copy")
		}
		text := read.Err().Error()
		if !strings.Contains(text, "set store to that URL") || strings.Contains(text, "hapax store copy FROM redis://other/0") == whole {
			t.Errorf("whole %v: %s", whole, text)
		}
	}
}
