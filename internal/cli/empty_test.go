package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
)

// inStore runs a command on a place, and returns its exit code and what it says.
func inStore(t *testing.T, args string, place ...string) (code int, said string) {
	t.Helper()
	var out bytes.Buffer
	code = Main(t.Context(), append(strings.Fields(args), place...), Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	return code, out.String()
}

// A command that needs something of a store does not make the store that it does not find: an empty place
// stays empty, and the command says so.
func TestEmptyPlaceStaysEmpty(t *testing.T) {
	places := map[string][]string{
		"store":     {"--store", "bolt:new.db"},
		"directory": {"--data", "new"},
	}
	for _, args := range []string{
		"tags list", "tags show a", "tags set a --floor 9", "tags delete a", "pools list", "pools show default", "pools delete p",
		"workers list", "workers show default 0", "workers retire default 0", "workers fix", "workers fix --apply", "parse --tag a X", "next a --config none.yaml",
	} {
		for name, place := range places {
			t.Run(name+" "+args, func(t *testing.T) {
				t.Chdir(t.TempDir())
				if err := os.WriteFile("none.yaml", []byte("auto_create: false\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				code, said := inStore(t, args, place...)
				if code != exitUsage || !strings.Contains(said, "this one is empty: check it; while a backup is being put back, wait; and hapax serve or hapax tags create makes the first store") {
					t.Errorf("exit code %d, %s", code, said)
				}
				if made, err := filepath.Glob("new*"); err != nil || len(made) > 0 {
					t.Errorf("it made %q, %v", made, err)
				}
			})
		}
	}
	t.Run("next without the configuration", func(t *testing.T) { // which may define the tag
		t.Chdir(t.TempDir())
		if code, said := inStore(t, "next a", places["store"]...); code != exitUsage || !strings.Contains(said, "this one is empty") || exists("new.db") {
			t.Errorf("exit code %d, %s", code, said)
		}
	})
	for _, args := range []string{"tags create a", "pools create p", "next a --config any.yaml"} {
		for name, place := range places {
			t.Run(name+" "+args, func(t *testing.T) {
				t.Chdir(t.TempDir())
				if err := os.WriteFile("any.yaml", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if code, said := inStore(t, args, place...); code != exitOK {
					t.Errorf("exit code %d, %s", code, said)
				}
				if code, said := inStore(t, "tags list", place...); code != exitOK {
					t.Errorf("then tags list: exit code %d, %s", code, said)
				}
			})
		}
	}
	t.Run("a store that was lost", func(t *testing.T) { // it is healed, whichever command comes first
		t.Chdir(t.TempDir())
		if code, said := inStore(t, "tags create a", places["directory"]...); code != exitOK {
			t.Fatalf("exit code %d, %s", code, said)
		}
		if err := os.Remove(filepath.Join("new", "hapax.db")); err != nil {
			t.Fatal(err)
		}
		if code, said := inStore(t, "next b", places["directory"]...); code != exitOK {
			t.Errorf("exit code %d, %s", code, said)
		}
		if err := os.Remove(filepath.Join("new", "hapax.db")); err != nil {
			t.Fatal(err)
		}
		if code, said := inStore(t, "tags set b --floor 9", places["directory"]...); code != exitOK {
			t.Errorf("exit code %d, %s", code, said)
		}
	})
}

// A dry run of a move shows what it would do in a store that is not there yet, and makes none.
func TestDryRunMakesNoStore(t *testing.T) {
	for name, place := range map[string][]string{"store": {"--store", "bolt:new.db"}, "directory": {"--data", "new"}} {
		for _, dry := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, dry run: %v", name, dry), func(t *testing.T) {
				t.Chdir(t.TempDir())
				passing := t.TempDir()
				t.Setenv("TMPDIR", passing)
				cmd := &cobra.Command{}
				cmd.SetContext(t.Context())
				f := addMove(cmd, &mount.Import{})
				if err := cmd.ParseFlags(append([]string{fmt.Sprintf("--dry-run=%v", dry)}, place...)); err != nil {
					t.Fatal(err)
				}
				looked := false
				err := f.with(cmd, func(ctx context.Context, to target) error {
					_, err := to.Tag(ctx, "a")
					if looked = errors.Is(err, hapax.ErrTagNotFound); looked {
						return nil
					}
					return err
				})
				if made, _ := filepath.Glob("new*"); err != nil || !looked || (len(made) == 0) != dry {
					t.Errorf("%v; it has looked: %v, and made %q", err, looked, made)
				}
				if left, err := os.ReadDir(passing); err != nil || len(left) > 0 {
					t.Errorf("it has left %v, %v", left, err)
				}
			})
		}
	}
}

// An error that comes with a command says no other thing to do.
func TestSaysOneThingToDo(t *testing.T) {
	err := error(commandError{fmt.Errorf("tag a: %w", hapax.ErrFenced), "hapax adopt"})
	if got := hapax.Message(err); !errors.Is(err, hapax.ErrFenced) || strings.Contains(got, "see hapax status") || !strings.HasSuffix(got, "healed; to do: hapax adopt") {
		t.Errorf("%s", got)
	}
}
