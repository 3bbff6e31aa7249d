package witness_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// declare makes a statement, dry or not.
func (m *machine) declare(st witness.Statement, dry bool) (witness.Adoption, error) {
	st.DryRun = dry
	if st.Row != "" {
		return m.Settle(m.f.t.Context(), st)
	}
	return m.Adopt(m.f.t.Context(), st)
}

// said returns what operators have stated, and the witness files that they gave.
func (f *fleet) said() (names []string) {
	f.t.Helper()
	rows, err := f.store.ListRows(f.t.Context(), driver.TableEvidence, "", 1000)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range rows {
		if r.Name[:5] == "said/" || r.Name[:5] == "file/" {
			names = append(names, r.Name)
		}
	}
	return names
}

// A dry run accepts what the statement itself would, refuses what that would in the same
// words, and changes nothing; nor does what is refused.
func TestDryRun(t *testing.T) {
	missing := func(t *testing.T, f *fleet) *machine { // a has found the loss, b is missing
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		a.must("t", 5000)
		b.must("t", 10)
		b.crash()
		f.store.Restore(backup)
		f.misses("b")
		return a
	}
	manual := func(t *testing.T, f *fleet) *machine { // nobody is missing, and a person decides
		a := f.start("a", witness.Options{Manual: true})
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		a.must("t", 5000)
		f.store.Restore(backup)
		f.until("that a person is asked", func() bool { fence := f.standing(); return fence != nil && fence.Manual })
		return a
	}
	well := func(t *testing.T, f *fleet) *machine { // b serves, c has crashed just now
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		f.serve(12*time.Second, a, b, c)
		c.crash()
		return a
	}
	silent := func(t *testing.T, f *fleet) *machine { // ... so that it has fallen silent
		a := well(t, f)
		time.Sleep(2 * wait)
		return a
	}
	another := func(t *testing.T, f *fleet) *machine { // z serves on the other store, y has crashed there just now
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.must("t", 5000)
		other := newFleet(t)
		z, y := other.start("z"), other.start("y")
		other.serve(12*time.Second, z, y)
		z.must("t", 10_000)
		y.crash()
		z.link.hang()
		time.Sleep(10 * time.Millisecond)
		f.store.Restore(other.store)
		z.link.mu.Lock()
		z.link.store, z.link.hangs = f.store, false // what it dials from now on
		z.link.mu.Unlock()
		f.until("that z has moved", func() bool { return z.take("t", 10) == nil })
		f.until("the refusal", func() bool { return a.Status().State == witness.Refusing })
		return a
	}
	for _, c := range []struct {
		name  string
		world func(*testing.T, *fleet) *machine
		st    witness.Statement
		want  error // nil: it is accepted
	}{
		{"nobody speaks for b", missing, witness.Statement{}, hapax.ErrFenced},
		{"a floor of 1", missing, witness.Statement{Floor: 1}, hapax.ErrInvalidArgument},
		{"a floor below what a knows", missing, witness.Statement{Row: "b", Floor: 4000}, hapax.ErrInvalidArgument},
		{"a floor above all", missing, witness.Statement{Row: "b", Floor: hapax.MaxMark}, hapax.ErrInvalidArgument},
		{"a floor", missing, witness.Statement{Row: "b", Floor: 100_000}, nil},
		{"a floor for all", missing, witness.Statement{Floor: 100_000}, nil},
		{"somebody whom nobody knows", missing, witness.Statement{Row: "x", Floor: 100_000}, hapax.ErrInvalidArgument},
		{"somebody who has spoken", missing, witness.Statement{Row: "a", Floor: 100_000}, hapax.ErrInvalidArgument},
		{"a witness file of somebody else", missing, witness.Statement{Row: "b", Witness: []witness.Testimony{{}}}, hapax.ErrFenced},
		{"a person decides", manual, witness.Statement{}, nil},
		{"a person decides, with a floor that is too low", manual, witness.Statement{Floor: 10}, hapax.ErrInvalidArgument},
		{"nothing is wrong", well, witness.Statement{}, nil},
		{"a floor below 0", well, witness.Statement{Floor: -1}, hapax.ErrInvalidArgument},
		{"one that serves", well, witness.Statement{Row: "b"}, hapax.ErrInvalidArgument},
		{"one that does not run any more", well, witness.Statement{Row: "c"}, nil},
		{"one that has fallen silent already", silent, witness.Statement{Row: "c"}, nil},
		{"one that serves, where another has fallen silent", silent, witness.Statement{Row: "b"}, hapax.ErrInvalidArgument},
		{"nobody", well, witness.Statement{Row: "x"}, hapax.ErrInvalidArgument},
		{"another store, of which a process is missing", another, witness.Statement{}, hapax.ErrFenced},
		{"another store, with a floor that is too low", another, witness.Statement{Floor: 9000}, hapax.ErrInvalidArgument},
		{"another store", another, witness.Statement{Floor: 100_000}, nil},
		{"a node of another store", another, witness.Statement{Row: "y", Floor: 100_000}, hapax.ErrStoreReplaced},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.st.Wait = 20 * time.Second
			var (
				got  [2]witness.Adoption
				errs [2]error
			)
			for i, dry := range []bool{true, false} {
				world(t, func(t *testing.T, f *fleet) {
					a := c.world(t, f)
					fence, rows := f.standing(), f.said()
					got[i], errs[i] = a.declare(c.st, dry)
					if now := f.standing(); (dry || c.want != nil) && ((now == nil) != (fence == nil) || len(f.said()) != len(rows)) {
						t.Errorf("dry %v: it has left the fence %+v, said is %q", dry, now, f.said())
					}
					if !errors.Is(errs[i], c.want) || (errs[i] == nil) != (c.want == nil) {
						t.Errorf("dry %v: %v; want %v", dry, errs[i], c.want)
					}
					if c.want == nil && !dry {
						a.within(12 * time.Second)
					}
					f.twice = nil // numbers of another store are not this one's
				})
			}
			if dry, done := got[0], got[1]; len(dry.Raised) != len(done.Raised) || len(dry.Stated) != len(done.Stated) || dry.Proposed != done.Proposed {
				t.Errorf("dry: %+v, %v\nitself: %+v, %v", dry, errs[0], done, errs[1])
			}
		})
	}
}
