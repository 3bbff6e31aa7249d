package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	// maxNext is how many numbers one command may ask for.
	maxNext = 1_000_000

	// serverEnv names the server to talk to, as --server does, and dataEnv the data
	// directory, as --data does.
	serverEnv = "HAPAX_SERVER"
	dataEnv   = "HAPAX_DATA"
	httpEnv   = "HAPAX_HTTP" // the server's setting, by which commands find it, too

	callTimeout  = 20 * time.Second       // for everything that a command asks of a target
	maxWait      = 10 * time.Second       // for a store that is away or being healed, or a free worker ID
	lockedFor    = 5 * time.Second        // how long to wait for a data directory that is in use
	lockedRetry  = 50 * time.Millisecond  // how often to look whether it still is
	probeTimeout = 500 * time.Millisecond // for a server to take a connection
)

// quiet keeps the server's parts from logging: a command tells what went wrong
// by its error.
var quiet = slog.New(slog.DiscardHandler)

// A target is where a command finds numbers and tags: a server or a store.
type target interface {
	// Next issues n numbers of a tag and no more.
	Next(ctx context.Context, tag string, n int) ([]hapax.ID, error)

	// Codes issues n numbers with their texts, in parts of one period each, and ParseCode takes a
	// text apart.
	Codes(ctx context.Context, tag string, n int) ([]service.Issued, error)
	ParseCode(ctx context.Context, tag, code string) (service.ParsedCode, error)

	driver.TagStore
	StoreID(ctx context.Context) (string, error)
	CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error)
	Usage(ctx context.Context, tag string) ([]client.Usage, error)
	Pools(ctx context.Context) ([]driver.Pool, error)
	CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error)
	DeletePool(ctx context.Context, pool string) (driver.Pool, error)
	PoolStatuses(ctx context.Context) ([]api.PoolStatus, error)
	WorkerStatuses(ctx context.Context, pool string) ([]api.WorkerStatus, error)
	WorkerStatus(ctx context.Context, pool string, id int64) (api.WorkerStatus, error)
	RetireWorker(ctx context.Context, pool string, id int64) (driver.Worker, error)

	// explain adds to an error what the user can do about it.
	explain(err error) error
	Close(ctx context.Context) error
}

// targetFlags tell which target a command works on.
type targetFlags struct {
	settings    *settingFlags
	server      string
	credentials *credentials
}

const targetHelp = `
Without --server, --store or --data it works on the data directory ./hapax-data,
through the server that runs there if one does; where there is no such directory,
on the server at 127.0.0.1:8080, or, if none answers, on the shared store that the
configuration names.`

const serverHelp = `

Without --server it asks the server that runs in the data directory, ./hapax-data, or,
if none runs there, the server at 127.0.0.1:8080.`

// server returns the URL of the server that is meant, and whether it was named: given
// is what the flag says. Without one it is the server in the data directory.
func (s *settingFlags) server(ctx context.Context, given string) (address string, named bool, err error) {
	_, data := s.given["data"]
	switch {
	case given != "" && data:
		return "", false, usagef("--server and --data exclude each other")
	case given != "":
		return given, true, nil
	case !data && os.Getenv(serverEnv) != "":
		return os.Getenv(serverEnv), true, nil
	}
	config, err := s.load()
	if err != nil {
		return "", false, err
	}
	address, trusted := server.Announced(config.Data)
	switch {
	case address != "" && answers(ctx, address):
		return address, trusted, nil
	case data:
		return "", false, fmt.Errorf("no server answers in the data directory %s; start one with hapax serve, or give --server", config.Data)
	}
	return config.URL(), s.hasConfig() || os.Getenv(httpEnv) != "", nil
}

func addTarget(cmd *cobra.Command) *targetFlags {
	f := &targetFlags{settings: addSettings(cmd, "data", "store")}
	cmd.Flags().StringVar(&f.server, "server", "", "URL of the server to ask (or $"+serverEnv+")")
	f.credentials = addCredentials(cmd.Flags())
	return f
}

// A use is what a command does to a target, where that is a store.
type use struct {
	waits bool                                         // it changes something: not before the node is granted numbers
	makes func(config server.Config, strict bool) bool // whether the store is made where there is none; nil: it is not
}

var (
	reads   = use{}
	changes = use{waits: true}
	creates = use{waits: true, makes: func(server.Config, bool) bool { return true }}
)

// issues is the use of a command that takes numbers of a tag, which may be its first use.
func issues(tag string) use {
	return use{waits: true, makes: func(config server.Config, strict bool) bool {
		_, declared := config.Tags[tag]
		return declared || config.AutoCreate && !strict
	}}
}

// with opens the target, calls f, and closes it.
func (f *targetFlags) with(cmd *cobra.Command, u use, do func(context.Context, target) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
	defer cancel()
	t, err := f.open(ctx, u)
	if err != nil {
		return err
	}
	return errors.Join(t.explain(do(ctx, t)), t.Close(ctx))
}

