package redisstore

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// NewClient returns a client for the URL of a store, for other uses of that Redis. It
// connects at its first use, and heeds the deadlines of contexts. Errors are a
// *hapax.ValueError.
func NewClient(url string, timeout time.Duration) (redis.UniversalClient, error) {
	t, err := parseURL(url, Options{Timeout: timeout})
	if err != nil {
		return nil, err
	}
	return t.connect(), nil
}
