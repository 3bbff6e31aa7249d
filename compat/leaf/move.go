package leaf

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Config is what leaf.properties says, in hapax's terms.
type Config struct {
	Name      string // leaf.name
	Segment   bool   // whether the segment mode is on
	Table     string // mysql://user@host:port/database
	Password  Secret // of the table's account
	Snowflake bool   // whether the snowflake mode is on
	Tree      string // zk://host:port,…
	Port      int    // leaf.snowflake.port
}

// A Secret is a text that formatting hides.
type Secret = moves.Secret

// TableURL returns the table's URL with the password.
func (c Config) TableURL() string { return moves.JoinPassword(c.Table, c.Password) }

// SetTable sets the table by a URL that may hold the password.
func (c *Config) SetTable(rawURL string) (err error) {
	c.Segment = true
	c.Table, c.Password, err = moves.SplitPassword("table", rawURL)
	return err
}

// ReadProperties reads leaf.properties, of the server or of the starter.
func ReadProperties(r io.Reader) (Config, error) {
	p, err := moves.Properties(r)
	if err != nil {
		return Config{}, err
	}
	get := func(names ...string) (name, value string) {
		for _, name := range names {
			if v := p[name]; v != "" {
				return name, v
			}
		}
		return names[0], ""
	}
	c := Config{}
	_, c.Name = get("leaf.name")
	_, segment := get("leaf.segment.enable")
	_, snowflake := get("leaf.snowflake.enable")
	if c.Segment, err = truth("leaf.segment.enable", segment); err != nil {
		return c, err
	}
	if c.Snowflake, err = truth("leaf.snowflake.enable", snowflake); err != nil {
		return c, err
	}
	if c.Segment {
		field, jdbc := get("leaf.jdbc.url", "leaf.segment.url")
		_, user := get("leaf.jdbc.username", "leaf.segment.username")
		_, password := get("leaf.jdbc.password", "leaf.segment.password")
		c.Password = Secret(password)
		if c.Table, err = moves.DatabaseURL(field, jdbc, user); err != nil {
			return c, err
		}
	}
	if !c.Snowflake {
		return c, nil
	}
	if c.Name == "" {
		return c, &hapax.ValueError{Field: "leaf.name", Value: "", Allowed: "the service's name in the tree", Err: hapax.ErrInvalidArgument}
	}
	field, address := get("leaf.snowflake.zk.address", "leaf.snowflake.address")
	c.Tree = "zk://" + strings.ReplaceAll(address, " ", "")
	if _, err := parseTreeURL(c.Tree); err != nil || address == "" {
		return c, &hapax.ValueError{Field: field, Value: address, Allowed: "host:port[,host:port…]", Err: hapax.ErrInvalidArgument}
	}
	field, port := get("leaf.snowflake.port", "leaf.snowflake.zk.port")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return c, &hapax.ValueError{Field: field, Value: port, Allowed: "1 to 65535", Err: hapax.ErrInvalidArgument}
	}
	c.Port = int(n)
	return c, nil
}

func truth(field, value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, &hapax.ValueError{Field: field, Value: value, Allowed: "true or false", Err: hapax.ErrInvalidArgument}
}

// YAML returns the block of hapax's configuration that does the same, without the
// password: it names the file that holds it, or tells where to put it if that is
// empty.
func (c Config) YAML(passwordFile string) string {
	var b strings.Builder
	b.WriteString("compat:\n  leaf:\n")
	if c.Segment {
		fmt.Fprintf(&b, "    table: %s\n", moves.Quote(c.Table))
		switch {
		case passwordFile != "":
			fmt.Fprintf(&b, "    password_file: %s\n", moves.Quote(passwordFile))
		case c.Password != "":
			b.WriteString("    # The password is not shown: put it into the variable HAPAX_LEAF_PASSWORD, or\n    # into a file that password_file names.\n")
		}
	}
	if c.Snowflake {
		fmt.Fprintf(&b, "    tree: %s\n    name: %s\n    port: %d\n", moves.Quote(c.Tree), moves.Quote(c.Name), c.Port)
	}
	b.WriteString("    http: 127.0.0.1:8088\n    allow: []\n")
	return b.String()
}

// NativeYAML returns the block that serves the same routes from native tags.
func (c Config) NativeYAML() string {
	return "compat:\n  leaf:\n    http: 127.0.0.1:8088\n    allow: []\n"
}

// A Move is what is to be done for one tag on its way to a native one.
type Move = moves.Move

