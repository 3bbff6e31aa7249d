package moves

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// TLS is never weaker than Java was told, and what is not known is refused by its name.
func TestReadDatabase(t *testing.T) {
	for _, c := range []struct {
		jdbc, want string // want is the URL, or what the error holds
		notes      []string
	}{
		{"jdbc:mysql://h/d", "mysql://u@h:3306/d", nil},
		{"jdbc:mariadb://h:3307/d", "mysql://u@h:3307/d", nil},
		{"jdbc:mysql://[fd00::7]:1/d", "mysql://u@[fd00::7]:1/d", nil},
		{"jdbc:mysql://h/d?useUnicode=true&characterEncoding=utf8", "mysql://u@h:3306/d", []string{"url?useUnicode", "url?characterEncoding"}},
		{"jdbc:mysql://h/d?connectTimeout=3000&socketTimeout=5000", "mysql://u@h:3306/d?readTimeout=5000ms&timeout=3000ms&writeTimeout=5000ms", nil},
		{"jdbc:mysql://h/d?socketTimeout=0", "mysql://u@h:3306/d", []string{"url?socketTimeout"}},

		{"jdbc:mysql://h/d?useSSL=false", "mysql://u@h:3306/d", []string{"Not encrypted, as before: url?useSSL=false"}},
		{"jdbc:mysql://h/d?useSSL=true", "mysql://u@h:3306/d?tls=true", nil},
		{"jdbc:mysql://h/d?requireSSL=true", "mysql://u@h:3306/d?tls=true", nil},
		{"jdbc:mysql://h/d?usessl=true&verifyServerCertificate=true", "mysql://u@h:3306/d?tls=true", nil},
		{"jdbc:mysql://h/d?useSSL=true&verifyServerCertificate=false", "mysql://u@h:3306/d?tls=true", []string{"is verified here", "url?verifyServerCertificate=false"}},
		{"jdbc:mysql://h/d?requireSSL=false", "mysql://u@h:3306/d", []string{"url?requireSSL=false"}},
		{"jdbc:mysql://h/d?sslMode=DISABLED", "mysql://u@h:3306/d", []string{"url?sslMode=DISABLED"}},
		{"jdbc:mysql://h/d?sslMode=PREFERRED", "mysql://u@h:3306/d?tls=true", []string{"is verified here", "url?sslMode=PREFERRED"}},
		{"jdbc:mysql://h/d?sslMode=REQUIRED", "mysql://u@h:3306/d?tls=true", []string{"is verified here"}},
		{"jdbc:mysql://h/d?sslMode=VERIFY_IDENTITY", "mysql://u@h:3306/d?tls=true", nil},
		{"jdbc:mariadb://h/d?sslMode=verify-full", "mysql://u@h:3306/d?tls=true", nil},
		{"jdbc:mariadb://h/d?useSsl=true&serverSslCert=/etc/ca.pem", "mysql://u@h:3306/d?tls=true&tls_ca=%2Fetc%2Fca.pem", nil},

		{"jdbc:mysql://h/d?useSSL=false&requireSSL=true", "asks for encryption", nil},
		{"jdbc:mysql://h/d?useSSL=yes", "useSSL", nil},
		{"jdbc:mysql://h/d?sslMode=maybe", "sslMode", nil},
		{"jdbc:mysql://h/d?trustCertificateKeyStoreUrl=file:x", `"trustCertificateKeyStoreUrl"`, nil},
		{"jdbc:mysql://h/d?socketFactory=x", `"socketFactory"`, nil},
		{"jdbc:mysql://h/d?connectTimeout=soon", "milliseconds", nil},
		{"jdbc:mysql://h/d?useSSL=true&useSSL=false", "given twice", nil},
		{"jdbc:mysql://h/d?user=other", "user is not that", nil},
		{"jdbc:mysql://a:1,b:2/d", "with one host", nil},
		{"jdbc:mysql://address=(host=a)(port=1)/d", "with one host", nil},
		{"jdbc:mysql:replication://a,b/d", "jdbc:mysql:replication", nil},
		{"jdbc:mariadb:sequential://a,b/d", "jdbc:mariadb:sequential", nil},
		{"jdbc:postgresql://h/d", "jdbc:mysql://host:port/database", nil},
		{"jdbc:mysql://u:geheim@h/d", "jdbc:mysql://host:port/database", nil},
		{"jdbc:mysql://h/", "jdbc:mysql://host:port/database", nil},
		{"", "jdbc:mysql://host:port/database", nil},
	} {
		var a Account
		d, err := ReadDatabase(&a, "url", c.jdbc, "u", "geheim")
		if err == nil {
			err = a.Err()
		}
		switch {
		case strings.HasPrefix(c.want, "mysql://"):
			if err != nil || d.URL != c.want || d.Password != "geheim" {
				t.Errorf("%s: %+v, %v; want %s", c.jdbc, d, err, c.want)
			}
		case !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "geheim"):
			t.Errorf("%s: %v; want an error with %q", c.jdbc, err, c.want)
		}
		for _, note := range c.notes {
			if !strings.Contains(a.Comments(), note) {
				t.Errorf("%s: there is no %q in\n%s", c.jdbc, note, a.Comments())
			}
		}
	}
	var a Account
	if d, err := ReadDatabase(&a, "url", "jdbc:mysql://h/d?user=root&password=geheim", "", ""); err != nil || d.URL != "mysql://root@h:3306/d" || d.Password != "geheim" || strings.Contains(a.Comments(), "geheim") {
		t.Errorf("an account in the URL: %+v, %v\n%s", d, err, a.Comments())
	}
}

// A name from a file cannot end the comment that it is in.
func TestComments(t *testing.T) {
	var a Account
	a.Note(Idle, "a\nstore: memory:", "b\u2028c")
	if text := a.Comments(); strings.Count(text, "\n") != 1 || strings.Contains(text, "\u2028") {
		t.Errorf("printed is %q", text)
	}
}
