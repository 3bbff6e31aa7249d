package client

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store = (*Client)(nil)
	_ driver.Clock = (*Client)(nil)
)

// maxPage is how many tags a server lists at once.
const maxPage = 1000

// StoreID returns the identity of the servers' store. ErrStoreReplaced if it is
// not the one that was used before.
func (c *Client) StoreID(ctx context.Context) (string, error) {
	return call(ctx, c, repeatable, func(ctx context.Context, s *server) (string, error) {
		res, err := s.lease.GetStoreID(ctx, &hapaxv1.GetStoreIDRequest{})
		if err != nil {
			return "", err
		}
		return res.GetStoreId(), c.checkStore(s, res.GetStoreId())
	})
}

// StoreTime returns the store's time, or a server's where the store has no
// clock.
func (c *Client) StoreTime(ctx context.Context) (time.Time, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetStoreTimeResponse, error) {
		return s.lease.GetStoreTime(ctx, &hapaxv1.GetStoreTimeRequest{})
	})
	return res.GetTime().AsTime(), err
}

// Ping reports whether a server can lease now.
func (c *Client) Ping(ctx context.Context) error {
	_, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.PingResponse, error) {
		return s.lease.Ping(ctx, &hapaxv1.PingRequest{})
	})
	return err
}

// Allocate implements hapax.SegmentStore. What it returns has no end of
// validity: issuers made by [Segment] watch theirs.
func (c *Client) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, _, err := c.allocate(ctx, tag, n, last)
	return a, err
}

// allocate also returns how long the numbers may be used, from the start of the
// call.
func (c *Client) allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, time.Duration, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, 0, err
	}
	res, err := granted(&c.fences, "lease/"+tag, func() (*hapaxv1.AllocateResponse, error) {
		return call(ctx, c, leasing, func(ctx context.Context, s *server) (*hapaxv1.AllocateResponse, error) {
			return s.lease.Allocate(ctx, &hapaxv1.AllocateRequest{Tag: tag, N: n, LastKey: string(last)})
		})
	})
	if err != nil {
		return hapax.Allocation{}, 0, err
	}
	c.leases.Add(1)
	t, err := wire.Tag(res.GetTag())
	a := hapax.Allocation{Grant: wire.Grant(res.GetGrant()), Tag: t, Key: hapax.GrantKey(res.GetKey()), From: res.GetFrom()}
	return a, res.GetValidFor().AsDuration(), err
}

// HandBack implements hapax.SegmentStore.
func (c *Client) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	_, err := call(ctx, c, leasing, func(ctx context.Context, s *server) (*hapaxv1.HandBackResponse, error) {
		return s.lease.HandBack(ctx, &hapaxv1.HandBackRequest{Tag: a.Tag.Name, Grant: wire.NewGrant(a.Grant), Key: string(a.Key), From: a.From, Next: next, Token: a.Tag.Token})
	})
	return err
}

// CreateTag implements hapax.SegmentStore. With hapax.CreateFirstUse the
// server's configuration has the last word on whether and how the tag is
// created.
//
// A call whose reply is lost is not repeated: ErrStoreUnavailable may mean that
// the tag was created. The same goes for DeleteTag.
func (c *Client) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return tag, err
	}
	m := wire.NewTag(tag)
	if mode == hapax.CreateFirstUse {
		res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.FirstUseResponse, error) {
			return s.lease.FirstUse(ctx, &hapaxv1.FirstUseRequest{Tag: m})
		})
		return tagOf(res.GetTag(), err)
	}
	req := &hapaxv1.CreateTagRequest{Tag: m, Tombstone: mode == hapax.CreateTombstone}
	if mode == hapax.CreateFromToken {
		req.FromToken = &tag.Token
	}
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.CreateTagResponse, error) {
		return s.admin.CreateTag(ctx, req)
	})
	made, err := tagOf(res.GetTag(), err)
	if err == nil && req.Tombstone && !made.Deleted { // the build before the one that knows tombstones made a tag
		_, err = c.DeleteTag(ctx, tag.Name)
		err = errors.Join(fmt.Errorf("%w: the server is of an older build than this client, and makes no tombstone: update it first", hapax.ErrNotSupported), err)
	}
	return made, err
}

func tagOf(m *hapaxv1.Tag, err error) (hapax.Tag, error) {
	if err != nil {
		return hapax.Tag{}, err
	}
	return wire.Tag(m)
}

// Tag implements driver.TagStore.
func (c *Client) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetTagResponse, error) {
		return s.admin.GetTag(ctx, &hapaxv1.GetTagRequest{Name: name})
	})
	return tagOf(res.GetTag(), err)
}

// Tags implements driver.TagStore.
func (c *Client) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	var tags []hapax.Tag
	for len(tags) < limit {
		ask := min(limit-len(tags), maxPage)
		res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ListTagsResponse, error) {
			return s.admin.ListTags(ctx, &hapaxv1.ListTagsRequest{After: after, Limit: int32(ask)})
		})
		if err != nil {
			return nil, err
		}
		page, err := wire.Tags(res.GetTags())
		if err != nil {
			return nil, err
		}
		tags = append(tags, page...)
		if len(page) < ask {
			break
		}
		after = page[len(page)-1].Name
	}
	return tags, nil
}

