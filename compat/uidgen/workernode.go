package uidgen

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
)

// The types of a row of WORKER_NODE.
const (
	typeContainer = 1
	typeHost      = 2
)

const maxColumn = 64 // bytes of HOST_NAME and PORT

// Table is uid-generator's table of worker IDs, on MySQL or MariaDB, as it is:
//
//	WORKER_NODE (ID bigint auto_increment primary key, HOST_NAME varchar(64),
//	             PORT varchar(64), TYPE int, LAUNCH_DATE date,
//	             MODIFIED timestamp, CREATED timestamp)
//
// Every start inserts a row and has its key for a worker ID, which no other start ever
// has. Nothing is given back: when the keys reach the layout's largest worker ID, the
// table is used up.
//
// The promise holds as long as the database never hands out a key again. One that was
// restored from a backup does, and so does MySQL before 8.0 that is restarted after the
// latest rows were removed. Witness notices that on a host that has started since.
type Table struct {
	DB *sql.DB

	// Address stands in HOST_NAME unless the environment says that this is a
	// container; default this host's first IPv4 address that is not a loopback one.
	Address string

	// Witness, if set, is a file of this instance's own that keeps the last key. A
	// table that hands out this key or a lower one is refused.
	Witness string

	// Getenv reads the environment; default os.Getenv. JPAAS_HOST with JPAAS_HTTP_PORT,
	// or else JPAAS_HOST_PORT_8080, tell that this is a container.
	Getenv func(string) string
}

// Worker inserts a row and returns its key, a worker ID that the layout can hold. It
// fixes the worker ID of an issuer over another store:
//
//	opts.Workers = hapax.WorkerRange{Lo: id, Hi: id + 1}
//
// After an error a row may have been inserted; its key is not used. Errors match
// hapax.ErrStoreUnavailable; hapax.ErrFieldRange when the keys are above the layout's
// largest worker ID; hapax.ErrStoreRolledBack when the witness knows a key as high;
// hapax.ErrStoreCorrupt when the database returned no key.
func (t Table) Worker(ctx context.Context, l hapax.Layout) (int64, error) {
	if t.DB == nil || l.IsZero() {
		return 0, invalid("table", "none", "a database and a layout")
	}
	host, port, kind, err := t.node()
	if err != nil {
		return 0, err
	}
	// Before the insertion: a witness that cannot be read would waste a row.
	seen, err := t.witnessed()
	if err != nil {
		return 0, err
	}
	result, err := t.DB.ExecContext(ctx,
		"INSERT INTO WORKER_NODE (HOST_NAME, PORT, TYPE, LAUNCH_DATE, MODIFIED, CREATED) VALUES (?, ?, ?, CURRENT_DATE, NOW(), NOW())", host, port, kind)
	var key int64
	if err == nil {
		key, err = result.LastInsertId()
	}
	switch most := l.Workers() - 1; {
	case err != nil:
		return 0, fmt.Errorf("%w: WORKER_NODE: %w", hapax.ErrStoreUnavailable, err)
	case key <= 0:
		return 0, fmt.Errorf("%w: WORKER_NODE: the database returned the key %d; its column ID must be AUTO_INCREMENT", hapax.ErrStoreCorrupt, key)
	case key > most:
		return 0, &hapax.ValueError{
			Field: "WORKER_NODE.ID", Value: key, Err: hapax.ErrFieldRange,
			Allowed: fmt.Sprintf("1 to %d: the %d starts that the layout has worker IDs for are used up; go on with a store that recycles worker IDs, or with another layout (see hapax import uid-generator)", most, most),
		}
	case key <= seen:
		return 0, fmt.Errorf("%w: WORKER_NODE gave out the key %d, and %s knows that %d was given out: raise the table's AUTO_INCREMENT above every key that was ever used", hapax.ErrStoreRolledBack, key, t.Witness, seen)
	}
	return key, t.witness(key)
}

