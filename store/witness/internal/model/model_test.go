package model

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var (
	soak   = flag.Duration("for", 0, "how long TestWalks walks, for each kind of store; 0: a few walks")
	seed   = flag.Uint64("seed", 1, "of the first walks")
	most   = flag.Int("states", 10_000, "where TestSearch cuts a search off")
	budget = flag.String("budget", "", `what TestSearch and TestWalks may spend, as "beat=4,grant=2"; empty: their own`)
	atOnce = flag.Bool("atonce", false, "whether those who spoke for a decision serve at once")
	resume = flag.Bool("resume", false, "whether who was out of contact for W goes on at once where its row is as it left it")
	back   = flag.Bool("return", true, "whether it does when all others have met the store since")
	broken = flag.String("without", "", "a rule to break, by name")
)

// everything is the budget of the walks.
const everything = "beat=14,grant=6,lost=2,flight=3,back=2,slow=4,leave=1,silence=1,peace=2,compact=1,crash=2,cut=2,start=3,fresh=2," +
	"copy-disk=1,copy=2,put-back=2,failover=1,wipe=1,operator=1,ask=5"

func newModel(split bool, lines int) Model {
	m := Model{Split: split, Lines: lines, AtOnce: *atOnce, Resume: *resume, Return: *back}
	for r := range nRules {
		if r.String() == *broken {
			m = m.Without(r)
		}
	}
	return m
}

// TestSearch goes through all states within small budgets, or up to a number of
// them. What must be complete is.
func TestSearch(t *testing.T) {
	searches := []struct {
		n        int
		budget   string
		complete bool
	}{
		{2, "grant=1,copy=1,put-back=1,ask=1", true},
		{1, "leave=1,start=1,copy=1,put-back=1", true},
		{2, "beat=1,grant=1,copy=1,put-back=1,ask=1", false},
		{1, "grant=1,copy-disk=1,start=1,crash=1", false},
		{2, "beat=2,grant=2,copy=1,put-back=1,ask=1", false},
		{2, "grant=2,copy=1,put-back=1,fresh=1", false},
		{1, "grant=2,leave=1,start=1,copy=1,put-back=1", false},
		{1, "grant=1,wipe=1,fresh=1,ask=1", false},
	}
	if *budget != "" {
		searches = searches[:1]
		searches[0].n, searches[0].budget, searches[0].complete = 2, *budget, false
	}
	for _, se := range searches {
		for _, split := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,%s,split=%v", se.n, se.budget, split), func(t *testing.T) {
				m := newModel(split, 1)
				r := m.Search(m.Initial(se.n), Budgets(se.budget), *most, false)
				t.Logf("%d states, %d steps, complete: %v", r.States, r.Steps, r.Complete)
				if r.Found != nil {
					t.Errorf("%v", r.Found)
				}
				if se.complete && !r.Complete && r.Found == nil {
					t.Errorf("cut off at %d states", r.States)
				}
			})
		}
	}
}

// TestWalks walks at random, with everything that can happen, and judges
// availability on the way.
func TestWalks(t *testing.T) {
	what := everything
	if *budget != "" {
		what = *budget
	}
	for _, split := range []bool{false, true} {
		t.Run(fmt.Sprintf("split=%v", split), func(t *testing.T) {
			m := newModel(split, Lines)
			began, total := time.Now(), Result{}
			for s := *seed; ; s++ {
				r := m.Walk(m.Initial(int(s%3)+1), Budgets(what), 100, s, 80, func() bool { return false })
				total.Walks += r.Walks
				total.Steps += r.Steps
				total.Judged += r.Judged
				if r.Found != nil {
					t.Errorf("seed %d: %d of %d walks, the shortest: %v", s, r.Count, r.Walks, r.Found)
					break
				}
				if time.Since(began) >= *soak && s >= *seed+2 {
					break
				}
			}
			t.Logf("%d walks, %d steps, availability judged %d times", total.Walks, total.Steps, total.Judged)
		})
	}
}
