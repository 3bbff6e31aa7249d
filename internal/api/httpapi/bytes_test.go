package httpapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata anew; programs read what the routes answer, so only add to it")

// filled returns a value of a type in which every field that is shown has a value of its
// own.
func filled(of reflect.Type, n *int64, depth int) reflect.Value {
	v := reflect.New(of).Elem()
	*n++
	switch of {
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Unix(1_700_000_000+*n, 120_000_000).UTC())
	case reflect.TypeFor[time.Duration]():
		return reflect.ValueOf(time.Duration(*n) * time.Hour)
	}
	switch of.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1_700_000_000 + *n)
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	case reflect.String:
		v.SetString("text <" + string(rune('a'+*n%26)) + ">")
	case reflect.Pointer:
		v.Set(reflect.New(of.Elem()))
		v.Elem().Set(filled(of.Elem(), n, depth))
	case reflect.Slice:
		for range 2 {
			v = reflect.Append(v, filled(of.Elem(), n, depth))
		}
	case reflect.Map:
		v = reflect.MakeMap(of)
		if depth > 0 {
			v.SetMapIndex(filled(of.Key(), n, depth-1), filled(of.Elem(), n, depth-1))
		}
	case reflect.Struct:
		for i := range of.NumField() {
			if f := of.Field(i); f.IsExported() && !strings.HasPrefix(f.Tag.Get("json"), "-") {
				v.Field(i).Set(filled(f.Type, n, depth))
			}
		}
	default:
		panic("no value of type " + of.String())
	}
	return v
}

// The objects of the document keep their bytes: each, with a value in every field, is
// written as before. A field that is new shows here.
func TestAnswersKeepTheirBytes(t *testing.T) {
	var got bytes.Buffer
	e := json.NewEncoder(&got)
	e.SetEscapeHTML(false)
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		n := int64(0)
		got.WriteString(name + " ")
		if err := e.Encode(filled(reflect.TypeOf(documented[name]), &n, 1).Interface()); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join("testdata", "answers.txt")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	is, was := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(is), len(was)) {
		if i >= len(is) || i >= len(was) || is[i] != was[i] {
			t.Fatalf("line %d is\n%s\nand was\n%s", i+1, is[min(i, len(is)-1)], was[min(i, len(was)-1)])
		}
	}
}
