package postgresstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/sqlstore"
)

func TestURL(t *testing.T) {
	for _, c := range []struct {
		url   string
		field string // of the ValueError; "-": another error; empty: none
	}{
		{"postgres://u:p@h:1/db?sslmode=disable&prefix=x", ""},
		{"postgresql://h/db", ""},
		{"postgres://a:1,b:2/db?target_session_attrs=read-write", ""},
		{"postgres://h/db?prefix=" + strings.Repeat("a", 33), "prefix"},
		{"postgres://h/db?sslmode=perhaps", "-"},
		{"redis://h", "scheme"},
		{"mysql://h/db", "scheme"},
		{"", "scheme"},
		{"postgres://u:s3cret@h:1/db?sslmode=perhaps", "-"},
		{"postgres://u:s3cret@h:1/db?connect_timeout=x&sslpassword=s3cret", "-"},
	} {
		_, _, err := config(c.url, sqlstore.Options{})
		if c.field == "" && err == nil {
			continue
		}
		if c.field == "" || !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: error is %v", c.url, err)
			continue
		}
		if v, ok := errors.AsType[*hapax.ValueError](err); ok != (c.field != "-") || ok && v.Field != c.field {
			t.Errorf("%s: error is %v, want one about %q", c.url, err, c.field)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error %q holds the password", err)
		}
	}
}
