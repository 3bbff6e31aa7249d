package rest_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/rest"
)

// TestVectors: /expid and /makeid say of the worked examples what they are.
func TestVectors(t *testing.T) {
	data, err := os.ReadFile("../../../testdata/layout-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Vectors []struct {
			Layout, ID string
			Fields     map[string]int64
		}
	}
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, v := range all.Vectors {
		f := v.Fields
		if !strings.HasPrefix(v.Layout, "vesta-") || (f["type"] == 1) != strings.HasSuffix(v.Layout, "-min-granularity") {
			continue // not a number of Vesta's
		}
		tried++
		ids, err := vesta.New(source{}, vesta.Options{Layout: v.Layout})
		if err != nil {
			t.Fatal(err)
		}
		h, err := rest.NewHandler(ids, rest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		get := func(target string) string {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
			return w.Body.String()
		}
		var got map[string]int64
		want := map[string]int64{
			"machine": f["machine"], "seq": f["sequence"], "time": f["time"], "genMethod": f["genMethod"], "type": f["type"], "version": f["version"],
		}
		if text := get("/expid?id=" + v.ID); json.Unmarshal([]byte(text), &got) != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s of %s: explained as %s, want %v", v.ID, v.Layout, text, want)
		}
		target := "/makeid?"
		for name, value := range want {
			target += fmt.Sprintf("%s=%d&", name, value)
		}
		if text := strings.TrimSpace(get(target)); text != v.ID {
			t.Errorf("%s: made %s, want %s", target, text, v.ID)
		}
	}
	if tried < 12 {
		t.Errorf("tried %d vectors only", tried)
	}
}
