package service

import (
	"strings"
	"testing"
)

// A worker ID that is outside of its pool is found before the start, where the settings
// say how large the pool is.
func TestIdentityOutsideThePool(t *testing.T) {
	for name, c := range map[string]struct {
		pool PoolConfig
		ok   bool
	}{
		"in the layout":       {PoolConfig{Layout: "leaf", Identity: "fixed:1023"}, true},
		"outside the layout":  {PoolConfig{Layout: "leaf", Identity: "fixed:1024"}, false},
		"in the range":        {PoolConfig{Workers: "5-7", Identity: "fixed:7"}, true},
		"outside the range":   {PoolConfig{Workers: "5-7", Identity: "fixed:8"}, false},
		"listed, one outside": {PoolConfig{Workers: "5-7", Identity: "list:5,9"}, false},
	} {
		err := Options{Pools: map[string]PoolConfig{"p": c.pool}}.Validate()
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "pools.p.identity") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
