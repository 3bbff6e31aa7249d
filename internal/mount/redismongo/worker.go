package redismongo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/identity"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/redisstore"
)

// checkWorker judges the settings of the worker ID that a registry keeps.
func (r *Settings) checkWorker(c *mount.Plan) error {
	if r.WorkerPool == "" {
		for name, given := range map[string]bool{
			"worker_registry": r.WorkerRegistry != "", "worker_key": r.WorkerKey != "",
			"worker_name": r.WorkerName != "", "worker_port": r.WorkerPort != 0, "worker_ip": r.WorkerIP != "",
		} {
			if given {
				return mount.Errorf(nil, "compat.redismongo.%s needs worker_pool, the pool whose worker ID is kept", name)
			}
		}
		return nil
	}
	pool, known := c.Pools[r.WorkerPool]
	if !known && r.WorkerPool != hapax.DefaultPool {
		return mount.Invalid("redismongo.worker_pool", r.WorkerPool, "a pool that pools defines, or default")
	}
	if pool.Identity != "" {
		return mount.Invalid("redismongo.worker_pool", r.WorkerPool, "a pool without an identity of its own")
	}
	if _, _, err := r.candidates(pool); err != nil {
		return err
	}
	instance, err := r.instance()
	if err != nil {
		return err
	}
	if err := instance.Validate(); err != nil {
		return inCompat(err, "worker_")
	}
	zk := strings.HasPrefix(r.WorkerRegistry, "zk://")
	if zk && r.WorkerKey != "" {
		return mount.Invalid("redismongo.worker_key", r.WorkerKey, "none for a registry in ZooKeeper, whose URL has a path")
	}
	if zk {
		return inCompat(redismongo.ZooKeeperRegistry{URL: r.WorkerRegistry}.Validate(), "")
	}
	client, err := redisstore.NewClient(cmp.Or(r.WorkerRegistry, r.Redis), 0)
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.worker_registry")
	}
	return client.Close() // it has connected to nothing
}

// instance returns who this node is. Without worker_ip it is the first address of the
// machine that others may reach.
func (r *Settings) instance() (redismongo.Instance, error) {
	i := redismongo.Instance{Name: r.WorkerName, Port: r.WorkerPort}
	var err error
	if r.WorkerIP != "" {
		if i.IP, err = netip.ParseAddr(r.WorkerIP); err != nil {
			return i, mount.Invalid("redismongo.worker_ip", r.WorkerIP, "an IP address")
		}
		return i, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return i, mount.Errorf(err, "compat.redismongo.worker_ip: the addresses of this machine cannot be read")
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() && !p.Addr().IsLoopback() {
			i.IP = p.Addr()
			return i, nil
		}
	}
	return i, mount.Invalid("redismongo.worker_ip", "", "the IP address of this node: the machine shows none but loopback")
}

// candidates returns the worker IDs that a registry may give an instance, or, where the
// pool has a split, the values of the part that is not fixed, and that part's name.
func (r *Settings) candidates(pool service.PoolConfig) (ids hapax.WorkerRange, part string, err error) {
	if pool.Split == "" {
		layout, err := hapax.ParseLayout(cmp.Or(pool.Layout, hapax.LayoutLeaf))
		if err != nil {
			return ids, "", err
		}
		if pool.Workers == "" {
			return hapax.WorkerRange{Lo: 0, Hi: layout.Workers()}, "", nil
		}
		ids, err = service.ParseWorkers(pool.Workers)
		return ids, "", err
	}
	split, err := identity.ParseSplit(pool.Split)
	if err != nil {
		return ids, "", err
	}
	for _, p := range split {
		if _, fixed := pool.Parts[p.Name]; fixed {
			continue
		}
		if part != "" {
			return ids, "", mount.Invalid("redismongo.worker_pool", r.WorkerPool, fmt.Sprintf("a pool whose parts fix all of split %s but one, which the registry gives", pool.Split))
		}
		part, ids = p.Name, hapax.WorkerRange{Lo: p.Start, Hi: 1 << p.Bits}
	}
	if part == "" {
		return ids, "", mount.Invalid("redismongo.worker_pool", r.WorkerPool, "a pool whose parts leave one open, which the registry gives")
	}
	return ids, part, nil
}

// registerTimeout bounds what the registry may take.
const registerTimeout = 10 * time.Second

// register fixes the pool's worker ID to the one that the registry keeps for this node.
func (r *Settings) register(ctx context.Context, h *mount.Host) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	pool := h.Use[r.WorkerPool]
	ids, part, err := r.candidates(pool)
	if err != nil {
		return err
	}
	sticky := redismongo.Sticky{Dir: h.Data}
	if sticky.Instance, err = r.instance(); err != nil {
		return err
	}
	if strings.HasPrefix(r.WorkerRegistry, "zk://") {
		sticky.Registry = redismongo.ZooKeeperRegistry{URL: r.WorkerRegistry}
	} else {
		at := r.WorkerRegistry
		if at == "" {
			if at, err = r.redisURL(); err != nil {
				return err
			}
		}
		client, err := redisstore.NewClient(at, h.StoreTimeout)
		if err != nil {
			return err
		}
		defer client.Close()
		sticky.Registry = redismongo.RedisRegistry{Client: client, Key: r.WorkerKey, WithoutEval: r.WithoutEval}
	}
	id, err := sticky.Worker(ctx, ids)
	if err != nil {
		return err
	}
	text := strconv.FormatInt(id, 10)
	if part == "" {
		pool.Workers = text
	} else {
		// Into a new map: the one at hand is the configuration's own.
		parts := map[string]string{part: text}
		maps.Copy(parts, pool.Parts)
		pool.Parts = parts
	}
	h.Use[r.WorkerPool] = pool.Lending(hapax.WorkerRange{}, "the registry of workers")
	return nil
}
