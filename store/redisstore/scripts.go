package redisstore

import (
	"embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

//go:embed lua
var lua embed.FS

// A script runs in one atomic step on the server. Its keys begin with those of the store, the rows, the
// names of rows and the names of tags; those of the tags that it is told of follow.
type script struct {
	source, hash string
	writes       bool // its answer counts only once replicas have it; see eval
}

var (
	openScript   = newScript(true, "master", "open")
	openedScript = newScript(true, "master", "store", "opened")
	pingScript   = newScript(true, "master", "store", "ping")
	listScript   = newScript(false, "master", "store", "rows", "list")
	stepScript   = newScript(true, "master", "store", "rows", "step")
)

func newScript(writes bool, parts ...string) script {
	// Nothing longer than a row and a name may be leaves the server.
	var source strings.Builder
	fmt.Fprintf(&source, "local MAX_VALUE, MAX_NAME = %d, %d\n", driver.MaxValueBytes, driver.MaxTableBytes+1+driver.MaxNameBytes)
	for _, part := range parts {
		text, err := lua.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // it is embedded
		}
		source.Write(text)
	}
	return scriptOf(source.String(), writes)
}

func scriptOf(source string, writes bool) script {
	return script{source, redis.NewScript(source).Hash(), writes}
}

// A reply is what a script answered: a word first.
type reply []any

// text returns the element at i as text, "" where there is none.
func (r reply) text(i int) (s string) {
	if i < len(r) {
		s, _ = r[i].(string)
	}
	return s
}

// done is how a script says that it has made a change.
var done any = int64(1)

// cell reads a row from an answer. Of a tag that was lost nothing is known.
func cell(v any) driver.Cell {
	switch v := v.(type) {
	case string:
		return driver.Cell{Value: []byte(v), Known: true}
	case nil:
		return driver.Cell{Known: true}
	}
	return driver.Cell{}
}

// refused returns what stands against what a script was asked for, or nil.
func (s *space) refused(r reply) error {
	switch r.text(0) {
	case "ok", "more":
		return nil
	case "replica":
		return errReplica()
	case "replaced":
		return driver.OtherStore("redis", r.text(1), s.id)
	case "format":
		return s.checkFormat(r.text(1))
	case "lost":
		return fmt.Errorf("%w: redis: rows are gone: key %q, key %q and the field rows of %q do not have the same count, or key %q lacks the empty name: put them back; or, while nodes run that have used the store, remove all keys that begin with %q, and they heal it",
			hapax.ErrStoreRolledBack, s.key("rows"), s.key("names"), s.key("store"), s.key("tags"), s.key(""))
	case "left":
		return fmt.Errorf("%w: redis: key %q, which names the store, is gone, and %q, %q or %q is there: put it back, remove all keys that begin with %q, or choose another prefix",
			hapax.ErrStoreCorrupt, s.key("store"), s.key("rows"), s.key("names"), s.key("tags"), s.key(""))
	case "large":
		return fmt.Errorf("%w: redis: row %.80q under %q is longer than the %d bytes that one may have", hapax.ErrStoreCorrupt, r.text(1), s.key(""), driver.MaxValueBytes)
	}
	return unexpected(r)
}

// unexpected is the error for an answer that no script gives.
func unexpected(r reply) error {
	return fmt.Errorf("%w: redis: a script answered %d words, the first of them %.80q", hapax.ErrStoreCorrupt, len(r), r.text(0))
}
