//go:build !brief

// go-redis takes 20 s to compile for the race detector, so that make race does without; make soak does not.

package respapi

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
)

func TestGoRedis(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			srv, _ := newClientServer(t)
			client := redis.NewClient(&redis.Options{Addr: srv.addr, Protocol: protocol, MaxRetries: -1, ClientName: "test"})
			defer client.Close()
			testGoRedis(t, client)
		})
	}
}

func testGoRedis(t *testing.T, client *redis.Client) {
	ctx := t.Context()
	for want := int64(1); want <= 3; want++ {
		if id, err := client.Incr(ctx, "orders").Result(); err != nil || id != want {
			t.Fatalf("got %d, %v; want %d", id, err, want)
		}
	}
	pipe := client.Pipeline()
	var cmds []*redis.IntCmd
	for range 500 {
		cmds = append(cmds, pipe.Incr(ctx, "orders"))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	for i, cmd := range cmds {
		if cmd.Val() != int64(4+i) {
			t.Fatalf("number %d of the pipeline is %d", i, cmd.Val())
		}
	}
	if got, err := client.Do(ctx, "HAPAX.NEXT", "snowflake", "COUNT", 3).Int64Slice(); err != nil || len(got) != 3 || got[0] < 1<<53 {
		t.Errorf("HAPAX.NEXT: %v, %v", got, err)
	}
	if info, err := client.ClientInfo(ctx).Result(); err != nil || info.Name != "test" {
		t.Errorf("CLIENT INFO: %v, %v", info, err)
	}
	tx := client.TxPipeline()
	first, second := tx.Incr(ctx, "tx"), tx.IncrBy(ctx, "tx", 10)
	if _, err := tx.Exec(ctx); err != nil || first.Val() != 1 || second.Val() != 11 {
		t.Errorf("MULTI: %v, %v, %v", first, second, err)
	}
	if last, err := client.IncrBy(ctx, "orders", 100).Result(); err != nil || last != 603 {
		t.Errorf("INCRBY: %d, %v", last, err)
	}
	if last, err := client.Get(ctx, "orders").Int64(); err != nil || last != 603 {
		t.Errorf("GET: %d, %v", last, err)
	}
	if _, err := client.Get(ctx, "nobody").Result(); err != redis.Nil {
		t.Errorf("GET of a tag never used: %v", err)
	}
	if _, err := client.Do(ctx, "HAPAX.PARSE", "250551203758067712").Result(); err != nil {
		t.Error(err)
	}
	if commands, err := client.Command(ctx).Result(); err != nil || commands["incr"].Arity != 2 {
		t.Errorf("COMMAND: %v, %v", commands["incr"], err)
	}
	if name, err := client.ClientGetName(ctx).Result(); err != nil || name != "test" {
		t.Errorf("CLIENT GETNAME: %q, %v", name, err)
	}
	if err := client.IncrBy(ctx, "snowflake", 2).Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE kind_mismatch: ") {
		t.Errorf("INCRBY of a snowflake tag: %v", err)
	}
}

// Numbers above 2^53 arrive whole.
func TestLargeNumbers(t *testing.T) {
	const start = math.MaxInt64 - 1<<33
	srv := newTestServer(t, testConfig{service: service.Options{
		MaxWait: patience.Long, Tags: map[string]service.TagConfig{"large": {Start: start}},
	}})
	client := redis.NewClient(&redis.Options{Addr: srv.addr, MaxRetries: -1, ReadTimeout: patience.Long})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	if id, err := client.Incr(ctx, "large").Result(); err != nil || id != start {
		t.Errorf("got %d, %v; want %d", id, err, int64(start))
	}
}
