package tinyid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Config is what TinyID's properties say, in hapax's terms: of the server the
// databases, of the client the servers.
type Config struct {
	Databases []string // mysql://user@host:port/database
	Passwords []Secret // of their accounts
	Servers   []string // tinyid.server, of a client
	Token     Secret   // tinyid.token, of a client
}

// A Secret is a text that formatting hides.
type Secret = moves.Secret

// URLs returns the databases' URLs with the passwords.
func (c Config) URLs() []string {
	var all []string
	for i, at := range c.Databases {
		all = append(all, moves.JoinPassword(at, c.Passwords[i]))
	}
	return all
}

// AddDatabase adds a database by a URL that may hold the password.
func (c *Config) AddDatabase(rawURL string) error {
	at, password, err := moves.SplitPassword("database", rawURL)
	c.Databases, c.Passwords = append(c.Databases, at), append(c.Passwords, password)
	return err
}

// PasswordLines returns the text of a file for password_file: a line for each
// database. It is empty where none has a password.
func (c Config) PasswordLines() string {
	lines, found := "", false
	for _, p := range c.Passwords {
		found = found || p != ""
		lines += string(p) + "\n"
	}
	if !found {
		return ""
	}
	return lines
}

// ReadProperties reads application.properties of the server or
// tinyid_client.properties.
func ReadProperties(r io.Reader) (Config, error) {
	p, err := moves.Properties(r)
	if err != nil {
		return Config{}, err
	}
	c := Config{Servers: list(p["tinyid.server"]), Token: Secret(p["tinyid.token"])}
	const names = "datasource.tinyid.names"
	for _, name := range list(p[names]) {
		at := "datasource.tinyid." + name
		url, err := moves.DatabaseURL(at+".url", p[at+".url"], p[at+".username"])
		if err != nil {
			return c, err
		}
		c.Databases, c.Passwords = append(c.Databases, url), append(c.Passwords, Secret(p[at+".password"]))
	}
	if len(c.Databases) == 0 && len(c.Servers) == 0 {
		return c, &hapax.ValueError{Field: names, Value: p[names], Allowed: "the databases' names, such as primary,secondary, or tinyid.server in a client's file", Err: hapax.ErrInvalidArgument}
	}
	return c, nil
}

