package redismongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/strategy"
)

// importTimeout is how long one answer of either system may take.
const importTimeout = 10 * time.Second

// An importing is what hapax import redis-mongo is told.
type importing struct {
	mongo, collection, redis, hash string
	keep                           bool
}

// importCommand is hapax import redis-mongo.
func importCommand() *mount.Import {
	i := new(importing)
	return &mount.Import{
		Use:   "redis-mongo",
		Short: "Read the collection and the hashes of an issuer with Redis and MongoDB, and move its tags",
		Long: `Redis-mongo reads the collection of segments in MongoDB, with the documents {bizTag, max,
step, timestamp}, and the hashes of cursors in Redis, with the fields cur, max and step.
It prints the block of a server that goes on in their place, with MongoDB as its store.
That server refuses every tag until --apply has created it.
`,
		More: `
A row is a tag here: its documents and its hash, or either. The native tag begins above
all of them, and has the hash's step, or else the document's. It has the strategy
redis-mongo, so --apply needs --config with the block that was printed, or the --server
that runs with it. --native prints the same block.

What closes a tag for the old service are cur and max of its hash, which become the largest
number, and max of its document, which becomes a text. Both note the ID of the store, and
no other store can take the tag before --undo. With --keep-collection the documents
stay open, and a node of the old service that is started again would go on from them:
take its account in MongoDB away.
`,
		Example: `  hapax import redis-mongo --mongodb mongodb://10.0.0.3/shop --collection sequence --redis redis://10.0.0.4:6379/0 --hash 'seq:*' > hapax.yaml
  hapax import redis-mongo --mongodb mongodb://10.0.0.3/shop --collection sequence --redis redis://10.0.0.4:6379/0 --hash 'seq:*' --config hapax.yaml --apply`,
		FileOptional: true, PasswordEnv: PasswordEnv, Closes: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&i.mongo, "mongodb", "", "mongodb:// URL of the database with the collection; a password may be in $"+mongoPasswordEnv)
			flags.StringVar(&i.collection, "collection", "", "name of the collection")
			flags.StringVar(&i.redis, "redis", "", "redis:// URL of the Redis with the hashes; also redis+sentinel:// and redis+cluster://")
			flags.StringVar(&i.hash, "hash", "", "name of the hashes, with * for the tag, such as 'seq:*'")
			flags.BoolVar(&i.keep, "keep-collection", false, "have the server go on noting segments in the collection, for programs that watch it")
		},
		Read: i.read,
	}
}

// mongoPasswordEnv is the variable with the password of the server's store.
const mongoPasswordEnv = "HAPAX_STORE_PASSWORD" //nolint:gosec // its name

