package sqlstore_test

import (
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// What a step of PostgreSQL has changed, be it one row of many, is on the disk when it is
// acknowledged; only one that has changed nothing ends without a sync. A handle that never asks
// for one is caught.
func TestWhatIsChangedIsSynced(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*sqlstore.Store){"": nil, "twin that never syncs": (*sqlstore.Store).NeverSync} {
		t.Run(name, func(t *testing.T) {
			s := open(t, fresh(testservers.SharedPostgres(t).URL), sqlstore.Options{MaxConns: 1})
			if spoil != nil {
				spoil(s)
			}
			unsynced := unsyncedSteps(t, s)
			if caught := len(unsynced) > 0; caught != (spoil != nil) {
				t.Errorf("these steps were made without a sync: %q", unsynced)
			}
		})
	}
}

// unsyncedSteps makes steps of all kinds, and returns those that were made without a sync.
func unsyncedSteps(t *testing.T, s *sqlstore.Store) (unsynced []string) {
	t.Helper()
	key := func(name string) driver.Key { return driver.Key{Table: "t", Name: name} }
	cell := func(value string) driver.Cell { return driver.Cell{Known: true, Value: []byte(value)} }
	none := driver.Cell{Known: true}
	for _, name := range []string{"one", "two"} {
		if ok, err := s.SwapRow(t.Context(), "t", name, nil, []byte("5")); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	made := driver.Change{Key: key("one"), Old: cell("5"), Next: []byte("6")}
	lost := driver.Change{Key: key("two"), Old: cell("4"), Next: []byte("6")}
	for name, of := range map[string]struct {
		driver.Step
		met bool
	}{
		"a change":                     {driver.Step{Each: []driver.Change{made}}, true},
		"one of two changes":           {driver.Step{Each: []driver.Change{lost, made}}, true},
		"a removal":                    {driver.Step{Each: []driver.Change{{Key: key("one"), Old: cell("5")}}}, true},
		"an addition":                  {driver.Step{Each: []driver.Change{{Key: key("new"), Old: none, Next: []byte("1")}, lost}}, true},
		"a change with others":         {driver.Step{Then: []driver.Change{made, {Key: key("new"), Old: none, Next: []byte("1")}}}, true},
		"a change and one that is not": {driver.Step{Then: []driver.Change{made}, Each: []driver.Change{lost}}, true},
		"a raise":                      {driver.Step{Raise: []driver.Put{{Key: key("one"), Value: []byte("7")}}}, true},
		"a raise of a missing row":     {driver.Step{Raise: []driver.Put{{Key: key("new"), Value: []byte("7")}}}, true},
		"a beat": {driver.Step{
			If:    []driver.Cond{{Key: key("one"), Least: []byte("5")}, {Key: key("fence"), Same: none}},
			Raise: []driver.Put{{Key: key("one"), Value: []byte("6")}},
		}, true},
		"a condition that fails": {driver.Step{If: []driver.Cond{{Key: key("two"), Same: none}}, Each: []driver.Change{made}}, false},
		"a lost race":            {driver.Step{Each: []driver.Change{lost}}, false},
		"a lost race with a beat": {driver.Step{
			If: []driver.Cond{{Key: key("one"), Least: []byte("5")}}, Raise: []driver.Put{{Key: key("one"), Value: []byte("6")}}, Each: []driver.Change{lost},
		}, false},
		"changes of which one is lost": {driver.Step{Then: []driver.Change{made, lost}}, false},
	} {
		met, sync, err := s.SyncOf(of.Step)
		if err != nil || met != of.met {
			t.Errorf("%s: met is %t, %v", name, met, err)
		}
		if met && sync != "on" {
			unsynced = append(unsynced, name)
		}
		if !met && sync != "off" {
			t.Errorf("%s: synchronous_commit is %s", name, sync)
		}
	}
	if _, err := s.KV().Step(t.Context(), driver.Step{Each: []driver.Change{lost}}); err != nil {
		t.Error(err)
	}
	if sync, err := sqlstore.Value[string](s, "SELECT current_setting('synchronous_commit')"); err != nil || sync != "on" {
		t.Errorf("after a lost race the session has synchronous_commit %s, %v", sync, err)
	}
	return unsynced
}