func (f *targetFlags) open(ctx context.Context, u use) (target, error) {
	_, store := f.settings.given["store"]
	_, data := f.settings.given["data"]
	address := f.server
	switch {
	case address != "" && store:
		return nil, usagef("--server and --store exclude each other")
	case address != "" && data:
		return nil, usagef("--server and --data exclude each other")
	case address == "" && !store && !data:
		address = os.Getenv(serverEnv)
	}
	if address != "" {
		return f.remote(ctx, address, true)
	}
	config, err := f.settings.load()
	if err != nil {
		return nil, err
	}
	if store && !data {
		return f.openStore(ctx, u, config)
	}
	if !data && os.Getenv(dataEnv) == "" && !exists(config.Data) { // one that was named may be made
		address := config.URL()
		switch {
		case answers(ctx, address):
		case config.Shared(): // as before the first start of its servers
			return f.openStore(ctx, u, config)
		default:
			return nil, fmt.Errorf("no server answers on %s, and there is no data directory %s; start one with hapax serve, or give --server, --store or --data", address, config.Data)
		}
		return f.remote(ctx, address, f.settings.hasConfig() || os.Getenv(httpEnv) != "")
	}
	return f.openData(ctx, u, config)
}

// openStore opens the store alone.
func (f *targetFlags) openStore(ctx context.Context, u use, config server.Config) (target, error) {
	strict := !f.settings.hasConfig()
	node, err := server.OpenStore(ctx, config, u.makes != nil && u.makes(config, strict), quiet)
	if err != nil {
		return nil, err
	}
	t, err := newLocal(ctx, node, config)
	if err != nil {
		return nil, err
	}
	t.strict = strict
	return t, nil
}

// openEmpty opens a store that ends with its Close in place of one that is not made yet. It is a file, since a
// configuration can ask for a store that outlives its server.
func (f *targetFlags) openEmpty(ctx context.Context) (target, error) {
	config, err := f.settings.load()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hapax-dry-run-")
	if err != nil {
		return nil, err
	}
	config.Store = "bolt:" + filepath.Join(dir, "hapax.db")
	t, err := f.openStore(ctx, creates, config)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return passing{t, dir}, nil
}

// A passing target is removed when it is closed.
type passing struct {
	target
	dir string
}

func (p passing) Close(ctx context.Context) error {
	return errors.Join(p.target.Close(ctx), os.RemoveAll(p.dir))
}

// remote returns a server as a target.
func (f *targetFlags) remote(ctx context.Context, address string, named bool) (target, error) {
	r, err := dial(ctx, address, f.credentials, named)
	if err != nil {
		return nil, err
	}
	return remoteTarget{r}, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// openData opens a data directory, or turns to the server that has it open. One
// that another command has open is waited for.
func (f *targetFlags) openData(ctx context.Context, u use, config server.Config) (target, error) {
	strict := !f.settings.hasConfig() && server.DefinesTags(config.Data)
	open := server.OpenExisting
	if u.makes != nil && u.makes(config, strict) {
		open = server.OpenNode
	}
	over := time.After(lockedFor)
	for {
		node, err := open(ctx, config, quiet)
		if err == nil {
			t, err := newLocal(ctx, node, config)
			if err != nil {
				return nil, err
			}
			t.strict = strict
			if u.waits {
				t.awaitReady(ctx)
			}
			return t, nil
		}
		if !errors.Is(err, hapax.ErrStoreLocked) {
			return nil, err
		}
		// A server that holds the lock answers in its place; another command ends soon, and is waited for.
		if address, trusted := server.Announced(config.Data); address != "" && answers(ctx, address) {
			return f.remote(ctx, address, trusted)
		}
		select {
		case <-over:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockedRetry):
		}
	}
}

