package dubbo

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
)

// TestVectors: expId and makeId say of the worked examples what they are.
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
		id, err := hapax.ParseID(v.ID)
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, serve(t, v.Layout))
		_, body := exchange(t, c, frame(twoWayRequest, 1, request(DefaultInterface, "expId", "J", int64(id))))
		values := []int64{f["machine"], f["sequence"], f["time"], f["genMethod"], f["type"], f["version"]}
		names := []string{"machine", "seq", "time", "genMethod", "type", "version"}
		want := appendObject([]byte{0x91}, "com.robert.vesta.service.bean.Id", names, values)
		if !bytes.Equal(body, want) {
			t.Errorf("%s of %s: explained as %x, want %x", v.ID, v.Layout, body, want)
		}
		call := request(DefaultInterface, "makeId", "JJJJJJ", f["version"], f["type"], f["genMethod"], f["time"], f["sequence"], f["machine"])
		if _, body = exchange(t, c, frame(twoWayRequest, 2, call)); !bytes.Equal(body, appendLong([]byte{0x91}, int64(id))) {
			t.Errorf("%s of %s: made %x", v.ID, v.Layout, body)
		}
	}
	if tried < 12 {
		t.Errorf("tried %d vectors only", tried)
	}
}

// serve returns the address of a server with a layout of its own.
func serve(t *testing.T, layout string) string {
	t.Helper()
	ids, err := vesta.New(issuing(sample), vesta.Options{Layout: layout})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(ids, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		_ = s.Close(context.Background())
		<-served
	})
	return ln.Addr().String()
}
