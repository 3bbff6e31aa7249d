package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/testservers"
)

// Invoices begin at 1 again after midnight, whether or not the server was
// restarted, and go on above the mark when the clock jumps back.
func TestInvoicesOverMidnight(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "offset")
	at := func(local string) { // has the server's clock show about that time
		t.Helper()
		zone, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		when, err := time.ParseInLocation(time.DateTime, local, zone)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(time.Until(when).String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at("2027-03-01 12:00:00")
	env := []string{"HAPAX_TEST_CLOCK_OFFSET=@" + file}
	s := serve(t, dir, env, "--resp", "")
	ok(t, dir, "tags", "create", "invoices", "--code", "INV-{yyyy}{MM}{dd}-{seq:6}{check}", "--zone", "Europe/Berlin", "--server", s.url)
	next := func(n int) []string {
		t.Helper()
		return strings.Fields(ok(t, dir, "next", "invoices", "--code", "-n", fmt.Sprint(n), "--server", s.url))
	}
	if got, want := next(3), []string{"INV-20270301-0000010", "INV-20270301-0000026", "INV-20270301-0000032"}; !sameButCheck(got, want) {
		t.Errorf("on the first day: %q, want %q", got, want)
	}
	at("2027-03-02 00:00:01")
	second := next(2)
	if want := []string{"INV-20270302-0000010", "INV-20270302-0000020"}; !sameButCheck(second, want) {
		t.Errorf("after midnight: %q, want %q", second, want)
	}
	if got := strings.TrimSpace(ok(t, dir, "next", "invoices", "--server", s.url)); got != "3" {
		t.Errorf("the number is %s, want 3", got)
	}
	at("2027-03-01 23:00:00")
	if got := next(1); !strings.HasPrefix(got[0], "INV-20270301-000004") {
		t.Errorf("after a jump back: %q, want number 4 of the old line", got)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("the server stopped with %d: %s", code, s.logged())
	}
	s = serve(t, dir, env, "--resp", "")
	if got := next(1); !strings.HasPrefix(got[0], "INV-20270301-000005") {
		t.Errorf("after a restart: %q, want number 5", got)
	}

	row := strings.Fields(ok(t, dir, "parse", second[0], "--tag", "invoices", "--server", s.url))
	if want := []string{second[0], "1", "20270302", "2027-03-02T00:00:00+01:00", "2027-03-03T00:00:00+01:00", "-"}; !slices.Equal(row, want) {
		t.Errorf("parse printed %q, want %q", row, want)
	}
	typo := strings.Replace(second[0], "-000001", "-000007", 1)
	if r := run(t, dir, "parse", typo, "--tag", "invoices", "--server", s.url); r.code != 2 || !strings.Contains(r.err, "position 20") {
		t.Errorf("a typo: exit code %d, %s", r.code, r.err)
	}
}

// sameButCheck reports whether codes are alike but for their last character.
func sameButCheck(got, want []string) bool {
	return slices.EqualFunc(got, want, func(a, b string) bool { return len(a) == len(b) && a[:len(a)-1] == b[:len(b)-1] })
}

// Coupons that the binary issued are read by programs in other languages.
func TestCouponsInOtherLanguages(t *testing.T) {
	t.Parallel()
	const (
		count = 1000
		spec  = "{id:8:crockford32:feistel=k1}"
		key   = "correct horse battery staple"
	)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	text := "code_keys: {k1: env:COUPON_KEY}\ntags:\n  coupons: {code: \"" + spec + "\"}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"COUPON_KEY=" + key}
	r := runWith(t, dir, "", env, "next", "coupons", "--code", "-n", fmt.Sprint(count), "--data", "d", "--config", config)
	codes := strings.Fields(r.out)
	if r.code != 0 || len(codes) != count {
		t.Fatalf("exit code %d, %d codes, %s", r.code, len(codes), r.err)
	}
	form := regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{8}$`)
	for _, code := range codes {
		if !form.MatchString(code) {
			t.Fatalf("%q is none of Crockford's alphabet", code)
		}
	}
	sorted := slices.Sorted(slices.Values(codes))
	if len(slices.Compact(sorted)) != count || slices.Equal(sorted, codes) {
		t.Error("the codes are not distinct, or in the order of their numbers")
	}
	if r := runWith(t, dir, "", nil, "next", "coupons", "--code", "--data", "d"); r.code == 0 || !strings.Contains(r.err, `"k1" is missing`) {
		t.Errorf("without the key: exit code %d, %s", r.code, r.err)
	}
	if r := runWith(t, dir, "", env, "serve", "--print-config", "--config", config); strings.Contains(r.out, key) || !strings.Contains(r.out, "env:COUPON_KEY") {
		t.Errorf("the printed configuration has the key, or not its place: %s", r.out)
	}

	type codeCase struct {
		Number string `json:"number"`
		Period string `json:"period"`
		Text   string `json:"text"`
	}
	var cases []codeCase
	for i, code := range codes {
		cases = append(cases, codeCase{Number: fmt.Sprint(i + 1), Text: code})
	}
	vectors, err := json.Marshal(map[string]any{
		"keys": map[string]string{"k1": fmt.Sprintf("%x", key)}, "alphabets": map[string]string{}, "checks": []int{}, "mixers": []int{}, "refused": []int{},
		"codes": []any{map[string]any{"spec": spec, "tag": "coupons", "cases": cases}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "vectors.json")
	if err := os.WriteFile(path, vectors, 0o600); err != nil {
		t.Fatal(err)
	}
	for program, script := range map[string]string{"python3": "check_vectors.py", "node": "check-vectors.js"} {
		bin, err := exec.LookPath(program)
		if err != nil {
			testservers.Missing(t, program+" is not installed")
		}
		cmd := exec.CommandContext(t.Context(), bin, script, path)
		cmd.Dir = "../../examples/codes"
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if got, want := strings.TrimSpace(string(out)), fmt.Sprint(2*count); err != nil || got != want {
			t.Errorf("%s: %v, %s; want %s comparisons", program, err, got, want)
		}
	}
}
