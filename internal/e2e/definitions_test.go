package e2e

import (
	"strings"
	"testing"
)

// A command on the directory of a server that was stopped does not guess what the
// server's configuration would have made of an unknown tag.
func TestNextOfStoppedServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop := func(args ...string) {
		s := serve(t, dir, nil, args...)
		mustTake(t, s, "known", 1)
		s.stop()
	}
	stop()
	if got := ok(t, dir, "next", "plain", "--data", "hapax-data"); got != "1\n" {
		t.Errorf("where nothing is configured, the first number is %q", got)
	}
	const tags = "{users: {kind: snowflake}}"
	stop("--tags", tags)
	ok(t, dir, "next", "known", "--data", "hapax-data")
	for _, tag := range []string{"users", "new"} {
		r := run(t, dir, "next", tag, "--data", "hapax-data")
		if r.code == 0 || !strings.Contains(r.err, "give their configuration") {
			t.Errorf("%s: exit code %d, %s%s", tag, r.code, r.out, r.err)
		}
		if r := run(t, dir, "tags", "show", tag); r.code == 0 {
			t.Errorf("%s was created: %s", tag, r.out)
		}
	}
	if r := runWith(t, dir, "", []string{"HAPAX_TAGS=" + tags}, "next", "users"); r.code != 0 || len(r.out) < 16 {
		t.Errorf("with the configuration: exit code %d, %s%s", r.code, r.out, r.err)
	}
	stop()
	ok(t, dir, "next", "new", "--data", "hapax-data")
}

func TestDeletePoolSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ok(t, dir, "pools", "create", "unused", "--data", "d")
	ok(t, dir, "next", "snowflake", "--data", "d")
	for pool, want := range map[string]string{"unused": "unused\t-\tremoved\n", "default": "default\tleaf\tdeleted\n"} {
		if got := ok(t, dir, "pools", "delete", pool, "--data", "d"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