// read connects to both, and reads them.
func (i *importing) read(ctx context.Context, _ mount.Files, args []string) (mount.Imported, error) {
	if len(args) > 0 {
		return nil, mount.Errorf(nil, "hapax import redis-mongo reads no FILE: give --mongodb, --collection, --redis and --hash")
	}
	for _, f := range []struct{ flag, value, allowed string }{
		{"--mongodb", i.mongo, "the URL of the database with the collection, such as mongodb://10.0.0.3/shop"},
		{"--collection", i.collection, "the collection's name"},
		{"--redis", i.redis, "the URL of the Redis with the hashes, such as redis://10.0.0.4:6379/0"},
	} {
		if f.value == "" {
			return nil, &hapax.ValueError{Field: f.flag, Value: "", Allowed: f.allowed, Err: hapax.ErrInvalidArgument}
		}
	}
	if err := checkCollectionName(i.collection); err != nil {
		return nil, err
	}
	if strings.Count(i.hash, "*") != 1 {
		return nil, &hapax.ValueError{Field: "--hash", Value: i.hash, Allowed: "the name of a hash with * for the tag, such as 'seq:*'", Err: hapax.ErrInvalidArgument}
	}
	m := imported{importing: *i}
	m.importing.mongo, m.mongoPassword = splitPassword(i.mongo)
	m.importing.redis, m.redisPassword = splitPassword(i.redis)
	m.mongoPassword = cmp.Or(m.mongoPassword, os.Getenv(mongoPasswordEnv))
	m.redisPassword = cmp.Or(m.redisPassword, os.Getenv(PasswordEnv))
	err := m.with(func(s sources) (err error) {
		m.found, err = s.all(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// imported is what was found.
type imported struct {
	importing // without passwords

	mongoPassword, redisPassword string
	found                        map[string]*row

	store  string                // the ID of the native store, while tags are moved
	opened func(sources) sources // if set, comes between a command and both systems, in tests
}

// with connects to both systems.
func (m imported) with(do func(sources) error) error {
	db, err := mongostore.NewDatabase(joinPassword(m.mongo, m.mongoPassword), importTimeout)
	if err != nil {
		return fmt.Errorf("--mongodb: %w", err)
	}
	defer disconnect(db)
	rdb, err := redisstore.NewClient(joinPassword(m.redis, m.redisPassword), importTimeout)
	if err != nil {
		return fmt.Errorf("--redis: %w", err)
	}
	prefix, suffix, _ := strings.Cut(m.hash, "*")
	s := sources{db.Collection(m.collection), rdb, prefix, suffix}
	if m.opened != nil {
		s = m.opened(s)
	}
	err = do(s)
	return errors.Join(err, rdb.Close())
}

func disconnect(db *mongo.Database) { _ = db.Client().Disconnect(context.Background()) }

// Passwords implements mount.Movable: that of the account in Redis.
func (m imported) Passwords() string {
	if m.redisPassword == "" {
		return ""
	}
	return m.redisPassword + "\n"
}

// shownRows bounds how many tags the block of configuration tells of.
const shownRows = 50

// YAML implements mount.Imported.
func (m imported) YAML(passwordFile string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Found in the collection %s and the hashes %s:", comment(m.collection), comment(m.hash))
	for k, name := range slices.Sorted(maps.Keys(m.found)) {
		if k == shownRows {
			line("#   and %d more", len(m.found)-shownRows)
			break
		}
		line("#   %s: %s", comment(name), m.found[name])
	}
	line("# The server refuses each of them until hapax import redis-mongo --apply, once the old")
	line("# service has ended, has created it above all its numbers; new ones are created with")
	line("# hapax tags create, or listed under tags.")
	line("auto_create: false")
	line("store: %s", moves.Quote(m.mongo))
	if m.mongoPassword != "" {
		line("# The password is not shown: put it into a file that store_password_file names, or into\n# the variable %s.", mongoPasswordEnv)
	}
	line("compat:\n  redismongo:\n    redis: %s", moves.Quote(m.redis))
	switch {
	case passwordFile != "":
		line("    password_file: %s", moves.Quote(passwordFile))
	case m.redisPassword != "":
		line("    # The password is not shown: put it into a file that password_file names, or into the\n    # variable %s.", PasswordEnv)
	}
	if m.keep {
		line("    collection: %s", moves.Quote(m.collection))
	}
	return b.String()
}

// comment returns a text as it can stand in a comment.
func comment(s string) string { return strings.Trim(moves.Quote(s), `"`) }

// NativeYAML implements mount.Movable.
func (m imported) NativeYAML(context.Context) (string, error) { return m.YAML(""), nil }

// Move implements mount.Movable.
func (m imported) Move(ctx context.Context, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	if m.store, err = to.StoreID(ctx); err == nil {
		err = sameStore(o)
	}
	if err != nil {
		return all, err
	}
	err = m.with(func(s sources) error {
		if o.Undo {
			all.Tags, err = m.back(ctx, s, to, o)
		} else {
			all, err = m.over(ctx, s, to, o)
		}
		return err
	})
	if errors.Is(err, strategy.ErrUnknownStrategy) {
		err = mount.Errorf(err, "the store is opened without compat.redismongo: give --config with the block that this command prints, or the --server that runs with it")
	}
	return all, err
}

// sameStore refuses a configuration in which another store than the one with the tags grants
// the segments: what the tags' marks say is then not how far numbers were issued.
func sameStore(o mount.MoveOptions) error {
	if o.Settings == nil {
		return nil
	}
	settings, err := o.Settings(name)
	if s, ok := settings.(*Settings); err == nil && ok && s.Store != "" {
		err = mount.Invalid("redismongo.store", "(another store)", "none for a move: make that store the server's own, by store, and move the tags there")
	}
	return err
}

// over carries the tags over: it closes each for the old service, and then creates the
// native one above all that was ever taken.
func (m imported) over(ctx context.Context, s sources, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	if m.keep {
		all.Notes = append(all.Notes, "the documents stay open, for programs that watch them: an old node that is started again would go on from them, so take its account in MongoDB away")
	}
	rows := m.found
	if !o.IgnoreLiving {
		if rows, err = m.watch(ctx, s, o.Watch); err != nil {
			return all, err
		}
	}
	var defs []hapax.Tag
	var others []moves.Move
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		r := rows[name]
		def, err := r.definition(name, o.Margin)
		if err == nil {
			err = errors.Join(m.whose(name, r.stores, r.closed), sameStrategy(ctx, to, def))
		}
		if err == nil && m.shutAlready(r) {
			done, err := m.carried(ctx, to, name, r)
			if err != nil {
				return all, err
			}
			if done != nil {
				others = append(others, *done)
				continue
			}
		}
		switch {
		case err == nil:
			defs = append(defs, def)
		case moves.IsRefusal(err):
			others = append(others, moves.Move{Tag: hapax.Tag{Name: name}, Reason: err})
		default:
			return all, err
		}
	}
	progress, end := o.Bar("comparing")
	all.Tags, err = moves.Plan(ctx, to, defs, progress)
	end()
	for k := range all.Tags {
		all.Tags[k].Closes = m.closes()
	}
	if err == nil && o.Apply {
		progress, end := o.Bar("moving")
		err = moves.Apply(ctx, all.Tags, func(ctx context.Context, t *moves.Move) error { return m.carry(ctx, s, to, t, o.Margin) }, progress)
		end()
	}
	all.Tags = append(all.Tags, others...)
	return all, err
}

// shutAlready reports whether a store has taken a row, and the old service can take nothing from
// it any more.
func (m imported) shutAlready(r *row) bool {
	return len(r.stores) > 0 && !r.openHash && (!r.openDocument || m.keep)
}

// carried tells of a tag that was moved before; nil if a move was cut off before it created,
// or raised, the native tag.
func (m imported) carried(ctx context.Context, to moves.Target, name string, r *row) (*moves.Move, error) {
	have, err := to.Tag(ctx, name)
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	// The tombstone of a way back: a tag that was opened since begins by a margin above the next number.
	// Where documents are kept, its own segments may have raised them.
	case moves.IsHeld(have), have.Deleted && !m.keep && have.Mark <= r.top()+1, have.Mark <= r.top():
		return nil, nil
	}
	done, err := moves.PlanClosed(ctx, to, name, m.closes())
	return &done, err
}

// carryTries bounds how often a tag is closed that an old node opens again meanwhile.
const carryTries = 8

// carry closes a tag for the old service, and creates the native one above what the two
// sources have come to by then: an old node may have taken numbers since the plan.
//
// The tag is held first, and both sources note its token: an --undo raises that before it opens them, and
// opens none that notes a later one.
func (m imported) carry(ctx context.Context, s sources, to moves.Target, t *moves.Move, margin int64) error {
	r, err := s.row(ctx, t.Tag.Name)
	if err == nil {
		err = m.whose(t.Tag.Name, r.stores, r.closed)
	}
	token := int64(0)
	if err == nil {
		if token, err = moves.Hold(ctx, to, t.Tag); errors.Is(err, hapax.ErrTagExists) {
			var have hapax.Tag
			have, err = to.Tag(ctx, t.Tag.Name)
			token = have.Token
		}
	}
	if err == nil {
		r, err = s.row(ctx, t.Tag.Name)
	}
	for left := carryTries; ; left-- {
		if err == nil { // before anything is shut, and after it: another command may have been faster
			err = m.whose(t.Tag.Name, r.stores, r.closed)
		}
		switch {
		case err != nil:
			return err
		case m.shutAlready(r) && left < carryTries:
		case left == 0:
			return fmt.Errorf("%w: the hash of tag %q was opened again each time that it was closed: stop the old service first", hapax.ErrStoreUnsafe, t.Tag.Name)
		default:
			// An old node that finds its hash used up before the document is closed writes both anew.
			if err = m.shut(ctx, s, t.Tag.Name, token); err == nil {
				r, err = s.row(ctx, t.Tag.Name)
			}
			continue
		}
		break
	}
	def, err := r.definition(t.Tag.Name, margin)
	if err == nil {
		def, err = def.WithDefaults()
	}
	if err != nil {
		return fmt.Errorf("%w: it is closed already; correct it and repeat, or open it with --undo", err)
	}
	def.Mark = max(def.Mark, t.Tag.Mark)
	def.Start = def.Mark
	t.Tag, t.Closed = def, true
	return moves.Open(ctx, to, t, token)
}

// back gives the tags that are closed back to the old service.
func (m imported) back(ctx context.Context, s sources, to moves.Target, o mount.MoveOptions) ([]moves.Move, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(m.found)) {
		if r := m.found[name]; r.closed || len(r.stores) > 0 {
			names = append(names, name)
		}
	}
	all, err := moves.PlanReopen(ctx, to, names, m.closes())
	for k, t := range all {
		r := m.found[t.Tag.Name]
		// Without a tag the move was cut off before it made one: nothing was issued natively.
		if all[k].Reason = m.whose(t.Tag.Name, r.stores, r.closed); t.Before == 0 {
			all[k].After = r.top() + 1
		}
	}
	if err != nil || !o.Apply {
		return all, err
	}
	progress, end := o.Bar("opening")
	defer end()
	return all, moves.Apply(ctx, all, func(ctx context.Context, t *moves.Move) error {
		was, _, err := moves.Withdraw(ctx, to, t.Tag.Name)
		if err != nil && !errors.Is(err, hapax.ErrTagNotFound) {
			return err
		}
		// The old service may have issued above the tag's mark before it was shut, and after a way back
		// that was cut off.
		r, err := s.row(ctx, t.Tag.Name)
		if err != nil {
			return err
		}
		// A mark is the next number, and cur the last that was taken.
		top := max(was.Mark-1, r.top())
		if top >= hapax.MaxMark {
			return tooHigh(top)
		}
		t.Before, t.After, t.Closed = was.Mark, top, false
		// Without a tag no command of this build is at work, and one that begins holds it first.
		return m.reopen(ctx, s, t.Tag.Name, max(was.Token, 1), top)
	}, progress)
}

// sameStrategy refuses a native tag that is there and is not counted by Redis, and one that
// would not be created: nothing is to be closed for it.
func sameStrategy(ctx context.Context, to moves.Target, def hapax.Tag) error {
	have, err := to.Tag(ctx, def.Name)
	is := define.Shown(have)
	switch {
	case err == nil && is.Strategy != strategyName:
		return fmt.Errorf("%w: the native tag %q has strategy %s, and %s is wanted: move to a store without it", hapax.ErrKindMismatch, def.Name, cmp.Or(is.Strategy, string(is.Kind)), strategyName)
	case err == nil && !have.Deleted:
		return nil
	case err != nil && !errors.Is(err, hapax.ErrTagNotFound):
		return err
	}
	// A server is asked when the first tag is created.
	service, ok := to.(interface {
		WouldCreate(ctx context.Context, tag hapax.Tag) (hapax.Tag, *hapax.Tag, error)
	})
	if !ok {
		return nil
	}
	// As moves.Create makes it: a tombstone that an earlier move left is opened by a move alone.
	if def.Extra, err = define.WithSource(def.Extra); err != nil {
		return err
	}
	if _, _, err = service.WouldCreate(ctx, def); errors.Is(err, hapax.ErrTagExists) { // since it was looked at
		err = nil
	}
	return err
}

// watch looks at both systems for a while, and fails if they are used meanwhile.
func (m imported) watch(ctx context.Context, s sources, long time.Duration) (map[string]*row, error) {
	before, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(long):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	rows, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	var signs []string
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		was, is := before[name], rows[name]
		// A tag that came meanwhile was made by a service that runs.
		if was == nil || was.used != is.used {
			signs = append(signs, fmt.Sprintf("tag %s goes on: %s", name, is))
		}
	}
	return rows, moves.Alive(signs)
}
