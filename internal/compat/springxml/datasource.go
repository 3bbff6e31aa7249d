package springxml

import (
	"strings"

	"github.com/hapax-id/hapax/internal/moves"
)

// DataSource claims the bean of the database that the numbers' system uses, and returns what
// it says; nil if there is none. Several are refused.
func (d *Document) DataSource() *moves.Database {
	var found []*Bean
	for _, b := range d.Beans {
		if !b.element.claimed && !b.shared && d.isDataSource(b) {
			found = append(found, b)
		}
	}
	if len(found) == 0 {
		return nil
	}
	for _, other := range found[1:] {
		d.account.Refusef(other.Title(), "there are several databases, this and %s: give the one that is meant as --table", found[0].Title())
	}
	db := d.Database(found[0])
	return &db
}

// isDataSource reports whether a bean, or a parent of it, has a JDBC URL.
func (d *Document) isDataSource(b *Bean) bool {
	// Beans may be each other's parents in a file that Spring would refuse.
	for range maxNested {
		for _, p := range b.Properties {
			if p.Name != "url" && p.Name != "jdbcUrl" || p.Value.kind != isText {
				continue
			}
			text := d.fill(p.Value.text)
			// A placeholder without a value here may stand for a JDBC URL.
			return strings.HasPrefix(text, "jdbc:") || strings.Contains(text, "${") || strings.HasSuffix(b.Class, "DataSource")
		}
		if b = d.named(b.parent); b == nil {
			return false
		}
	}
	return false
}

// Database claims a data source, of any pool.
func (d *Document) Database(b *Bean) moves.Database {
	var url, user, password, at string
	set := func(field *string) Taker {
		return func(where string, v Value) { *field = d.Text(where, v) }
	}
	takeURL := func(where string, v Value) { at, url = where, d.Text(where, v) }
	d.Claim(b, map[string]Taker{
		"url": takeURL, "jdbcUrl": takeURL,
		"username": set(&user), "user": set(&user),
		"password": func(where string, v Value) { password = d.Secret(where, v) },
	}, func(where string, _ []Property) {
		d.account.Refusef(where, "a data source is read by its properties url, username and password alone")
	}, "*")
	if url == "" {
		return moves.Database{}
	}
	db, err := moves.ReadDatabase(d.account, at, url, user, moves.Secret(password))
	if err != nil {
		d.account.Refusef(at, "%v", err)
	}
	return db
}
