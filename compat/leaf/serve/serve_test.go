package serve

import (
	"os"
	"path/filepath"
	"testing"
)

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
