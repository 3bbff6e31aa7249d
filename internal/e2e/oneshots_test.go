package e2e

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// Many commands at once, beside a server on the same store, each issue numbers of their
// own, as if each were alone.
func TestManyCommandsAtOnce(t *testing.T) {
	t.Parallel()
	manyCommands(t, 12)
}

func TestManyCommandsAtOnceSoak(t *testing.T) {
	patience.Soak(t, "a crowd")
	manyCommands(t, 200)
}

func manyCommands(t *testing.T, processes int) {
	t.Helper()
	const each = 2
	store, dir := testservers.Redis(t), t.TempDir()
	server := serve(t, dir, nil, "--store", store.URL)
	eventuallyTake(t, server, "orders", 1) // it serves
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[int64]int{}
	)
	for i := range processes {
		wg.Go(func() {
			// The processes share the processor: how long the store takes is not what is asked here.
			r := runWith(t, dir, "", []string{"HAPAX_STORE_TIMEOUT=" + patience.Call.String()}, "next", "orders", "--store", store.URL, "-n", strconv.Itoa(each))
			if r.code != 0 || r.err != "" {
				t.Errorf("process %d: exit code %d, %s", i, r.code, r.err)
			}
			mu.Lock()
			defer mu.Unlock()
			for text := range strings.FieldsSeq(r.out) {
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					t.Error(err)
				}
				seen[n]++
			}
		})
	}
	wg.Wait()
	if len(seen) != processes*each {
		t.Errorf("%d processes issued %d different numbers; want %d", processes, len(seen), processes*each)
	}
	if code := server.stop(); code != 0 {
		t.Errorf("the server ended with exit code %d", code)
	}
}
