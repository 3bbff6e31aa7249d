package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var _ driver.Together = (*Store)(nil)

// HandsBackTogether implements driver.Together: not in a Cluster, where tags lie apart.
func (s *Store) HandsBackTogether() bool { return !s.Split() }

// HandBackAllWith implements driver.Together. It is one script.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, contact driver.Contact, err error) {
	if err := p.Check(); err != nil {
		return nil, contact, err
	}
	tags := make([]string, len(all))
	args := []any{field(driver.TableBeats, p.Row), p.Was.Encode(), p.Now.Encode()}
	for i, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
		tags[i], args = h.Tag.Name, append(args, h.Grant.Hi, driver.HashKey(h.Key), h.Tag.Token, h.Next)
	}
	given = make([]bool, len(all))
	contact, err = request(ctx, s, "hand back", func(ctx context.Context) (driver.Contact, error) {
		r, err := s.evalRows(ctx, handBackAllScript, tags, args...)
		if err != nil {
			return driver.Contact{}, err
		}
		c, err := contactOf(r)
		if err != nil || !c.Met {
			return c, err
		}
		for n := range strings.FieldsSeq(r.text(3)) {
			i, err := strconv.Atoi(n)
			if err != nil || i < 1 || i > len(given) {
				return c, fmt.Errorf("%w: redis: a script answered %q", hapax.ErrStoreCorrupt, r.text(3))
			}
			given[i-1] = true
		}
		return c, nil
	})
	return given, contact, err
}
