package leaf

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
)

// waiting issues nothing while its store is away: calls wait until their contexts end.
type waiting struct{ away bool }

func (w *waiting) Next(ctx context.Context, _ string) (hapax.ID, error) {
	if !w.away {
		return 1, nil
	}
	<-ctx.Done()
	return 0, &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: context.Cause(ctx)}
}

// While the tree has been away for longer than was granted, one call waits as long as it
// may, and those after it only shortly, until one gets a number again.
func TestHopelessCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := &waiting{away: true}
		tag := oneTag{svc, "x", new(atomic.Bool)}
		next := func() (took time.Duration, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			began := time.Now()
			_, err = tag.Next(ctx, "")
			return time.Since(began), err
		}
		for i, want := range []time.Duration{2 * time.Second, hopeless, hopeless} {
			if took, err := next(); took != want || !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("call %d took %v, and got %v; want %v", i, took, err, want)
			}
		}
		svc.away = false
		if took, err := next(); took != 0 || err != nil {
			t.Errorf("with the tree back: %v, %v", took, err)
		}
		svc.away = true
		if took, _ := next(); took != 2*time.Second {
			t.Errorf("when it is away again, the first call took %v", took)
		}
	})
}

// The password stands beside the URL, in a file or a variable.
func TestPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("p@ss:w/rd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, env, table, want string }{
		"a file":        {file, "", "mysql://u@h/d", "mysql://u:p%40ss%3Aw%2Frd@h/d"},
		"a variable":    {"", "p@ss:w/rd", "mysql://u@h/d", "mysql://u:p%40ss%3Aw%2Frd@h/d"},
		"none":          {"", "", "mysql://u:x@h/d", "mysql://u:x@h/d"},
		"two passwords": {file, "", "mysql://u:x@h/d", ""},
		"no URL":        {file, "", "u@h/d", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := Settings{Table: c.table, PasswordFile: c.file}
			if err := s.ReadSecrets(func(name string) (string, bool) { return c.env, name == PasswordEnv }); err != nil {
				t.Fatal(err)
			}
			if got, err := s.tableURL(); got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}
