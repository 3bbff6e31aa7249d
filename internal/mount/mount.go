// Package mount is how a server stands in for foreign systems without knowing any of
// them: what a system tells of itself, what it gets from the server, and what several
// systems need.
//
// A system is a directory internal/mount/NAME, with a System that describes it, and one
// line in the list of internal/server. In a server that starts it goes through:
//
//	New     its settings are decoded from compat.NAME
//	Mount   they are judged, without connecting to anything; pools and strategies are named
//	Doors   the server listens at its addresses
//	Open    it connects, and brings services over its tables and trees
//	Answer  the server's own service is there: what answers at the doors is made
//
// A server that stops closes the doors, then its own service, then the services that the
// mounts brought, and at last what they asked to have closed.
package mount

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// A System is a foreign system that a server can stand in for.
type System struct {
	Name string   // its key under compat
	Doc  string   // one sentence or more, without the period at the end
	Keys []Key    // of its settings
	Env  []string // variables that it reads

	// Import, if set, returns the command that reads the system's settings.
	Import func() *Import

	// Commands, if set, returns the commands below hapax NAME, which Maintains describes.
	Commands  func() []*Command
	Maintains string

	// Ignored are keys that are accepted and have no effect; the server names them when it
	// starts, and keeps nothing of them.
	Ignored []Key

	// New returns settings with nothing set: a pointer to a struct with the keys as its
	// yaml tags. A field that may hold a URL with a password has the tag url:"true".
	New func() Settings
}

// A Key describes one key of a definition in the configuration.
type Key struct {
	Name    string
	Type    string
	Default string
	Doc     string
}

// NewKey returns a Key.
func NewKey(name, kind, standard, doc string) Key { return Key{name, kind, standard, doc} }

// Settings are a system's settings in the configuration.
type Settings interface {
	// Doors returns the doors of its clients.
	Doors() []Door

	// Mount judges the settings without connecting to anything, and puts into the plan
	// what they define.
	Mount(p *Plan) (Mount, error)
}

// A Mount is a system in a server that starts.
type Mount interface {
	// Open connects to the system's parts. A part that does not answer yet is waited
	// for in the background.
	Open(ctx context.Context, h *Host) error

	// Answer returns the answers for the doors, in their order, once the server's own
	// service is there. Unused doors may be left out at the end.
	Answer(own *service.Service) ([]Answer, error)
}

// A Plan holds the server's configuration for mounts, and what mounts define.
type Plan struct {
	Data   string                        // the data directory
	Store  string                        // URL of the server's own store
	Tokens bool                          // clients of the main listener must show tokens
	Tags   map[string]service.TagConfig  // of the configuration
	Pools  map[string]service.PoolConfig // of the configuration

	Stores Stores

	Defined    map[string]service.PoolConfig // pools of mounts, each with a snowflake tag of its name
	Strategies map[string]strategy.Strategy  // of mounts
}

// Stores know the URLs of stores.
type Stores struct {
	Check    func(storeURL string) error  // judges one without connecting to it
	Volatile func(storeURL string) bool   // reports whether it forgets everything when the server stops
	File     func(storeURL string) string // the file of an embedded store; empty for others
}

// Define adds a pool of a system, and the snowflake tag that stands for it.
func (p *Plan) Define(system, name string, pool service.PoolConfig) error {
	_, tag := p.Tags[name]
	_, taken := p.Pools[name]
	if tag || taken {
		return Errorf(nil, "compat.%s makes the tag and the pool %q itself; take them out of tags and pools", system, name)
	}
	p.Defined[name] = pool
	return nil
}

// A Door is where clients of a system come in: at an address of its own, or, for HTTP,
// at the main listener. They show no credentials of hapax.
type Door struct {
	Name    string // in metrics and messages
	Setting string // of the address, such as compat.leaf.http
	Address string // empty: the main listener, or none
	Example string
	Allow   []string // networks whose clients are let in, beside those of this machine; none: all
	Open    bool     // it may be an address that others reach
	Places  int      // how many connections, if that is less than other listeners have
}

// An Answer answers at a door.
type Answer struct {
	// Handler answers HTTP. Without an address of its own it is at the patterns, of
	// http.ServeMux, of the main listener.
	Handler  http.Handler
	Patterns []string

	// Routes are the paths by which metrics tell the requests to Handler apart; one that
	// ends in a slash stands for all that begin with it.
	Routes []string

	// Tokens tells that every request shows a token: Handler vouches for the connection
	// (auth.Conn) of one that is good. Otherwise a whole request is enough.
	Tokens bool

	// Issuing, if there are any, are the services that issue there: /healthz and /readyz
	// at an address of its own tell of them.
	Issuing []*service.Service

	// Modes, if there are any, are the services behind modes of the system, by name.
	// /readyz tells of each, and /readyz?mode=NAME of that one alone.
	Modes map[string]*service.Service

	// Serve answers another protocol until Stop. Stop lets what was asked be answered
	// until the context ends, and waits for Serve.
	Serve func(l net.Listener) error
	Stop  func(drain context.Context) error
}

// Secret is implemented by settings with passwords beside them.
type Secret interface {
	// ReadSecrets reads what is in files, or in variables; env is as os.LookupEnv.
	ReadSecrets(env func(string) (string, bool)) error
}

// An Owner is implemented by settings of systems with tables of their own, of which the
// witness of a node can refuse rows.
type Owner interface {
	// HasTable reports whether the settings name tables.
	HasTable() bool

	// OpenTable opens them.
	OpenTable(ctx context.Context, o TableOptions) (Table, error)
}

// TableOptions are the options for opening the tables of a foreign system.
type TableOptions struct {
	Timeout time.Duration // of one answer
	Witness *witness.Witness
	Warn    func(code, message string)
}

// A Table grants segments of a foreign system's rows.
type Table interface {
	hapax.SegmentStore
	Tag(ctx context.Context, name string) (hapax.Tag, error)
	Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error)
	Ping(ctx context.Context) error

	// Refused returns why rows are refused until an operator has decided.
	Refused() map[string]error

	// Adopt raises the row with the key, or every row if that is empty, above what the
	// witness knows, and by the margin for the numbers that the foreign system's own nodes have issued,
	// and has it used again. Where nothing is refused or behind it does nothing.
	Adopt(ctx context.Context, key string, margin int64, dryRun bool) (driver.Foreign, error)
	Close() error
}
