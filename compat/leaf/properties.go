package leaf

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Config is what leaf.properties says, in hapax's terms.
type Config struct {
	Name      string // leaf.name
	Segment   bool   // whether the segment mode is on
	Table     string // mysql://user@host:port/database
	Password  Secret // of the table's account
	Snowflake bool   // whether the snowflake mode is on
	Tree      string // zk://host:port,…
	Port      int    // leaf.snowflake.port

	notes string // comments on the file's other settings
}

// A Secret is a text that formatting hides.
type Secret = moves.Secret

// TableURL returns the table's URL with the password.
func (c Config) TableURL() string { return moves.JoinPassword(c.Table, c.Password) }

// SetTable sets the table by a URL that may hold the password.
func (c *Config) SetTable(rawURL string) (err error) {
	c.Segment = true
	c.Table, c.Password, err = moves.SplitPassword("table", rawURL)
	return err
}

// ReadProperties reads leaf.properties, of the server or of the starter. Each setting is
// carried over, or named in the comments of YAML, or refused.
func ReadProperties(r io.Reader) (Config, error) {
	p, err := moves.Properties(r)
	if err != nil {
		return Config{}, err
	}
	s := moves.NewSettings(new(moves.Account), p)
	c, err := readSettings(s)
	if err = s.Beside(err); err == nil {
		err = s.Finish("leaf.", "leaf.name, leaf.segment.enable, leaf.jdbc.url, username and password, or leaf.segment.url, username and password, "+
			"leaf.snowflake.enable, leaf.snowflake.zk.address or leaf.snowflake.address, and leaf.snowflake.port")
	}
	c.notes = s.Comments()
	return c, err
}

// The names of the settings of the two modes, of the server and of the starter.
var (
	nameKey       = "leaf.name"
	tableKeys     = [][]string{{"leaf.jdbc.url", "leaf.segment.url"}, {"leaf.jdbc.username", "leaf.segment.username"}, {"leaf.jdbc.password", "leaf.segment.password"}}
	addressKeys   = []string{"leaf.snowflake.zk.address", "leaf.snowflake.address"}
	portKeys      = []string{"leaf.snowflake.port", "leaf.snowflake.zk.port"}
	ofSegments    = "Without effect, of the segment mode, which is off"
	ofSnowflakes  = "Without effect, of the snowflake mode, which is off"
	enableSegment = "leaf.segment.enable"
	enableFlake   = "leaf.snowflake.enable"
)

func readSettings(s *moves.Settings) (c Config, err error) {
	starter := ofStarter(s)
	if c.Segment, err = mode(s, enableSegment, starter, tableKeys[0]); err != nil {
		return c, err
	}
	if c.Snowflake, err = mode(s, enableFlake, starter, addressKeys); err != nil {
		return c, err
	}
	if !c.Segment && !c.Snowflake {
		s.Refusef(enableSegment, "neither it nor %s is true: a server has nothing to go on with", enableFlake)
	}
	if c.Segment {
		field, jdbc := s.Take(tableKeys[0]...)
		_, user := s.Take(tableKeys[1]...)
		password := s.TakeSecret(tableKeys[2]...)
		d, err := moves.ReadDatabase(s.Account, field, jdbc, user, password)
		if err != nil {
			return c, err
		}
		c.Table, c.Password = d.URL, d.Password
	} else {
		s.Idle(ofSegments, slices.Concat(tableKeys...)...)
	}
	if !c.Snowflake {
		s.Idle(ofSnowflakes, slices.Concat([]string{nameKey}, addressKeys, portKeys)...)
		return c, nil
	}
	if _, c.Name = s.Take(nameKey); c.Name == "" {
		return c, &hapax.ValueError{Field: nameKey, Value: "", Allowed: "the service's name in the tree", Err: hapax.ErrInvalidArgument}
	}
	field, address := s.Take(addressKeys...)
	c.Tree = "zk://" + strings.ReplaceAll(address, " ", "")
	if _, err := parseTreeURL(c.Tree); err != nil || address == "" {
		return c, &hapax.ValueError{Field: field, Value: address, Allowed: "host:port[,host:port…]", Err: hapax.ErrInvalidArgument}
	}
	field, port := s.Take(portKeys...)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return c, &hapax.ValueError{Field: field, Value: port, Allowed: "1 to 65535", Err: hapax.ErrInvalidArgument}
	}
	c.Port = int(n)
	return c, nil
}

// ofStarter reports whether the settings are those of the starter for Spring Boot: it has
// names of its own, and the file has none of the server's.
func ofStarter(s *moves.Settings) bool {
	starter := false
	for _, keys := range slices.Concat(tableKeys, [][]string{addressKeys}) {
		if s.Value(keys[0]) != "" {
			return false
		}
		starter = starter || s.Value(keys[1]) != ""
	}
	return starter
}

// mode reports whether a mode is on. Where the file does not say, it is on in Leaf's server
// and off in its starter.
func mode(s *moves.Settings, field string, starter bool, address []string) (bool, error) {
	allowed := "true or false"
	switch _, value := s.Take(field); {
	case strings.EqualFold(value, "true"):
		return true, nil
	case strings.EqualFold(value, "false"):
		return false, nil
	case value == "" && starter:
		s.Note("Off, as in Leaf's starter where the file does not say", field)
		return false, nil
	case value == "" && (s.Value(address[0]) != "" || s.Value(address[1]) != ""):
		s.Note("On, as in Leaf's server where the file does not say", field)
		return true, nil
	case value == "":
		allowed += "; without it the mode is on in Leaf's server, and there is no " + address[0] + " for it"
		fallthrough
	default:
		return false, &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
	}
}

// YAML returns the block of hapax's configuration that does the same, without the
// password: it names the file that holds it, or tells where to put it if that is
// empty.
func (c Config) YAML(passwordFile string) string {
	var b strings.Builder
	b.WriteString(c.notes + "compat:\n  leaf:\n")
	if c.Segment {
		fmt.Fprintf(&b, "    table: %s\n", moves.Quote(c.Table))
		switch {
		case passwordFile != "":
			fmt.Fprintf(&b, "    password_file: %s\n", moves.Quote(passwordFile))
		case c.Password != "":
			b.WriteString("    # The password is not shown: put it into the variable HAPAX_LEAF_PASSWORD, or\n    # into a file that password_file names.\n")
		}
	}
	if c.Snowflake {
		fmt.Fprintf(&b, "    tree: %s\n    name: %s\n    port: %d\n", moves.Quote(c.Tree), moves.Quote(c.Name), c.Port)
	}
	b.WriteString("    http: 127.0.0.1:8088\n    allow: []\n")
	return b.String()
}

// NativeYAML returns the block that serves the same routes from native tags, and that of a
// mode that is on alone: the numbers of the other one are somebody else's. from is the
// first worker ID that no Leaf has.
func (c Config) NativeYAML(from int64) string {
	var b strings.Builder
	b.WriteString("compat:\n  leaf:\n")
	if c.Segment {
		b.WriteString("    table: native\n")
	}
	if c.Snowflake {
		fmt.Fprintf(&b, "    tree: native\n    workers: %d-%d  # those below are Leaf's\n", from, workerIDs-1)
	}
	b.WriteString("    http: 127.0.0.1:8088\n    allow: []\n")
	return b.String()
}
