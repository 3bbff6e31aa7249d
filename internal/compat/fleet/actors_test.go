package fleet

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/patience"
)

// actors are what processes do until they are killed: Leaf and TinyID by their own
// operations, and hapax.
var actors = map[string]func(context.Context, job, *output) error{
	"leaf":         func(ctx context.Context, j job, out *output) error { return leafActor(ctx, j, out, 0) },
	"hapax-leaf":   hapaxLeaf,
	"tinyid":       tinyidActor,
	"hapax-tinyid": hapaxTinyID,
	"leaf-tree":    func(ctx context.Context, j job, out *output) error { return leafTreeActor(ctx, j, out, -1) },
	"hapax-tree":   hapaxTree,
	"hapax-native": hapaxNative,

	"leaf-wrong-range": func(ctx context.Context, j job, out *output) error { return leafActor(ctx, j, out, 1) },
	"leaf-tree-zero":   func(ctx context.Context, j job, out *output) error { return leafTreeActor(ctx, j, out, 0) },
}

func database(rawURL string) (*sql.DB, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.Trim(u.Path, "/")
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// leafActor takes segments in Leaf's transaction, with the row's step and with an
// adapted one. A shift of 1 is the mistake of taking the range for TinyID's.
func leafActor(ctx context.Context, j job, out *output, shift int64) error {
	db, err := database(j.URLs[0])
	if err != nil {
		return err
	}
	defer db.Close()
	for fetch := 0; ctx.Err() == nil; fetch++ {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		var maxID, step, width int64
		if fetch < 2 {
			_, err = tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = ?", j.Tag)
		} else {
			width = 100 << rand.N(6)
			_, err = tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + ? WHERE biz_tag = ?", width, j.Tag)
		}
		if err == nil {
			err = tx.QueryRowContext(ctx, "SELECT max_id, step FROM leaf_alloc WHERE biz_tag = ?", j.Tag).Scan(&maxID, &step)
		}
		if err = errors.Join(err, tx.Commit()); err != nil {
			return err
		}
		if width == 0 {
			width = step
		}
		for id := maxID - width + shift; id < maxID+shift; id++ {
			if err := out.tell(id); err != nil {
				return err
			}
		}
	}
	return nil
}

func hapaxLeaf(ctx context.Context, j job, out *output) error {
	table, err := leaf.OpenTable(ctx, j.URLs[0], leaf.TableOptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	return issueSegment(ctx, table, j.Tag, out)
}

func issueSegment(ctx context.Context, store hapax.SegmentStore, tag string, out *output) error {
	s, err := hapax.NewSegment(ctx, store, tag, hapax.SegmentOptions{NoCreate: true})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	return issue(ctx, s, out)
}

func issue(ctx context.Context, s hapax.Issuer, out *output) error {
	last := hapax.ID(-1)
	ids := make([]hapax.ID, 100)
	for ctx.Err() == nil {
		n, err := s.NextN(ctx, ids)
		for _, id := range ids[:n] {
			if id <= last {
				return fmt.Errorf("%d after %d", id, last)
			}
			last = id
			if err := out.tell(int64(id)); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tinyidActor takes segments as TinyID does, from a database at random.
func tinyidActor(ctx context.Context, j job, out *output) error {
	var dbs []*sql.DB
	for _, url := range j.URLs {
		db, err := database(url)
		if err != nil {
			return err
		}
		defer db.Close()
		dbs = append(dbs, db)
	}
	for ctx.Err() == nil {
		db := dbs[rand.N(len(dbs))]
		var id, maxID, step, delta, remainder, version int64
		if err := db.QueryRowContext(ctx, "SELECT id, max_id, step, delta, remainder, version FROM tiny_id_info WHERE biz_type = ?", j.Tag).
			Scan(&id, &maxID, &step, &delta, &remainder, &version); err != nil {
			return err
		}
		next := maxID + step
		res, err := db.ExecContext(ctx, "UPDATE tiny_id_info SET max_id = ?, update_time = NOW(), version = version + 1 WHERE id = ? AND max_id = ? AND version = ? AND biz_type = ?",
			next, id, maxID, version, j.Tag)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n != 1 {
			continue
		}
		for n := maxID + 1; n <= next; n++ {
			if n%delta == remainder {
				if err := out.tell(n); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func hapaxTinyID(ctx context.Context, j job, out *output) error {
	s, err := tinyid.Open(ctx, j.URLs, tinyid.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	return issueSegment(ctx, s, j.Tag, out)
}

const forever = "/snowflake/demo/forever"

// leafTreeActor issues as a Leaf node does: from its node's suffix and the wall
// clock, with a report each 3 s. It waits where its node's timestamp is ahead. A
// worker that is not negative is used in place of the suffix.
func leafTreeActor(ctx context.Context, j job, out *output, worker int64) error {
	conn, events, err := zk.Connect(strings.Split(strings.TrimPrefix(j.URLs[0], "zk://"), ","), 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		for range events {
		}
	}()
	node, err := leafNode(conn, j.Address)
	if err != nil {
		return err
	}
	for {
		raw, _, err := conn.Get(node)
		if err != nil {
			return err
		}
		var e struct{ Timestamp int64 }
		if err := json.Unmarshal(raw, &e); err != nil {
			return err
		}
		if e.Timestamp <= time.Now().UnixMilli() {
			break
		}
		patience.Slow(10 * time.Millisecond)
	}
	if worker < 0 {
		if _, err := fmt.Sscanf(node[strings.LastIndexByte(node, '-')+1:], "%d", &worker); err != nil {
			return err
		}
	}
	const epoch = 1288834974657
	reported := time.Time{}
	for last, sequence := int64(0), int64(0); ctx.Err() == nil; {
		if time.Since(reported) > 3*time.Second {
			reported = time.Now()
			if _, err := conn.Set(node, leafData(j.Address), -1); err != nil {
				return err
			}
		}
		now := time.Now().UnixMilli()
		switch {
		case now > last:
			last, sequence = now, rand.N(int64(100))
		case sequence == 4095:
			patience.Slow(100 * time.Microsecond)
			continue
		default:
			sequence++
		}
		if err := out.tell((last-epoch)<<22 | worker<<12 | sequence); err != nil {
			return err
		}
	}
	return nil
}

func leafData(address string) []byte {
	ip, port, _ := strings.Cut(address, ":")
	return fmt.Appendf(nil, `{"ip":"%s","port":"%s","timestamp":%d}`, ip, port, time.Now().UnixMilli())
}

// leafNode finds or makes the node of an address.
func leafNode(conn *zk.Conn, address string) (string, error) {
	path := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(forever, "/"), "/") {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return "", err
		}
	}
	names, _, err := conn.Children(forever)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.HasPrefix(name, address+"-") {
			return forever + "/" + name, nil
		}
	}
	return conn.Create(forever+"/"+address+"-", leafData(address), zk.FlagSequence, zk.WorldACL(zk.PermAll))
}

func hapaxTree(ctx context.Context, j job, out *output) error {
	tree, err := leaf.OpenTree(ctx, j.URLs[0], leaf.TreeOptions{Name: "demo", Address: j.Address})
	if err != nil {
		return err
	}
	defer tree.Close()
	s, err := hapax.NewSnowflake(ctx, tree, tree.Snowflake(hapax.SnowflakeOptions{}))
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	return issue(ctx, s, out)
}
