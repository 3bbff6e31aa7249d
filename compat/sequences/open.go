package sequences

import (
	"context"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// Options tell how to read.
type Options struct {
	// Timeout bounds one answer; default 10 s.
	Timeout time.Duration

	// Collection is the MongoDB collection with the counters; default "counters".
	Collection string

	// AllocationSize is that of JPA's generators; default 50, which is JPA's.
	AllocationSize int64

	// Feeds are the columns, TABLE.COLUMN, that sequences and rows of generator tables feed
	// besides those that the database tells, by the name of the source.
	Feeds map[string][]string

	// Store is the ID of the hapax store that sources are shut for; default one that scripts
	// put the ID in the place of.
	Store string

	// Token is that of the tag, which is held until its source is shut. Who gives the source back
	// raises it.
	Token int64

	// Write lets sources be shut and opened; without it the databases are asked to refuse
	// every change.
	Write bool
}

const (
	defaultTimeout    = 10 * time.Second
	defaultCollection = "counters"
	defaultAllocation = 50
)

const urlForms = "postgres://, mysql://, redis:// or mongodb://, or env:NAME or file:PATH of one"

// Open connects to the database that a URL, or a reference to one, names.
func Open(ctx context.Context, text string, o Options) (Database, error) {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Collection == "" {
		o.Collection = defaultCollection
	}
	if o.AllocationSize == 0 {
		o.AllocationSize = defaultAllocation
	}
	if o.Store == "" {
		o.Store = storeLater
	}
	raw, err := Resolve(text)
	if err != nil {
		return nil, err
	}
	scheme, _, _ := strings.Cut(raw, "://")
	switch scheme {
	case "postgres", "postgresql":
		return openPostgres(ctx, raw, o)
	case "mysql", "mariadb":
		return openMySQL(ctx, "mysql"+strings.TrimPrefix(raw, scheme), o)
	case "redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix":
		return openRedis(ctx, raw, o)
	case "mongodb", "mongodb+srv":
		return openMongo(ctx, raw, o)
	}
	return nil, &hapax.ValueError{Field: "URL", Value: "(not shown)", Allowed: urlForms, Err: hapax.ErrInvalidArgument}
}