// answers reports whether something takes connections at the URL.
func answers(ctx context.Context, address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	dialer := net.Dialer{Timeout: probeTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// local is a store that is open in this process. The service over it records
// what is taken with the witness, and seals what was acquired.
type local struct {
	*service.Service
	node   *server.Node
	config server.Config
	strict bool // no configuration was given, and what the servers of this store define is not known
}

func newLocal(ctx context.Context, node *server.Node, config server.Config) (*local, error) {
	strategies, err := config.Strategies(quiet, &server.LateStore{Store: node.Store})
	if err == nil {
		err = node.OpenHistory(strategies)
	}
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	svc, err := service.New(ctx, node.Store, service.Options{
		Tags: config.Tags, Pools: config.Pools, NoAutoCreate: !config.AutoCreate, MaxTags: config.MaxTags,
		OneShot: true, Floors: server.Columns, MaxCount: maxNext, MaxWait: maxWait, StoreTimeout: config.StoreTimeout,
		Holder: node.Instance, Ledger: node.Ledger, Logger: quiet, CodeKeys: config.CodeKeyBytes(), Strategies: strategies,
	})
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return &local{Service: svc, node: node, config: config}, nil
}

// Next takes exactly n numbers of a segment tag from the store, so that none is
// lost with this process. A snowflake tag's worker is acquired, used and sealed.
func (l *local) Next(ctx context.Context, tag string, n int) ([]hapax.ID, error) {
	ids, _, err := l.take(ctx, tag, n)
	return ids, err
}

// awaitReady waits until numbers are granted to the node, where that takes nobody else: joining and
// healing may outlast a call, and no call is made twice. The call tells what is wrong if they do not end.
func (l *local) awaitReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	l.node.AwaitReady(ctx)
}

// take is Next, and returns the line that the numbers are of.
func (l *local) take(ctx context.Context, tag string, n int) (taken []hapax.ID, line string, err error) {
	snowflake, err := l.isSnowflake(ctx, tag)
	if err != nil {
		return nil, tag, err
	}
	ids := make([]hapax.ID, n)
	if snowflake {
		n, err := l.NextN(ctx, tag, ids)
		return ids[:n], tag, err
	}
	line, err = l.Line(ctx, tag)
	if errors.Is(err, hapax.ErrTagNotFound) { // its first use
		// Another process may make it at the same time.
		if _, err = l.CreateTag(ctx, hapax.Tag{Name: tag}, hapax.CreateFirstUse); err == nil || errors.Is(err, hapax.ErrTagExists) {
			line, err = l.Line(ctx, tag)
		}
	}
	if err != nil {
		return nil, tag, err
	}
	err = l.fill(ctx, line, ids)
	if err != nil {
		return nil, line, err
	}
	return ids, line, nil
}

// fill takes as many numbers of a segment tag as there is room for.
func (l *local) fill(ctx context.Context, tag string, ids []hapax.ID) error {
	a, err := l.Allocate(ctx, tag, int64(len(ids)), "")
	if err != nil {
		return err
	}
	// A grant may begin between two numbers of the tag.
	first := a.Grant.Lo + (a.Tag.Remainder-a.Grant.Lo%a.Tag.Delta+a.Tag.Delta)%a.Tag.Delta
	for i := range ids {
		ids[i] = hapax.ID(first + int64(i)*a.Tag.Delta)
	}
	return nil
}

// isSnowflake tells what kind a tag is or, at its first use, will be.
func (l *local) isSnowflake(ctx context.Context, name string) (bool, error) {
	tag, err := l.Tag(ctx, name)
	if errors.Is(err, hapax.ErrTagNotFound) && l.strict {
		return false, fmt.Errorf("%w: %q; the servers of this store may define it: give their configuration with --config or $%s, or create the tag with hapax tags create",
			hapax.ErrTagNotFound, name, configEnv)
	}
	if err == nil && tag.Kind == hapax.KindSnowflake && !tag.Deleted && l.strict {
		err = l.isFrozen(ctx, tag.Pool)
	}
	if errors.Is(err, hapax.ErrTagNotFound) {
		def, declared := l.config.Tags[name]
		return def.Kind == hapax.KindSnowflake || !declared && name == service.SnowflakeTag, nil
	}
	return tag.Kind == hapax.KindSnowflake, err
}

// isFrozen refuses a pool that the first number would freeze, perhaps otherwise
// than the servers of the store have it configured.
func (l *local) isFrozen(ctx context.Context, pool string) error {
	pools, err := l.Pools(ctx)
	if err != nil || slices.ContainsFunc(pools, func(p driver.Pool) bool { return p.Name == pool }) {
		return err
	}
	return &hapax.ValueError{
		Field: "pool", Value: pool, Err: hapax.ErrInvalidArgument,
		Allowed: "a pool that the store knows: the first number freezes its layout, so give the configuration of the servers of this store with --config or $" + configEnv,
	}
}

// explain adds what is to be done about the node's relation to its store, where that is why.
func (l *local) explain(err error) error {
	if l.node.Guard == nil || !errors.Is(err, hapax.ErrFenced) && !errors.Is(err, hapax.ErrStoreUnavailable) {
		return err
	}
	if st := l.node.Guard.Status(); !st.Ready() && st.Command != "" {
		err = commandError{err, st.Command}
	}
	return err
}

// A commandError says what is to be done, in place of where else that is told.
type commandError struct {
	error
	command string
}

func (e commandError) Error() string {
	return strings.ReplaceAll(e.error.Error(), "; see hapax status", "") + "; to do: " + e.command
}

func (e commandError) Unwrap() error { return e.error }

// Usage implements target: what plugins have counted is known to servers.
func (l *local) Usage(context.Context, string) ([]client.Usage, error) { return nil, nil }

func (l *local) Close(ctx context.Context) error {
	// The service first: it seals through the store that the node closes.
	return errors.Join(l.Service.Close(ctx), l.node.Close())
}
