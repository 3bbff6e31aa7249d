package coordtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// manyTags: more tags go back in one call than the server takes in one step, with names and
// rows as long as they get.
func (d Driver) manyTags(t *testing.T) {
	_, url := d.shared(t)
	s := d.open(t, url)
	const tags, long, extra = 170, 20, 2000 // the last ones have long rows
	all := make([]driver.HandBackOf, tags)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			name := fmt.Sprintf("%03d %s", i, strings.Repeat("ü", 62))
			def, err := hapax.Tag{Name: name, Extra: strings.Repeat("\x01", extra*min(1, i/(tags-long)))}.WithDefaults() // six bytes each in JSON
			if err == nil {
				_, err = s.CreateTag(t.Context(), def, hapax.CreateExplicit)
			}
			if err == nil {
				all[i].Allocation, err = s.Allocate(t.Context(), name, 10, "")
			}
			if all[i].Next = 5; err != nil {
				t.Errorf("tag %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	was, now := driver.Beat{Count: 1}, driver.Beat{Count: 2}
	if ok, err := s.(driver.Rows).SwapRow(t.Context(), driver.TableBeats, "n", nil, was.Encode()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	given, c, err := s.(driver.Guarding).HandBackAllWith(t.Context(), driver.Pulse{Row: "n", Was: was, Now: now}, all)
	if err != nil || !c.Met {
		t.Fatalf("the contact is %+v, error %v", c, err)
	}
	marks, err := s.Tags(t.Context(), "", tags)
	if err != nil || len(marks) != tags {
		t.Fatalf("%d tags, error %v", len(marks), err)
	}
	for i, tag := range marks {
		if !given[i] || tag.Mark != 5 || tag.Token != 1 {
			t.Errorf("tag %d: given %v, mark %d, token %d; want mark 5, token 1", i, given[i], tag.Mark, tag.Token)
		}
	}
}
