package tinyid

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Config is what TinyID's properties say, in hapax's terms: of the server the
// databases, of the client the servers.
type Config struct {
	Databases []string // mysql://user@host:port/database
	Passwords []Secret // of their accounts
	Servers   []string // tinyid.server, of a client
	Token     Secret   // tinyid.token, of a client
	Port      int      // server.port, or Spring's; 0: TinyID's

	// ContextPath is server.context-path; empty: that of the properties that TinyID ships,
	// and "/" none, as where a server's file does not name one.
	ContextPath string

	notes string // comments on the file's other settings
}

// A Secret is a text that formatting hides.
type Secret = moves.Secret

// URLs returns the databases' URLs with the passwords.
func (c Config) URLs() []string {
	var all []string
	for i, at := range c.Databases {
		all = append(all, moves.JoinPassword(at, c.Passwords[i]))
	}
	return all
}

// AddDatabase adds a database by a URL that may hold the password.
func (c *Config) AddDatabase(rawURL string) error {
	at, password, err := moves.SplitPassword("database", rawURL)
	c.Databases, c.Passwords = append(c.Databases, at), append(c.Passwords, password)
	return err
}

// PasswordLines returns the text of a file for password_file: a line for each
// database. It is empty where none has a password.
func (c Config) PasswordLines() string {
	lines, found := "", false
	for _, p := range c.Passwords {
		found = found || p != ""
		lines += string(p) + "\n"
	}
	if !found {
		return ""
	}
	return lines
}

// datasourceKey begins the names of TinyID's settings of databases.
const datasourceKey = "datasource.tinyid."

// ReadProperties reads application.properties of the server or
// tinyid_client.properties. Each setting is carried over, or named in the comments of
// YAML, or refused.
func ReadProperties(r io.Reader) (Config, error) {
	p, err := moves.Properties(r)
	if err != nil {
		return Config{}, err
	}
	s := moves.NewSettings(new(moves.Account), p)
	c := Config{}
	_, servers := s.Take("tinyid.server")
	c.Servers, c.Token = list(servers), s.TakeSecret("tinyid.token")
	s.Idle("Without effect here, of a client", "tinyid.readTimeout", "tinyid.connectTimeout")
	namesKey, names := s.Take(datasourceKey + "names")
	for _, name := range list(names) {
		at := datasourceKey + name + "."
		if len(s.Left(at)) == 0 {
			s.Refusef(namesKey, "%s is given twice, or has no settings %surl, username and password", name, at)
			continue
		}
		_, url := s.Take(at + "url")
		_, user := s.Take(at + "username")
		password := s.TakeSecret(at + "password")
		d, err := moves.ReadDatabase(s.Account, at+"url", url, user, password)
		if err != nil {
			return c, s.Beside(err)
		}
		c.Databases, c.Passwords = append(c.Databases, d.URL), append(c.Passwords, d.Password)
		s.Idle(moves.IdlePool, s.Left(at)...)
	}
	if len(c.Databases) == 0 && len(c.Servers) == 0 {
		return c, &hapax.ValueError{Field: namesKey, Value: names, Allowed: "the databases' names, such as primary,secondary, or tinyid.server in a client's file", Err: hapax.ErrInvalidArgument}
	}
	if len(c.Databases) > 0 && len(c.Servers) > 0 {
		s.Note("Without effect here, of a client", "tinyid.server", "tinyid.token")
	}
	s.Idle(moves.IdlePool, datasourceKey+"type")
	s.Idle("Without effect, of databases that "+namesKey+" does not list", s.Left(datasourceKey)...)
	s.Idle("Without effect here, where a batch has up to 100,000 numbers", "batch.size.max")
	if c.Port, err = port(s, len(c.Databases) > 0); err != nil {
		return c, err
	}
	c.ContextPath = contextPath(s)
	err = s.Finish("tinyid.", "tinyid.server, tinyid.token, tinyid.readTimeout and tinyid.connectTimeout")
	c.notes = s.Comments()
	return c, err
}