// MoveOptions tune PlanMoves.
type MoveOptions struct {
	// Margin is how far above a row's max_id the native mark is set; default ten
	// of the row's steps. A Leaf node issues below max_id only, so that any
	// margin will do once all nodes have ended.
	Margin int64

	// Watch is how long the table is watched for nodes that are alive; default
	// 10 s.
	Watch time.Duration

	// Tree, if set, is watched too.
	Tree *Tree

	// IgnoreLiving plans although nodes are alive.
	IgnoreLiving bool

	// Progress, if set, is called as the rows are compared with the native tags.
	Progress func(done, total int)
}

// PlanMoves tells for each row which mark its native tag has and will have, and
// writes nothing; without a table it only watches the tree. It fails with ErrStoreUnsafe while it sees nodes that are alive:
// rows that move, sessions of other clients in the database, nodes of the tree
// that report.
func PlanMoves(ctx context.Context, t *Table, target moves.Target, o MoveOptions) ([]Move, error) {
	if o.Watch <= 0 {
		o.Watch = 10 * time.Second
	}
	if !o.IgnoreLiving {
		signs, err := signsOfLife(ctx, t, o)
		if err == nil {
			err = moves.Alive(signs)
		}
		if err != nil {
			return nil, err
		}
	}
	if t == nil {
		return nil, nil
	}
	var defs []hapax.Tag
	var bad []Move
	err := t.rows(ctx, "", func(r row) bool {
		err := r.check()
		mark := int64(0)
		if err == nil {
			mark, err = moves.Above(r.maxID, r.step, o.Margin)
		}
		if err != nil {
			bad = append(bad, Move{Tag: hapax.Tag{Name: r.tag, Mark: r.maxID}, Reason: err})
			return true
		}
		defs = append(defs, hapax.Tag{Name: r.tag, Start: mark, Step: r.step, Mark: mark})
		return true
	})
	if err != nil {
		return nil, err
	}
	all, err := moves.Plan(ctx, target, defs, o.Progress)
	return append(all, bad...), err
}

// ApplyMoves creates the native tags or raises their marks. It can be repeated.
func ApplyMoves(ctx context.Context, target moves.Target, all []Move, progress func(done, total int)) error {
	return moves.Apply(ctx, target, all, progress)
}

// signsOfLife watches the table, and the tree if there is one.
func signsOfLife(ctx context.Context, t *Table, o MoveOptions) ([]string, error) {
	marks := func() (map[string]int64, error) {
		m := map[string]int64{}
		if t == nil {
			return m, nil
		}
		err := t.rows(ctx, "", func(r row) bool { m[r.tag] = r.maxID; return true })
		return m, err
	}
	nodes := func() (map[string]time.Time, error) {
		m := map[string]time.Time{}
		if o.Tree == nil {
			return m, nil
		}
		all, err := o.Tree.Nodes(ctx)
		for _, n := range all {
			if !n.Own {
				m[n.Name] = n.Reported
			}
		}
		return m, err
	}
	rows, err := marks()
	if err != nil {
		return nil, err
	}
	reports, err := nodes()
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(o.Watch):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var signs []string
	later, err := marks()
	if err != nil {
		return nil, err
	}
	for tag, maxID := range later {
		if before, ok := rows[tag]; ok && before != maxID {
			signs = append(signs, fmt.Sprintf("row %s went from %d to %d", tag, before, maxID))
		}
	}
	now, err := nodes()
	if err != nil {
		return nil, err
	}
	for name, at := range now {
		if at.After(reports[name]) {
			signs = append(signs, "node "+name+" reports")
		}
	}
	if t == nil {
		return signs, nil
	}
	others, err := t.db.Others(ctx)
	if err != nil {
		return nil, err
	}
	if others > 0 {
		signs = append(signs, fmt.Sprintf("%d other sessions in the database", others))
	}
	return signs, nil
}

// A Row is one row of the table, as it is.
type Row struct {
	Tag     string
	MaxID   int64
	Step    int64
	Updated string // as the table has it; empty if it is not known
}

// Rows returns up to limit rows, also such that cannot be used, by key.
func (t *Table) Rows(ctx context.Context, limit int) ([]Row, error) {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	rows, err := t.db.SQL.QueryContext(limited, "SELECT biz_tag, max_id, step, CAST(update_time AS CHAR) FROM leaf_alloc ORDER BY biz_tag LIMIT ?", limit)
	if err != nil {
		return nil, t.db.Fail(ctx, "leaf_alloc", err)
	}
	defer rows.Close()
	var all []Row
	for rows.Next() {
		var r Row
		var updated *string
		if err := rows.Scan(&r.Tag, &r.MaxID, &r.Step, &updated); err != nil {
			return nil, t.db.Fail(ctx, "leaf_alloc", err)
		}
		if updated != nil {
			r.Updated = *updated
		}
		all = append(all, r)
	}
	return all, t.db.Fail(ctx, "leaf_alloc", rows.Err())
}
