package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/hapax-id/hapax/store/driver"
)

var _ driver.Together = (*Store)(nil)

// A handedBack is a hand-back as PostgreSQL reads it.
type handedBack struct {
	I     int    `json:"i"` // which one it is
	Name  string `json:"name"`
	Mark  int64  `json:"mark"`
	Token int64  `json:"token"`
	Hash  string `json:"hash"`
	Next  int64  `json:"next"`
}

// HandsBackTogether implements driver.Together: MySQL has no such statement.
func (s *Store) HandsBackTogether() bool { return s.dialect.name == PostgreSQL }

// HandBackAllWith implements driver.Together. It is one statement.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, contact driver.Contact, err error) {
	list := make([]handedBack, len(all))
	for i, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
		list[i] = handedBack{i, h.Tag.Name, h.Grant.Hi, h.Tag.Token, driver.HashKey(h.Key), h.Next}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, contact, err
	}
	given = make([]bool, len(all))
	contact, err = s.guarded(ctx, "hand numbers back", p, func(_ context.Context, _ *sql.Conn, meet func(guardedCall, ...any) (meeting, error)) error {
		m, err := meet(guardedHandBackAll, string(text))
		if err != nil || !m.met {
			return err
		}
		for _, i := range m.all {
			given[i] = true
			s.ended(all[i].Allocation)
		}
		return nil
	})
	return given, contact, err
}