// UpdateTag implements driver.TagStore.
func (c *Client) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	if u.Extra != nil && !utf8.ValidString(*u.Extra) { // which no message can hold
		return hapax.Tag{}, outOfRange("extra", fmt.Sprintf("(%d bytes)", len(*u.Extra)), fmt.Sprintf("valid UTF-8 of up to %d bytes", hapax.MaxExtraBytes))
	}
	if u.ExtraWas != nil {
		return hapax.Tag{}, outOfRange("extra_was", "(given)", "none: the server changes what is stored by what is given")
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.UpdateTagResponse, error) {
		return s.admin.UpdateTag(ctx, wire.NewTagUpdate(name, u))
	})
	return tagOf(res.GetTag(), err)
}

// DeleteTag implements driver.TagStore.
func (c *Client) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.DeleteTagResponse, error) {
		return s.admin.DeleteTag(ctx, &hapaxv1.DeleteTagRequest{Name: name})
	})
	return tagOf(res.GetTag(), err)
}

// AcquireWorker implements hapax.WorkerStore.
func (c *Client) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := hapax.ValidateName("pool", req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	m := wire.NewAcquireRequest(req)
	res, err := granted(&c.fences, "acquire/"+req.Pool, func() (*hapaxv1.AcquireWorkerResponse, error) {
		return call(ctx, c, leasing, func(ctx context.Context, s *server) (*hapaxv1.AcquireWorkerResponse, error) {
			return s.lease.AcquireWorker(ctx, m)
		})
	})
	if err != nil {
		return hapax.Lease{}, err
	}
	c.leases.Add(1)
	return wire.Lease(res.GetLease()), nil
}

// ExtendWorker implements hapax.WorkerStore.
func (c *Client) ExtendWorker(ctx context.Context, lease hapax.Lease, _ hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	m := &hapaxv1.ExtendWorkerRequest{Lease: wire.NewLease(lease), Term: wire.NewTerm(term)}
	// Of this very lease: another one of the worker ID, which is wrong, is refused alone.
	line := fmt.Sprintf("extend/%d/%d/%d/%s/%s", lease.Worker, lease.Token, lease.Grant.Hi, string(lease.Key), lease.Pool)
	res, err := granted(&c.fences, line, func() (*hapaxv1.ExtendWorkerResponse, error) {
		return call(ctx, c, leasing, func(ctx context.Context, s *server) (*hapaxv1.ExtendWorkerResponse, error) {
			return s.lease.ExtendWorker(ctx, m)
		})
	})
	if err != nil {
		return lease, err
	}
	c.leases.Add(1)
	return wire.Lease(res.GetLease()), nil
}

// SealWorker implements hapax.WorkerStore.
func (c *Client) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	_, err := call(ctx, c, leasing, func(ctx context.Context, s *server) (*hapaxv1.SealWorkerResponse, error) {
		return s.lease.SealWorker(ctx, &hapaxv1.SealWorkerRequest{Lease: wire.NewLease(lease), Last: last})
	})
	return err
}

// Workers implements driver.PoolStore.
func (c *Client) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ListWorkersResponse, error) {
		return s.admin.ListWorkers(ctx, &hapaxv1.ListWorkersRequest{Pool: pool})
	})
	return wire.Workers(res.GetWorkers()), err
}

// RetireWorker implements driver.PoolStore.
func (c *Client) RetireWorker(ctx context.Context, pool string, id int64) (driver.Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return driver.Worker{}, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.RetireWorkerResponse, error) {
		return s.admin.RetireWorker(ctx, &hapaxv1.RetireWorkerRequest{Pool: pool, Worker: id})
	})
	if err != nil {
		return driver.Worker{}, err
	}
	return wire.Worker(res.GetWorker()), nil
}

// CreatePool implements driver.PoolStore.
func (c *Client) CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return driver.Pool{}, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.CreatePoolResponse, error) {
		return s.admin.CreatePool(ctx, &hapaxv1.CreatePoolRequest{Pool: pool, Layout: layout})
	})
	return wire.Pool(res.GetPool()), err
}

// DeletePool implements driver.PoolStore.
func (c *Client) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return driver.Pool{}, err
	}
	res, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.DeletePoolResponse, error) {
		return s.admin.DeletePool(ctx, &hapaxv1.DeletePoolRequest{Pool: pool})
	})
	return wire.Pool(res.GetPool()), err
}

// Pools implements driver.PoolStore.
func (c *Client) Pools(ctx context.Context) ([]driver.Pool, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ListPoolsResponse, error) {
		return s.admin.ListPools(ctx, &hapaxv1.ListPoolsRequest{})
	})
	return wire.Pools(res.GetPools()), err
}

// poolLayout returns the layout that a pool is, or will be, frozen with.
func (c *Client) poolLayout(ctx context.Context, pool string) (hapax.Layout, error) {
	if pool != "" {
		if err := hapax.ValidateName("pool", pool); err != nil {
			return hapax.Layout{}, err
		}
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.GetPoolResponse, error) {
		return s.lease.GetPool(ctx, &hapaxv1.GetPoolRequest{Pool: pool})
	})
	if err != nil {
		return hapax.Layout{}, err
	}
	l, err := hapax.ParseLayout(res.GetPool().GetLayout())
	if err != nil {
		return l, fmt.Errorf("pool %q, as the server has it: %w", res.GetPool().GetName(), err)
	}
	return l, nil
}
