package tinyid

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/mount"
)

// Passwords stand beside the URLs, in a file with one for all or a line for each, or in a
// variable.
func TestPasswords(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for path, text := range map[string]string{one: "p@ss:w/rd\n", two: "first\n\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		file, env string
		databases []string
		want      []string // none: an error
	}{
		"one for all":     {one, "", []string{"mysql://u@h/a", "mysql://u@h/b"}, []string{"mysql://u:p%40ss%3Aw%2Frd@h/a", "mysql://u:p%40ss%3Aw%2Frd@h/b"}},
		"a line for each": {two, "", []string{"mysql://u@h/a", "mysql://u@h/b"}, []string{"mysql://u:first@h/a", "mysql://u@h/b"}},
		"a variable":      {"", "first", []string{"mysql://u@h/a", "mysql://u@h/b"}, []string{"mysql://u:first@h/a", "mysql://u:first@h/b"}},
		"a line too many": {two, "", []string{"mysql://u@h/a", "mysql://u@h/b", "mysql://u@h/c"}, nil},
		"two passwords":   {one, "", []string{"mysql://u:secret@h/a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := Settings{Databases: c.databases, PasswordFile: c.file}
			if err := s.ReadSecrets(func(name string) (string, bool) { return c.env, name == PasswordEnv }); err != nil {
				t.Fatal(err)
			}
			got, err := s.urls()
			if !slices.Equal(got, c.want) || (err != nil) != (c.want == nil) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
			if _, err := s.Mount(new(mount.Plan)); err != nil && strings.Contains(err.Error(), "secret") || (err != nil) != (c.want == nil) {
				t.Errorf("mounted: %v", err)
			}
		})
	}
}
