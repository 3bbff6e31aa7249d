package deps

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// doorLines bounds the list of the root's exports, and doorSends has the sentences that lead its
// readers on: users, authors of stores and authors of strategies.
const doorLines = 90

var doorSends = []string{
	"a Segment counts a tag's numbers up",
	"To write a store, read github.com/hapax-id/hapax/store/driver.",
	"To make numbers your own way, or to stand around each call that issues, read github.com/hapax-id/hapax/strategy.",
}

// wrongDoor returns what is wrong with the answer of go doc for the root.
func wrongDoor(answer string) (found []string) {
	if n := strings.Count(answer, "\n"); n > doorLines {
		found = append(found, fmt.Sprintf("%d lines, of %d that are allowed", n, doorLines))
	}
	words := strings.Join(strings.Fields(answer), " ")
	for _, send := range doorSends {
		if !strings.Contains(words, send) {
			found = append(found, fmt.Sprintf("it does not say %q", send))
		}
	}
	return found
}

// TestDoor: go doc . is short, and a map.
func TestDoor(t *testing.T) {
	cmd := exec.Command("go", "doc", ".")
	cmd.Dir = top(t)
	answer, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range wrongDoor(string(answer)) {
		t.Error("go doc .:", wrong)
	}
	if wrong := wrongDoor(strings.Repeat("type T struct{}\n", doorLines+1)); len(wrong) != 1+len(doorSends) {
		t.Errorf("of a door that is long and no map the test finds %q", wrong)
	}
}
