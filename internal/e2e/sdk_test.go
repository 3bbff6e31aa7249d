package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	sdk "github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A user takes numbers of a tag, however it does that.
type user struct {
	name   string
	tag    string
	take   func(ctx context.Context) ([]hapax.ID, error)
	safe   bool // it may never see an error
	ids    []hapax.ID
	errors int
}

// Numbers are taken through all protocols at once, while two servers over one
// store are killed in turn: no number comes twice, and users of the client see no
// error, because one server always lives.
func TestEveryProtocolThroughCrashes(t *testing.T) {
	t.Parallel()
	everyProtocolThroughCrashes(t, 60_000, 4)
}

func TestEveryProtocolThroughCrashesSoak(t *testing.T) {
	patience.Soak(t, "a million numbers, through crashes at any moment")
	everyProtocolThroughCrashes(t, 1_000_000, 10)
}

func everyProtocolThroughCrashes(t *testing.T, total, kills int64) {
	t.Helper()
	store := testservers.Redis(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	addresses := []string{freeAddress(t), freeAddress(t)}
	resps := []string{freeAddress(t), freeAddress(t)}
	start := func(i int) *serving {
		return serve(t, dirs[i], nil, "--http", addresses[i], "--resp", resps[i], "--store", store.URL,
			"--tags", `{orders: {step: 500, max_step: 2000}}`)
	}
	servers := []*serving{start(0), start(1)}

	ctx, cancel := context.WithTimeout(t.Context(), 5*patience.Long)
	defer cancel()
	c, err := sdk.Dial(ctx, sdk.Options{Timeout: patience.Call}, servers[0].url, servers[1].url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	flake, err := c.Snowflake(ctx, hapax.SnowflakeOptions{Grant: time.Second, MaxGrant: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	users := []*user{
		{name: "leased numbers", tag: "orders", safe: true, take: batched(segment)},
		{name: "leased time", tag: "snowflake", safe: true, take: batched(flake)},
		{name: "calls", tag: "orders", safe: true, take: func(ctx context.Context) ([]hapax.ID, error) {
			ids := make([]hapax.ID, 100)
			n, err := c.NextN(ctx, "orders", ids)
			return ids[:n], err
		}},
	}
	web := &http.Client{Timeout: patience.Long}
	for i := range servers {
		conn, err := grpc.NewClient(addresses[i], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		incr := redis.NewClient(&redis.Options{Addr: resps[i], MaxRetries: -1})
		defer incr.Close()
		users = append(users,
			&user{name: "HTTP", tag: "snowflake", take: func(context.Context) ([]hapax.ID, error) {
				return take(web, "http://"+addresses[i], "snowflake", 100)
			}},
			&user{name: "gRPC", tag: "orders", take: func(ctx context.Context) ([]hapax.ID, error) {
				res := &hapaxv1.NextResponse{}
				err := conn.Invoke(ctx, hapaxv1connect.IssueServiceNextProcedure, &hapaxv1.NextRequest{Tag: "orders", Count: 100}, res)
				ids := make([]hapax.ID, len(res.GetIds()))
				for k, id := range res.GetIds() {
					ids[k] = hapax.ID(id)
				}
				return ids, err
			}},
			&user{name: "Redis", tag: "orders", take: func(ctx context.Context) ([]hapax.ID, error) {
				id, err := incr.Incr(ctx, "orders").Result()
				return []hapax.ID{hapax.ID(id)}, err
			}})
	}

	var taken atomic.Int64
	var wg sync.WaitGroup
	for _, u := range users {
		wg.Go(func() {
			for taken.Load() < total && ctx.Err() == nil {
				ids, err := u.take(ctx)
				if err == nil {
					u.ids = append(u.ids, ids...)
					taken.Add(int64(len(ids)))
					continue
				}
				if u.errors++; u.safe {
					t.Errorf("%s: %v", u.name, err)
					return
				}
				patience.Again()
			}
		})
	}
	for k := range kills {
		part := (k + 1) * total / (kills + 1)
		patience.Until(t, fmt.Sprintf("%d numbers", part), func() bool { return taken.Load() >= part || t.Failed() })
		i := int(k % 2)
		servers[i].kill()
		had := taken.Load()
		patience.Until(t, "more numbers, of the other server", func() bool { return taken.Load() > had+200 || taken.Load() >= total || t.Failed() })
		servers[i] = start(i)
		takeSoon(t, servers[i], "orders", 1) // it has joined before the other one is killed; a gap of one
	}
	wg.Wait()
	if taken.Load() < total {
		t.Fatalf("%d numbers; want %d", taken.Load(), total)
	}

	byTag := map[string][]hapax.ID{}
	failed := 0
	for _, u := range users {
		t.Logf("%s of %s: %d numbers, %d errors", u.name, u.tag, len(u.ids), u.errors)
		byTag[u.tag] = append(byTag[u.tag], u.ids...)
		failed += u.errors
	}
	for tag, ids := range byTag {
		distinct(t, tag, ids)
	}
	t.Logf("the client failed over %d times; %d requests without it had no answer", c.Stats().Failovers, failed)
	for _, s := range servers {
		if strings.Contains(s.logged(), "panic") {
			t.Errorf("a panic: %s", s.logged())
		}
	}
}

// batched takes a hundred numbers, by single calls and by one.
func batched(issuer hapax.Issuer) func(context.Context) ([]hapax.ID, error) {
	return func(ctx context.Context) ([]hapax.ID, error) {
		ids := make([]hapax.ID, 100)
		for i := range 50 {
			var err error
			if ids[i], err = issuer.Next(ctx); err != nil {
				return nil, err
			}
		}
		_, err := issuer.NextN(ctx, ids[50:])
		patience.Slow(100 * time.Microsecond) // the others are to have their share
		return ids, err
	}
}

// A web page that reaches the server on loopback is refused on RPC paths, too.
func TestRPCIsLoopbackOnly(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil)
	for name, header := range map[string][2]string{
		"foreign host":   {"Host", "evil.example"},
		"foreign origin": {"Origin", "http://evil.example"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+hapaxv1connect.IssueServiceNextProcedure, strings.NewReader(`{"tag":"orders"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(header[0], header[1])
		if header[0] == "Host" {
			req.Host = header[1]
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}
