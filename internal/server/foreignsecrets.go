package server

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/store/witness"
)

// The variables that hold the passwords of foreign tables. They are no flags, which
// every process of the machine could read, nor keys of the file.
const (
	LeafPasswordEnv = "HAPAX_LEAF_PASSWORD" //nolint:gosec // no password
)

// readPasswords finds the passwords that are given beside the URLs of foreign tables.
func (c *CompatConfig) readPasswords(env func(string) (string, bool)) error {
	if l := c.Leaf; l != nil {
		lines, err := passwordLines("compat.leaf.password_file", l.PasswordFile, LeafPasswordEnv, env)
		if err != nil {
			return err
		}
		if len(lines) > 1 {
			return compatError("leaf.password_file", "(more than one line)", "the password alone")
		}
		l.password = strings.Join(lines, "")
	}
	return nil
}

// passwordLines returns the lines of a file with passwords, or what a variable holds.
func passwordLines(field, file, variable string, env func(string) (string, bool)) ([]string, error) {
	given := ""
	if env != nil {
		given, _ = env(variable)
	}
	switch {
	case file == "" && given == "":
		return nil, nil
	case file == "":
		return []string{given}, nil
	case given != "":
		return nil, mount.Errorf(nil, "the password is given twice: in $%s and in %s; leave one out", variable, field)
	}
	text, err := mount.ReadBounded(file, maxPasswordBytes)
	if err != nil {
		return nil, mount.Errorf(err, "%s", field)
	}
	all := strings.TrimSuffix(string(text), "\n") // a line may be empty: an account without a password
	if strings.Trim(all, "\r\n") == "" {
		return nil, mount.Errorf(nil, "%s: %s is empty", field, file)
	}
	var lines []string
	for line := range strings.SplitSeq(all, "\n") {
		lines = append(lines, strings.TrimSuffix(line, "\r"))
	}
	return lines, nil
}

// withCompatPassword returns the URL of a foreign table with the password that was
// given beside it.
func withCompatPassword(field, tableURL, password string) (string, error) {
	if tableURL == "" || password == "" {
		return tableURL, nil
	}
	u, err := parseStoreURL(tableURL)
	switch {
	case err != nil:
		return "", compatError(field, "(not a URL of a database)", "mysql://USER@HOST:3306/DATABASE")
	case u.password:
		return "", compatError(field, "(a URL with a password)", "one without, since the password is given beside it, too")
	}
	u.user, u.hasUser = u.user+":"+strings.ReplaceAll(url.QueryEscape(password), "+", "%20"), true
	return u.String(), nil
}

// foreignWitness opens the witness of a foreign system's table, beside the node's own.
func (c Config) foreignWitness(system string) (*witness.Witness, error) {
	path := filepath.Join(c.Data, witnessFile)
	if c.Witness != "" {
		path = c.Witness
	}
	return witness.OpenFile(path + "-" + system)
}

// foreignWarn tells operators, and counts, what the driver of a foreign system warns of.
func foreignWarn(n *Node, log *slog.Logger, name string) func(code, message string) {
	return func(code, message string) {
		n.warned.add(code)
		log.Warn("a foreign system is not as it should be", "beside", name, "code", code, "detail", message)
	}
}

// firstContact asks a foreign system whether it can be used. One that does not answer
// may come later; what would be wrong then, too, keeps the server from starting. What
// waits for an operator's decision does not: the rest of the server goes on.
func firstContact(ctx context.Context, log *slog.Logger, name string, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	err := opener{}.explain(ping(ctx))
	switch {
	case err == nil:
	case errors.Is(err, hapax.ErrFenced):
		log.Error("nothing is granted: the table went back, or is not the right one", "beside", name, "err", err)
	case errors.Is(err, hapax.ErrStoreUnavailable):
		log.Warn("a foreign system cannot be used yet; it is tried again and again", "beside", name, "err", err)
	default:
		return err
	}
	return nil
}
