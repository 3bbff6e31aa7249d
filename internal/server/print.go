package server

import (
	"bytes"
	"net/url"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// AppendYAML appends the configuration as a YAML file that Load reads back, with
// what each setting means. The password of a store's URL is replaced.
func (c Config) AppendYAML(dst []byte) ([]byte, error) {
	c.Store = redact(c.Store)
	out := bytes.NewBuffer(dst)
	for i, s := range settings {
		if i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString("# " + s.Doc + ".\n")
		if s.Allowed != "" {
			out.WriteString("# Allowed: " + s.Allowed + ".\n")
		}
		encoder := yaml.NewEncoder(out)
		encoder.SetIndent(2)
		if err := encoder.Encode(map[string]any{s.Name: s.get(&c)}); err != nil {
			return dst, err
		}
		if err := encoder.Close(); err != nil {
			return dst, err
		}
	}
	return out.Bytes(), nil
}

// sparse returns definitions by name as YAML shows them: without the keys that
// are not set.
func sparse[T any](entries map[string]T) map[string]map[string]any {
	shown := map[string]map[string]any{}
	for name, entry := range entries {
		shown[name] = map[string]any{}
		v := reflect.ValueOf(entry)
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				shown[name][v.Type().Field(i).Tag.Get("koanf")] = v.Field(i).Interface()
			}
		}
	}
	return shown
}

// redacted stands where a password was.
const redacted = "xxxxx"

// userinfo finds the password in URLs that net/url cannot read, such as those
// that list several hosts, and in what was meant to be one.
var userinfo = regexp.MustCompile(`^((?:[^:/@]*://)?[^:/@]*:)[^?]*@`)

// secretQuery finds passwords among a URL's parameters.
var secretQuery = regexp.MustCompile(`(?i)([?&][^=&]*(?:password|passwd|secret|token)=)[^&]*`)

// redact replaces what is secret in a store's URL.
func redact(store string) string {
	switch u, err := url.Parse(store); {
	case err == nil && u.User != nil:
		store = u.Redacted()
	case err == nil && strings.Contains(store, "://"), boltPath(store, "") != "":
	default:
		store = userinfo.ReplaceAllString(store, "${1}"+redacted+"@")
	}
	return secretQuery.ReplaceAllString(strings.TrimSpace(store), "${1}"+redacted)
}
