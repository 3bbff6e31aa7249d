package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A tinyidClient leases segments as TinyID's own client does, with its requests, and issues
// the numbers of one after the other.
type tinyidClient struct {
	servers []string
	token   string

	mu         sync.Mutex // guards the fields below
	next, last int64      // what is left of the segment: next to last
	delta      int64
}

// newTinyidClient reads a tinyid_client.properties.
func newTinyidClient(t *testing.T, properties string) *tinyidClient {
	t.Helper()
	c := new(tinyidClient)
	for line := range strings.Lines(properties) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "tinyid.server":
			c.servers = strings.Split(value, ",")
		case "tinyid.token":
			c.token = value
		}
	}
	if len(c.servers) == 0 || c.token == "" {
		t.Fatalf("there is no server or no token in %s", properties)
	}
	return c
}

// lease takes a segment from a server at random.
func (c *tinyidClient) lease(bizType string) error {
	url := fmt.Sprintf("http://%s/tinyid/id/nextSegmentIdSimple?token=%s&bizType=%s", c.servers[rand.N(len(c.servers))], c.token, bizType)
	req, err := http.NewRequest(http.MethodPost, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "Java/1.8.0_292")
	req.Header.Set("Accept", "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var current, loading, last, delta, remainder int64
	if _, err := fmt.Sscanf(string(body), "%d,%d,%d,%d,%d", &current, &loading, &last, &delta, &remainder); err != nil || loading < current || loading > last {
		return fmt.Errorf("%s: %d %q: %w", url, res.StatusCode, body, err)
	}
	c.next, c.last, c.delta = current+1, last, delta
	for c.next%delta != remainder {
		c.next++
	}
	return nil
}

func (c *tinyidClient) nextID(bizType string) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delta == 0 || c.next > c.last {
		if err := c.lease(bizType); err != nil {
			return 0, err
		}
	}
	id := c.next
	c.next += c.delta
	return id, nil
}

// The recipe for the original tinyid-client works as it is printed: its configuration in two
// servers of one store, its properties in programs whose requests are those of that client.
func TestTinyIDClientRecipe(t *testing.T) {
	t.Parallel()
	db := newForeignDB(t, testservers.SharedMariaDB(t))
	config, properties := "", ""
	for _, block := range blocks(t, javaPage, "yaml") {
		if strings.Contains(block, "tinyid:") {
			config = block
		}
	}
	for _, block := range blocks(t, javaPage, "text") {
		if strings.Contains(block, "tinyid.server=") {
			properties = block
		}
	}
	for _, printed := range []string{"10.0.0.9:9999", "10.0.0.10:9999"} {
		dir, at := t.TempDir(), freeAddress(t)
		serve(t, dir, nil, "--store", db.url, "--config", write(t, dir, "hapax.yaml", strings.Replace(config, "127.0.0.1:9999", at, 1)))
		properties = strings.Replace(properties, printed, at, 1)
		patience.Until(t, at+" is ready", func() bool {
			status, _ := answers(t, "http://"+at+"/readyz")
			return status == http.StatusOK
		})
	}
	const programs, threads, each = 2, 4, 10_000
	var mu sync.Mutex
	seen := map[int64]bool{}
	var all sync.WaitGroup
	for range programs {
		c := newTinyidClient(t, properties)
		for range threads {
			all.Go(func() {
				ids := make([]int64, each)
				for i := range ids {
					var err error
					if ids[i], err = c.nextID("order"); err != nil {
						t.Error(err)
						return
					}
				}
				mu.Lock()
				defer mu.Unlock()
				for _, id := range ids {
					seen[id] = true
				}
			})
		}
	}
	all.Wait()
	if len(seen) != programs*threads*each && !t.Failed() {
		t.Errorf("of %d numbers %d differ", programs*threads*each, len(seen))
	}
}
