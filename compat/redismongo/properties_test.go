package redismongo

import (
	"fmt"
	"testing"
)

func FuzzProperties(f *testing.F) {
	for _, seed := range []string{"workerId=1\n", "#x\nworkerid : 2", "workerId=1\nworkerId=2", "=", "workerId=99999999999999999999", "\x00\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		id, ok := parseProperties(raw)
		if !ok {
			return
		}
		if id < 0 {
			t.Fatalf("worker ID %d", id)
		}
		if again, ok := parseProperties(fmt.Appendf(nil, "%s=%d\n", fileKey, id)); !ok || again != id {
			t.Fatalf("%d is read as %d, %v", id, again, ok)
		}
	})
}