// node returns the columns that tell where this process runs.
func (t Table) node() (host, port string, kind int, err error) {
	getenv := t.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	host, port = getenv("JPAAS_HOST"), getenv("JPAAS_HTTP_PORT")
	if port == "" {
		port = getenv("JPAAS_HOST_PORT_8080")
	}
	if (host == "") != (port == "") {
		return "", "", 0, invalid("JPAAS_HOST and JPAAS_HTTP_PORT or JPAAS_HOST_PORT_8080", host+":"+port, "both in a container, and neither elsewhere")
	}
	kind = typeContainer
	if host == "" {
		kind = typeHost
		// As uid-generator marks a host that is no container: milliseconds and a random number.
		port = fmt.Sprintf("%d-%d", time.Now().UnixMilli(), rand.N(100_000))
		if host = t.Address; host == "" {
			host, err = ownAddress()
		}
	}
	if len(host) > maxColumn || len(port) > maxColumn {
		err = invalid("host and port", fmt.Sprintf("%.70s:%.70s", host, port), fmt.Sprintf("up to %d bytes each", maxColumn))
	}
	return host, port, kind, err
}

// ownAddress returns an address to be recognised by. It is for people alone.
func ownAddress() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr().String(), nil
		}
	}
	name, err := os.Hostname()
	return name[:min(len(name), maxColumn)], err
}

// witnessed returns the last key that the witness knows; 0 for none.
func (t Table) witnessed() (int64, error) {
	if t.Witness == "" {
		return 0, nil
	}
	text, err := os.ReadFile(t.Witness)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	key, err := strconv.ParseInt(strings.TrimSuffix(string(text), "\n"), 10, 64)
	if err != nil || key < 1 {
		return 0, fmt.Errorf("%w: the witness %s holds %.40q; want the last key of WORKER_NODE that was used here", hapax.ErrStoreCorrupt, t.Witness, text)
	}
	return key, nil
}

func (t Table) witness(key int64) error {
	if t.Witness == "" {
		return nil
	}
	return durable.Replace(durable.OS, t.Witness, func(*os.File) ([]byte, error) {
		return fmt.Appendf(nil, "%d\n", key), nil
	})
}

// Workers returns the table as a store of worker IDs. An issuer over it inserts a row
// when it starts, and another if it has to take a new worker ID, such as after the
// machine was suspended. As no other start has the key, the time of a worker ID is
// granted without asking anybody again.
func (t Table) Workers() hapax.WorkerStore { return tableWorkers{t} }

type tableWorkers struct{ table Table }

// AcquireWorker implements hapax.WorkerStore.
func (w tableWorkers) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	from, err := req.Layout.TickOf(req.Term.Now) // an error uses up no row
	if err != nil {
		return hapax.Lease{}, err
	}
	id, err := w.table.Worker(ctx, req.Layout)
	if err != nil {
		return hapax.Lease{}, err
	}
	if !req.Workers.Contains(id) || len(req.Among) > 0 {
		return hapax.Lease{}, invalid("workers", fmt.Sprintf("%d to %d", req.Workers.Lo, req.Workers.Hi-1), fmt.Sprintf("all of them: WORKER_NODE chose %d", id))
	}
	return w.ExtendWorker(ctx, hapax.Lease{
		Pool: req.Pool, Worker: id, Token: 1, Holder: req.Holder, From: from, Grant: hapax.Grant{Lo: from, Hi: from},
	}, req.Layout, req.Term)
}

// ExtendWorker implements hapax.WorkerStore.
func (tableWorkers) ExtendWorker(_ context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	lo, end := lease.Grant.Hi, layout.EndTick()
	if lo >= end {
		return lease, hapax.ErrTimeExhausted
	}
	to, err := layout.TickOf(term.Now.Add(term.Length))
	if err != nil {
		to = end
	}
	lease.Grant = hapax.Grant{Lo: lo, Hi: min(max(to, lo+1), end)}
	lease.Expires = term.Now.Add(term.TTL).Truncate(time.Millisecond)
	return lease, nil
}

// SealWorker implements hapax.WorkerStore. Nobody else will have the worker ID.
func (tableWorkers) SealWorker(context.Context, hapax.Lease, int64) error { return nil }