func list(s string) []string {
	var all []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// YAML returns the block of hapax's configuration that does the same, without the
// passwords: it names the file that holds them, or tells where to put them if that is
// empty.
func (c Config) YAML(passwordFile string) string {
	var b strings.Builder
	b.WriteString("compat:\n  tinyid:\n    databases:\n")
	for _, url := range c.Databases {
		fmt.Fprintf(&b, "      - %s\n", moves.Quote(url))
	}
	switch {
	case passwordFile != "":
		fmt.Fprintf(&b, "    password_file: %s\n", moves.Quote(passwordFile))
	case c.PasswordLines() != "":
		b.WriteString("    # The passwords are not shown: put them into a file that password_file names, a line\n    # for each database; or one for all into the variable HAPAX_TINYID_PASSWORD.\n")
	}
	b.WriteString("    http: 127.0.0.1:9999\n")
	return b.String()
}

// NativeYAML returns the block that serves the same routes from native tags, with the
// hashes of the tokens in tiny_id_token.
func NativeYAML(ctx context.Context, s *Store) (string, error) {
	hashes, err := s.tokenHashes(ctx)
	if err != nil {
		return "", err
	}
	if len(hashes) == 0 {
		return "", fmt.Errorf("%w: tiny_id_token has no tokens: nobody could call", hapax.ErrInvalidArgument)
	}
	var b strings.Builder
	b.WriteString("compat:\n  tinyid:\n    http: 127.0.0.1:9999\n    tokens:\n")
	for _, bizType := range slices.Sorted(maps.Keys(hashes)) {
		fmt.Fprintf(&b, "      %s:\n", moves.Quote(bizType))
		for _, h := range slices.Sorted(maps.Keys(hashes[bizType])) {
			fmt.Fprintf(&b, "        - %q\n", h)
		}
	}
	return b.String(), nil
}

// A Move is what is to be done for one biz_type on its way to a native tag.
type Move = moves.Move

// MoveOptions tune PlanMoves.
type MoveOptions struct {
	// Margin is how far above a row's max_id the native mark is set; default ten
	// of the row's steps. TinyID and its clients issue up to max_id only, so that
	// any margin will do once all servers have ended.
	Margin int64

	// Watch is how long the tables are watched for servers that are alive; default
	// 10 s.
	Watch time.Duration

	// IgnoreLiving plans although servers are alive.
	IgnoreLiving bool

	// Progress, if set, is called as the rows are compared with the native tags.
	Progress func(done, total int)
}

// PlanMoves tells for each biz_type which mark its native tag has and will have,
// and writes nothing. Every database must answer. It fails with ErrStoreUnsafe
// while it sees servers that are alive: rows that move, and sessions of other
// clients in the databases.
//
// A biz_type of one database keeps delta and remainder. One of several databases
// becomes one tag that issues every number, above the marks of all.
func PlanMoves(ctx context.Context, s *Store, target moves.Target, o MoveOptions) ([]Move, error) {
	if o.Watch <= 0 {
		o.Watch = 10 * time.Second
	}
	rows, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	if !o.IgnoreLiving {
		select {
		case <-time.After(o.Watch):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		before := rows
		if rows, err = s.all(ctx); err != nil {
			return nil, err
		}
		signs, err := s.signs(ctx, before, rows)
		if err == nil {
			err = moves.Alive(signs)
		}
		if err != nil {
			return nil, err
		}
	}
	var defs []hapax.Tag
	var bad []Move
	for _, bizType := range slices.Sorted(maps.Keys(rows)) {
		def, err := merge(rows[bizType], len(s.dbs), o.Margin)
		if err != nil {
			bad = append(bad, Move{Tag: hapax.Tag{Name: bizType}, Reason: err})
			continue
		}
		defs = append(defs, def)
	}
	all, err := moves.Plan(ctx, target, defs, o.Progress)
	return append(all, bad...), err
}

// ApplyMoves creates the native tags or raises their marks. It can be repeated.
func ApplyMoves(ctx context.Context, target moves.Target, all []Move, progress func(done, total int)) error {
	return moves.Apply(ctx, target, all, progress)
}

// placed is a row, and the database that it is in.
type placed struct {
	row
	db int
}

// all reads all rows of all databases, by biz_type.
func (s *Store) all(ctx context.Context) (map[string][]placed, error) {
	found := map[string][]placed{}
	for i, db := range s.dbs {
		limited, cancel := db.Limit(ctx)
		rows, err := db.rows(limited)
		cancel()
		if err != nil {
			return nil, db.Fail(ctx, "tiny_id_info", err)
		}
		for _, r := range rows {
			found[r.bizType] = append(found[r.bizType], placed{r, i})
		}
	}
	return found, nil
}

// rows reads all rows of a database.
func (db *database) rows(ctx context.Context) ([]row, error) {
	rows, err := db.SQL.QueryContext(ctx, "SELECT "+columns+" FROM tiny_id_info")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []row
	for rows.Next() {
		var r row
		if err := r.scan(rows.Scan); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// signs tells what has moved between two looks at the rows, and who else is there.
func (s *Store) signs(ctx context.Context, before, after map[string][]placed) ([]string, error) {
	var signs []string
	for bizType, rows := range after {
		for _, now := range rows {
			for _, then := range before[bizType] {
				if then.db == now.db && then.versionNo != now.versionNo {
					signs = append(signs, fmt.Sprintf("row %s went from %d to %d", bizType, then.maxID, now.maxID))
				}
			}
		}
	}
	for _, db := range s.dbs {
		others, err := db.Others(ctx)
		if err != nil {
			return nil, err
		}
		if others > 0 {
			signs = append(signs, fmt.Sprintf("%d other sessions in the database at %s", others, db.Address))
		}
	}
	return signs, nil
}

// merge returns the native definition for the rows of one biz_type.
func merge(rows []placed, databases int, margin int64) (hapax.Tag, error) {
	def := hapax.Tag{Name: rows[0].bizType, Delta: rows[0].delta, Remainder: rows[0].remainder}
	width := int64(0)
	top := int64(0)
	for i, r := range rows {
		if err := r.check(); err != nil {
			return def, err
		}
		for _, other := range rows[:i] {
			if overlap(r.class(), other.class()) {
				return def, fmt.Errorf("%w: %w: row %q has delta %d and remainder %d, and delta %d and remainder %d",
					hapax.ErrStoreUnsafe, errOverlap, r.bizType, r.delta, r.remainder, other.delta, other.remainder)
			}
		}
		top, width = max(top, r.maxID+1), max(width, r.width(0))
	}
	switch {
	case len(rows) == 1 && databases == 1:
	case len(rows) == databases && int64(databases) == rows[0].delta:
		def.Delta, def.Remainder = 1, 0
	default:
		return def, fmt.Errorf("%w: row %q is in %d of %d databases with delta %d: give exactly the databases that share the biz_type, one for each remainder",
			hapax.ErrInvalidArgument, rows[0].bizType, len(rows), databases, rows[0].delta)
	}
	mark, err := moves.Above(top, width, margin)
	if err != nil {
		return def, errors.Join(err, hapax.ErrInvalidArgument)
	}
	def.Start, def.Mark, def.Step = mark, mark, max(1, width/def.Delta)
	return def, nil
}
