package signals

import (
	"os/exec"
	"testing"
)

func TestWord(t *testing.T) {
	for text, want := range map[string]string{
		"orders": "orders", "http://10.0.0.1:8080": "http://10.0.0.1:8080", "": "''", "it's": `'it'\''s'`,
		"a b": "'a b'", "$(id)": "'$(id)'", "a;id": "'a;id'", "späße": "'späße'", "`id`\\": "'`id`\\'", "a*": "'a*'", "~": "'~'",
	} {
		got := Word(text)
		if got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+got).Output()
		if err != nil || string(out) != text {
			t.Errorf("%q: a shell reads %q, %v", text, out, err)
		}
	}
}
