package server

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// AppendYAML appends the configuration as a YAML file that Load reads back, with
// what each setting means. The password of a store's URL is replaced.
func (c Config) AppendYAML(dst []byte) ([]byte, error) {
	c.Store = redact(c.Store)
	if c.AlarmURL != "" {
		c.AlarmURL = redact(c.AlarmURL)
	}
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
		shown[name] = setFields(reflect.ValueOf(entry))
	}
	return shown
}

// setFields returns the fields of a struct that are set, by their keys.
func setFields(v reflect.Value) map[string]any {
	shown := map[string]any{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || v.Field(i).IsZero() {
			continue
		}
		value := v.Field(i).Interface()
		if f.Tag.Get("url") != "" {
			value = withoutPasswords(value)
		}
		shown[f.Tag.Get("yaml")] = value
	}
	return shown
}

// withoutPasswords returns a URL, or a list of them, without the passwords. A word in the
// place of a URL stays.
func withoutPasswords(value any) any {
	switch v := value.(type) {
	case string:
		if !strings.ContainsAny(v, ":@") {
			return v
		}
		return redact(v)
	case []string:
		list := slices.Clone(v)
		for i := range list {
			list[i] = redact(list[i])
		}
		return list
	}
	return value
}
