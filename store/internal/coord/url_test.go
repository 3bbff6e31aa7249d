package coord

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

var testForm = Form{Scheme: "kv", Port: "99", Params: []string{"acl"}}

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]URL{
		"kv://h":           {Hosts: []string{"h:99"}, Prefix: "hapax"},
		"kv://h/":          {Hosts: []string{"h:99"}, Prefix: "hapax"},
		"kv://h?tls=false": {Hosts: []string{"h:99"}, Prefix: "hapax"},
		"kv://h1:1,h2,[::1]:3,[fe80::1]/a/b%20c/": {Hosts: []string{"h1:1", "h2:99", "[::1]:3", "[fe80::1]:99"}, Prefix: "a/b c"},
		"kv://u:p%40:s@h:1/x?acl=open":            {Hosts: []string{"h:1"}, User: "u", Password: "p@:s", Prefix: "x"},
		"kv://us%3Aer:p@w@h":                      {Hosts: []string{"h:99"}, User: "us:er", Password: "p@w", Prefix: "hapax"},
	} {
		got, err := testForm.Parse(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if !slices.Equal(got.Hosts, want.Hosts) || got.User != want.User || got.Password != want.Password || got.Prefix != want.Prefix || got.TLS != nil {
			t.Errorf("%s: %+v; want %+v", raw, got, want)
		}
	}
	for _, raw := range []string{"kvs://h", "kv://h?tls=true", "kvs://h/p?tls=true"} {
		if got, err := testForm.Parse(raw); err != nil || got.TLS == nil {
			t.Errorf("%s: no TLS, error %v", raw, err)
		}
	}
	if got, err := testForm.Parse("kv://h?acl=x"); err != nil || got.Params.Get("acl") != "x" {
		t.Errorf("the parameter of its own is %v, error %v", got.Params, err)
	}
}

func TestParseURLErrors(t *testing.T) {
	for _, raw := range []string{
		"", "h:1", "etcd://h", "kv:/h", "kv://", "kv://,h", "kv://h,", "kv:///p", "kv://:1", "kv://h:", "kv://::1", "kv://a b",
		"kv://user:secret@", "kv://user@h/secret", "kv://:secret@h", "kv://user:secret%zz@h", "kv://user:secret@h:1:2",
		"kv://h/%zz", "kv://h/" + strings.Repeat("p", 257), "kv://" + strings.Repeat("h,", 40) + "h",
		"kv://user:secret@h?tls=maybe", "kv://h?colour=red", "kv://h?acl=a&acl=b", "kv://h?a;b", "kvs://h?tls=false", "kv://h?ca=f",
		"kvs://h?ca=/does/not/exist", "kvs://h?cert=c", "kvs://h?cert=/does/not/exist&key=/does/not/exist", "kvs://h?ca=url_test.go",
	} {
		_, err := testForm.Parse(raw)
		if !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%q: error is %v; want ErrInvalidArgument", raw, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells the secret: %v", raw, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{"kv://h", "kvs://u:p@h:1,[::1]:2/p?acl=open", "kv://%@/%?%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if strings.Contains(raw, "ca=") || strings.Contains(raw, "cert=") {
			return // these would read files
		}
		u, err := testForm.Parse(raw)
		if err == nil && (len(u.Hosts) == 0 || len(u.Hosts) > maxHosts || u.Prefix == "" || len(u.Prefix) > maxPrefix || (u.User == "") != (u.Password == "")) {
			t.Errorf("%q: %+v", raw, u)
		}
	})
}
