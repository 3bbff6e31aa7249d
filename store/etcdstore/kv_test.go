package etcdstore

import (
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/coord"
)

func TestObserve(t *testing.T) {
	for _, c := range []struct {
		name             string
		cluster          uint64
		before, revision int64
		want             error
	}{
		{"the same revision", 7, 10, 10, nil},
		{"a later one", 7, 10, 12, nil},
		{"earlier than another call's answer", 7, 8, 9, nil},
		{"earlier than the request", 7, 10, 9, hapax.ErrStoreRolledBack},
		{"another cluster", 8, 10, 12, hapax.ErrStoreReplaced},
		{"another cluster, earlier", 8, 10, 1, hapax.ErrStoreReplaced},
	} {
		s := &space{cluster: 7}
		s.revision.Store(10)
		err := s.observe(&pb.ResponseHeader{ClusterId: c.cluster, Revision: c.revision}, c.before)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: error is %v; want %v", c.name, err, c.want)
		}
		want := int64(10)
		if c.want == nil {
			want = max(10, c.revision)
		}
		if got := s.revision.Load(); got != want {
			t.Errorf("%s: the highest revision seen is %d; want %d", c.name, got, want)
		}
	}
}

// TestPaths: the rows of one table are never listed with those of another.
func TestPaths(t *testing.T) {
	s := &space{prefix: "x/"}
	seen := map[string]string{}
	for _, table := range []string{"", "a", "a/", "a/b", "a%2Fb", "a%", "a%25", "/", "%2F", "tags"} {
		dir := s.dir(table)
		for other, of := range seen {
			if strings.HasPrefix(other, dir) || strings.HasPrefix(dir, other) {
				t.Errorf("of the tables %q and %q, one lies in the other", table, of)
			}
		}
		seen[dir] = table
	}
	for path, key := range map[string]coord.Key{
		"x/tags/a/b%":                            {Name: "a/b%"},
		"x/rows/pools/a/b":                       {Table: "pools", Name: "a/b"},
		"x/rows/workers%2Fa/0000000000000000007": {Table: "workers/a", Name: "0000000000000000007"},
	} {
		if got := s.path(key); got != path {
			t.Errorf("%v: path %s; want %s", key, got, path)
		}
	}
}
