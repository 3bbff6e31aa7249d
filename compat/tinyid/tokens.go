package tinyid

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	tokensEvery = time.Minute
	maxTokens   = 1_000_000 // rows of tiny_id_token that are read
)

// Tokens are the pairs of token and biz_type in tiny_id_token, refreshed each
// minute. They are kept as hashes and are never shown. A database that does not
// answer keeps the pairs that it had last.
type Tokens struct {
	store *Store
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu   sync.RWMutex            // guards the field below
	sets []map[[32]byte]struct{} // for each database; nil: not read yet
}

// OpenTokens reads the tokens, from one database at least, and keeps them fresh
// until Close.
func OpenTokens(ctx context.Context, s *Store) (*Tokens, error) {
	t := &Tokens{store: s, sets: make([]map[[32]byte]struct{}, len(s.dbs))}
	if err := t.Refresh(ctx); err != nil {
		return nil, err
	}
	var life context.Context
	life, t.stop = context.WithCancel(context.Background())
	t.tasks.Go(func() {
		tick := time.NewTicker(tokensEvery)
		defer tick.Stop()
		for {
			select {
			case <-life.Done():
				return
			case <-tick.C:
				if err := t.Refresh(life); err != nil && life.Err() == nil {
					s.warn("database_down", err.Error())
				}
			}
		}
	})
	return t, nil
}

// Refresh reads the tokens now. It fails where no database answers; what was read
// last stays then.
func (t *Tokens) Refresh(ctx context.Context) error {
	var failed error
	read := 0
	for i, db := range t.store.dbs {
		set, err := readTokens(ctx, db)
		if err != nil {
			failed = errors.Join(failed, db.Fail(ctx, "tiny_id_token", err))
			continue
		}
		t.mu.Lock()
		t.sets[i] = set
		t.mu.Unlock()
		read++
	}
	if read > 0 {
		return nil
	}
	return failed
}

func readTokens(ctx context.Context, db *database) (map[[32]byte]struct{}, error) {
	set := map[[32]byte]struct{}{}
	err := db.eachToken(ctx, func(token, bizType string) { set[pair(token, bizType)] = struct{}{} })
	return set, err
}

// eachToken calls f for the rows of tiny_id_token.
func (db *database) eachToken(ctx context.Context, f func(token, bizType string)) error {
	ctx, cancel := db.Limit(ctx)
	defer cancel()
	rows, err := db.SQL.QueryContext(ctx, fmt.Sprintf("SELECT token, biz_type FROM tiny_id_token LIMIT %d", maxTokens))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var token, bizType string
		if err := rows.Scan(&token, &bizType); err != nil {
			return err
		}
		if token != "" && bizType != "" {
			f(token, bizType)
		}
	}
	return rows.Err()
}

// tokenHashes returns the tokens of all databases, each of which must answer, by
// biz_type, as the configuration of a server takes them.
func (s *Store) tokenHashes(ctx context.Context) (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{}
	for _, db := range s.dbs {
		if err := db.eachToken(ctx, func(token, bizType string) {
			if all[bizType] == nil {
				all[bizType] = map[string]bool{}
			}
			sum := sha256.Sum256([]byte(token))
			all[bizType]["sha256:"+hex.EncodeToString(sum[:])] = true
		}); err != nil {
			return nil, db.Fail(ctx, "tiny_id_token", err)
		}
	}
	return all, nil
}

// pair hashes a token with its biz_type, so that what is looked up does not depend
// on how much of a guess is right.
func pair(token, bizType string) [32]byte {
	raw := binary.AppendUvarint(nil, uint64(len(token)))
	raw = append(append(raw, token...), bizType...)
	return sha256.Sum256(raw)
}

// Allows reports whether a token is one of the biz_type's.
func (t *Tokens) Allows(token, bizType string) bool {
	if token == "" || bizType == "" {
		return false
	}
	key := pair(token, bizType)
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, set := range t.sets {
		if _, ok := set[key]; ok {
			return true
		}
	}
	return false
}

// String hides the tokens.
func (t *Tokens) String() string { return "(secret)" }

// Close ends the refreshing.
func (t *Tokens) Close() {
	t.stop()
	t.tasks.Wait()
}
