package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/store/boltstore"
)

// A way is how somebody outside comes by numbers of a tag.
type way struct {
	name, tag string
	take      func(context.Context, *region) ([]hapax.ID, error)
}

// servedWays are those through a server that runs.
func servedWays() []way {
	ways := []way{
		{"HTTP next", "orders", func(_ context.Context, r *region) ([]hapax.ID, error) {
			text, err := r.fetch(http.MethodGet, r.server.url+"/v1/tags/orders/next", "")
			if err != nil {
				return nil, err
			}
			return numbers(string(text))
		}},
		{"HTTP next of many", "orders", func(_ context.Context, r *region) ([]hapax.ID, error) {
			text, err := r.fetch(http.MethodGet, r.server.url+"/v1/tags/orders/next?count=7", "")
			if err != nil {
				return nil, err
			}
			return numbers(string(text))
		}},
		{"HTTP lease", "orders", func(_ context.Context, r *region) ([]hapax.ID, error) { return r.take("orders", `{"count": 9}`) }},
		{"HTTP take without a lease", "orders", func(_ context.Context, r *region) ([]hapax.ID, error) {
			return r.take("orders", `{"count": 9, "receipt": false}`)
		}},
		{"HTTP take of codes", "coupons", func(_ context.Context, r *region) ([]hapax.ID, error) {
			return r.take("coupons", `{"count": 4, "codes": true}`)
		}},
		{"leased by the client", "orders", func(ctx context.Context, r *region) ([]hapax.ID, error) {
			segment, err := r.segment(ctx, "orders")
			if err != nil {
				return nil, err
			}
			ids := make([]hapax.ID, 11)
			n, err := segment.NextN(ctx, ids)
			return ids[:n], err
		}},
		{"leased by the client, one by one", "coupons", func(ctx context.Context, r *region) ([]hapax.ID, error) {
			segment, err := r.segment(ctx, "coupons")
			if err != nil {
				return nil, err
			}
			id, err := segment.Next(ctx)
			return []hapax.ID{id}, err
		}},
		{"leased by the client, on a lane", "orders", func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
			segment, err := r.segment(ctx, "orders")
			if err != nil {
				return nil, err
			}
			lane := segment.Lane()
			for range 5 {
				id, err := lane.Next(ctx)
				if err != nil {
					return ids, err
				}
				ids = append(ids, id)
			}
			return ids, nil
		}},
		{"a stretch that the client reserves", "orders", func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
			segment, err := r.segment(ctx, "orders")
			if err != nil {
				return nil, err
			}
			g, err := segment.Reserve(ctx, 6)
			for id := g.Lo; id < g.Hi; id += 2 {
				ids = append(ids, hapax.ID(id))
			}
			return ids, err
		}},
		{"a line leased by the client", "invoices", func(ctx context.Context, r *region) ([]hapax.ID, error) {
			line, err := r.segment(ctx, "invoices@@"+r.year)
			if err != nil {
				return nil, err
			}
			id, err := line.Next(ctx)
			return []hapax.ID{id}, err
		}},
		{"a call of the client", "orders", func(ctx context.Context, r *region) ([]hapax.ID, error) {
			id, err := r.client.Next(ctx, "orders")
			return []hapax.ID{id}, err
		}},
		{"gRPC stream", "orders", func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
			stream, err := r.rpc["gRPC"].NextStream(ctx, &hapaxv1.NextStreamRequest{Tag: "orders", Count: 30})
			if err != nil {
				return nil, err
			}
			defer stream.Close()
			for stream.Receive() {
				ids = append(ids, ids64(stream.Msg().GetIds())...)
			}
			return ids, stream.Err()
		}},
		{"Redis, pipelines of INCR", "orders", func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
			replies, err := r.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range 16 {
					p.Incr(ctx, "orders")
				}
				return nil
			})
			for _, reply := range replies {
				ids = append(ids, hapax.ID(reply.(*redis.IntCmd).Val()))
			}
			return ids, err
		}},
		{"Redis, transactions", "orders", func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
			replies, err := r.redis.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "orders")
				p.IncrBy(ctx, "orders", 1)
				return nil
			})
			for _, reply := range replies {
				ids = append(ids, hapax.ID(reply.(*redis.IntCmd).Val()))
			}
			return ids, err
		}},
		{"TinyID's client", "orders", func(_ context.Context, r *region) (ids []hapax.ID, err error) {
			text, err := r.fetch(http.MethodPost, "http://"+r.tinyid+"/tinyid/id/nextSegmentIdSimple?bizType=orders&token="+tinyidToken, "")
			if err != nil {
				return nil, err
			}
			told, err := numbers(string(text)) // current, loading, max, delta, remainder
			if err != nil || len(told) != 5 {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
			for n := told[0] + 1; n <= told[2]; n++ {
				if n%told[3] == told[4] {
					ids = append(ids, n)
				}
			}
			return ids, nil
		}},
		{"TinyID's numbers", "orders", func(_ context.Context, r *region) ([]hapax.ID, error) {
			text, err := r.fetch(http.MethodPost, "http://"+r.tinyid+"/tinyid/id/nextIdSimple?bizType=orders&batchSize=5&token="+tinyidToken, "")
			if err != nil {
				return nil, err
			}
			return numbers(string(text))
		}},
	}
	for _, tag := range regionTags {
		ways = append(ways,
			way{"HTTP ids", tag, func(_ context.Context, r *region) ([]hapax.ID, error) { return take(patient, r.server.url, tag, 13) }},
			way{"Redis, INCR", tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				id, err := r.redis.Incr(ctx, tag).Result()
				return []hapax.ID{hapax.ID(id)}, err
			}},
			way{"Redis, INCRBY", tag, func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
				last, err := r.redis.IncrBy(ctx, tag, 10).Result()
				if err != nil {
					if strings.Contains(err.Error(), "are 2 apart, so none follow each other") {
						err = nil
					}
					return nil, err
				}
				for id := last - 9; id <= last; id++ {
					ids = append(ids, hapax.ID(id))
				}
				return ids, nil
			}},
			way{"Redis, HAPAX.NEXT", tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				ids, err := r.redis.Do(ctx, "HAPAX.NEXT", tag, "COUNT", 3).Int64Slice()
				return ids64(ids), err
			}},
			way{"calls of the client", tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				ids := make([]hapax.ID, 8)
				n, err := r.client.NextN(ctx, tag, ids)
				return ids[:n], err
			}},
			way{"hapax next", tag, func(_ context.Context, r *region) ([]hapax.ID, error) {
				return r.next(tag, "-n", "3", "--server", r.server.url)
			}},
		)
		for _, protocol := range []string{"gRPC", "gRPC-Web", "Connect"} {
			ways = append(ways, way{protocol, tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				res, err := r.rpc[protocol].Next(ctx, &hapaxv1.NextRequest{Tag: tag, Count: 6})
				return ids64(res.GetIds()), err
			}})
		}
	}
	for _, tag := range regionTags[1:] {
		ways = append(ways,
			way{"codes by the client", tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				codes, err := r.client.NextCodes(ctx, tag, 4)
				return codes.IDs, err
			}},
			way{"codes by hapax next", tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				out, err := r.command("next", tag, "--code", "-n", "2", "--server", r.server.url)
				if err != nil {
					return nil, err
				}
				return r.parsed(ctx, tag, strings.Fields(out))
			}},
			way{"codes over the Redis protocol", tag, func(ctx context.Context, r *region) ([]hapax.ID, error) {
				texts, err := r.redis.Do(ctx, "HAPAX.CODE", tag, "COUNT", 2).StringSlice()
				if err != nil {
					return nil, err
				}
				return r.parsed(ctx, tag, texts)
			}})
	}
	return ways
}

// storedWays are those of a program that has the store to itself.
func storedWays() (ways []way) {
	for _, tag := range regionTags {
		ways = append(ways,
			way{"hapax next on the store", tag, func(_ context.Context, r *region) ([]hapax.ID, error) {
				return r.next(tag, "-n", "9", "--data", r.data)
			}},
			way{"hapax next on the store, configured", tag, func(_ context.Context, r *region) ([]hapax.ID, error) {
				return r.next(tag, "-n", "9", "--data", r.data, "--config", r.config)
			}})
	}
	return append(ways, way{"a program on the store", "orders", func(ctx context.Context, r *region) (ids []hapax.ID, err error) {
		store, err := boltstore.Open(ctx, filepath.Join(r.dir, r.data, "hapax.db"), boltstore.Options{})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		segment, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
		if err != nil {
			return nil, err
		}
		ids = make([]hapax.ID, 7)
		n, err := segment.NextN(ctx, ids)
		return ids[:n], errors.Join(err, segment.Close(ctx))
	}})
}