// What TinyID's server has in the properties that it ships, and where Spring Boot listens
// if those do not say.
const (
	shippedPort = 9999
	shippedPath = "/tinyid"
	springPort  = 8080
)

func port(s *moves.Settings, ofServer bool) (int, error) {
	key, text := s.Take("server.port")
	switch {
	case text == "" && !ofServer:
		return 0, nil
	case text == "":
		s.Note("As in Spring Boot where the file does not say; the server itself is to have another address with http", "server.port")
		return springPort, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, &hapax.ValueError{Field: key, Value: text, Allowed: "1 to 65535", Err: hapax.ErrInvalidArgument}
	}
	return int(n), nil
}

// contextPath takes what stands before /id/ in the routes. A file without it is one whose
// server answers at /id/, as Spring has it, though TinyID ships /tinyid.
func contextPath(s *moves.Settings) string {
	// Spring Boot 1.5, on which TinyID runs, knows the first three; the others are of its
	// later versions.
	key, path := s.Take("server.context-path", "server.contextPath", "server.context_path", "server.servlet.context-path", "server.servlet.contextPath")
	if servlet, at := s.Take("server.servlet-path", "server.servletPath"); at != "" && at != "/" {
		s.Refusef(servlet, "the routes are right below the context path here: take it out, and write both together as server.context-path")
	}
	switch path = strings.TrimSuffix(path, "/"); {
	case path == "":
		return "/"
	case path[0] != '/':
		s.Refusef(key, "%q: want a path that begins with a slash, such as %s", path, shippedPath)
	}
	return path
}

func list(s string) []string {
	var all []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// YAML returns the block of hapax's configuration that does the same, without the
// passwords: it names the file that holds them, or tells where to put them if that is
// empty.
func (c Config) YAML(passwordFile string) string {
	var b strings.Builder
	b.WriteString(c.notes + "compat:\n  tinyid:\n    databases:\n")
	for _, url := range c.Databases {
		fmt.Fprintf(&b, "      - %s\n", moves.Quote(url))
	}
	switch {
	case passwordFile != "":
		fmt.Fprintf(&b, "    password_file: %s\n", moves.Quote(passwordFile))
	case c.PasswordLines() != "":
		b.WriteString("    # The passwords are not shown: put them into a file that password_file names, a line\n    # for each database; or one for all into the variable HAPAX_TINYID_PASSWORD.\n")
	}
	b.WriteString(c.door())
	return b.String()
}

// door returns the lines of YAML that say where the routes are.
func (c Config) door() string {
	at := ""
	if path := cmp.Or(c.ContextPath, shippedPath); path != shippedPath {
		at = "    context_path: " + moves.Quote(path) + "\n"
	}
	return at + fmt.Sprintf("    http: 127.0.0.1:%d\n", cmp.Or(c.Port, shippedPort))
}

// NativeYAML returns the block that serves the same routes at the same address from native
// tags, with the hashes of the tokens in tiny_id_token.
func (c Config) NativeYAML(ctx context.Context, s *Store) (string, error) {
	hashes, err := s.tokenHashes(ctx)
	if err != nil {
		return "", err
	}
	if len(hashes) == 0 {
		return "", fmt.Errorf("%w: tiny_id_token has no tokens: nobody could call", hapax.ErrInvalidArgument)
	}
	var b strings.Builder
	b.WriteString("compat:\n  tinyid:\n" + c.door() + "    tokens:\n")
	for _, bizType := range slices.Sorted(maps.Keys(hashes)) {
		fmt.Fprintf(&b, "      %s:\n", moves.Quote(bizType))
		for _, h := range slices.Sorted(maps.Keys(hashes[bizType])) {
			fmt.Fprintf(&b, "        - %q\n", h)
		}
	}
	return b.String(), nil
}
