package respapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// likeVersion is the version of Redis whose replies these are. Clients look at it
// to learn what they may send.
const likeVersion = "7.0.0"

func (c *conn) ping(args [][]byte) {
	switch len(args) {
	case 1:
		c.b.out = appendSimple(c.b.out, "PONG")
	case 2:
		c.b.out = appendBulk(c.b.out, args[1])
	default:
		c.fail(wrongArgs("ping"))
	}
}

func (c *conn) echo(args [][]byte) { c.b.out = appendBulk(c.b.out, args[1]) }

// hello answers HELLO [2|3 [AUTH user password] [SETNAME name]]. It changes
// nothing if any of it is wrong.
func (c *conn) hello(args [][]byte) {
	resp3, trusted, caller, name := c.resp3, c.trusted, c.caller, c.name
	if len(args) > 1 {
		switch v, err := strconv.ParseInt(string(args[1]), 10, 64); {
		case err != nil:
			c.fail(errNotProto)
			return
		case v != 2 && v != 3:
			c.fail(errNoProto)
			return
		default:
			resp3 = v == 3
		}
	}
	for rest := args[min(len(args), 2):]; len(rest) > 0; {
		switch {
		case len(rest) >= 3 && bytes.EqualFold(rest[0], []byte("AUTH")):
			if caller, trusted = c.authenticate(string(rest[1]), string(rest[2])); !trusted {
				return
			}
			rest = rest[3:]
		case len(rest) >= 2 && bytes.EqualFold(rest[0], []byte("SETNAME")):
			if !isClientName(rest[1]) {
				c.fail(errClientName)
				return
			}
			name, rest = string(rest[1]), rest[2:]
		default:
			c.fail("ERR Syntax error in HELLO option '" + string(rest[0][:min(len(rest[0]), maxShownArgs)]) + "'")
			return
		}
	}
	if !trusted {
		c.fail(errHelloNoAuth)
		return
	}
	c.resp3, c.trusted, c.caller, c.name = resp3, trusted, caller, name
	c.vouch()
	out := appendMap(c.b.out, 8, c.resp3)
	proto := int64(2)
	if c.resp3 {
		proto = 3
	}
	out = appendBulk(appendBulk(out, "server"), "hapax")
	out = appendBulk(appendBulk(out, "version"), likeVersion)
	out = appendInt(appendBulk(out, "proto"), proto)
	out = appendInt(appendBulk(out, "id"), c.id)
	out = appendBulk(appendBulk(out, "mode"), "standalone")
	out = appendBulk(appendBulk(out, "role"), "master")
	out = appendArray(appendBulk(out, "modules"), 0)
	out = appendBulk(appendBulk(out, "hapax_version"), c.srv.opts.Version)
	c.b.out = out
}

// auth answers AUTH [user] password.
func (c *conn) auth(args [][]byte) {
	user, password := "default", args[len(args)-1]
	switch {
	case len(args) > 3:
		c.fail(errSyntax)
		return
	case len(args) == 3:
		user = string(args[1])
	}
	if caller, ok := c.authenticate(user, string(password)); ok {
		c.trusted, c.caller = true, caller
		c.vouch()
		c.ok()
	}
}

// distrust makes the connection one without a token.
func (c *conn) distrust() {
	caller, err := c.srv.opts.Policy.Caller("")
	// The certificate is the connection's, and stays good without the token.
	if secure, ok := c.net.(*tls.Conn); ok && err != nil {
		state := secure.ConnectionState()
		if known := c.srv.opts.Policy.Certified(&state); known != nil {
			if caller, err = known, known.Spend(); err == nil {
				err = c.link.Use(known)
			}
		}
	}
	c.trusted, c.caller = err == nil, caller
}

// authenticate returns the holder of a token. It returns false, and has answered, if
// nobody has, under that name.
func (c *conn) authenticate(user, token string) (*auth.Caller, bool) {
	if !c.srv.opts.Policy.HasTokens() {
		c.fail(errNoPassword)
		return nil, false
	}
	caller, err := c.srv.opts.Policy.From(c.client, c.net.RemoteAddr().String(), token)
	// As for a wrong token: the reply must not tell that this one is good under another name.
	if err == nil && user != "default" && user != caller.Name() {
		err = api.ErrUnauthenticated
	}
	if err == nil {
		err = c.link.Use(caller)
	}
	if err != nil {
		c.srv.svc.Attempted(auth.NewContext(c.srv.life, caller, c.net.RemoteAddr().String()), "AUTH", err)
		c.failWith(err)
		// A good token that is used too much is no guess.
		if errors.Is(err, api.ErrUnauthenticated) {
			c.guesses++
		}
		if c.guesses >= maxGuesses {
			c.over, c.linger = true, true
		}
		return nil, false
	}
	c.guesses = 0
	return caller, true
}

// context returns the context of calls on the service: the caller's name, and its
// where.
func (c *conn) context() context.Context {
	if c.origin == nil || auth.FromContext(c.origin) != c.caller {
		c.origin = auth.NewContext(c.client, c.caller, c.net.RemoteAddr().String())
	}
	return c.origin
}

func (c *conn) selectDB(args [][]byte) {
	switch n, err := strconv.Atoi(string(args[1])); {
	case err != nil:
		c.fail(errDBIndex)
	case n != 0:
		c.fail(errDBRange)
	default:
		c.ok()
	}
}

func (c *conn) quit([][]byte) {
	c.ok()
	c.over, c.linger = true, true
}

// reset makes the connection as it began.
func (c *conn) reset([][]byte) {
	c.distrust()
	c.endTx()
	c.resp3, c.name = false, ""
	c.b.out = appendSimple(c.b.out, "RESET")
}

func (c *conn) clientID([][]byte) { c.b.out = appendInt(c.b.out, c.id) }

func (c *conn) clientGetName([][]byte) {
	if c.name == "" {
		c.b.out = appendNull(c.b.out, c.resp3)
		return
	}
	c.bulk(c.name)
}

func (c *conn) clientSetName(args [][]byte) {
	if !isClientName(args[2]) {
		c.fail(errClientName)
		return
	}
	c.name = string(args[2])
	c.ok()
}

// maxClientName is how many bytes of a client's name for itself are kept.
const maxClientName = 256

func isClientName(name []byte) bool {
	for _, b := range name {
		if b < '!' || b > '~' {
			return false
		}
	}
	return len(name) <= maxClientName
}

func (c *conn) clientSetInfo(args [][]byte) {
	var into *string
	switch strings.ToLower(string(args[2])) {
	case "lib-name":
		into = &c.library
	case "lib-ver":
		into = &c.version
	default:
		c.fail("ERR Unrecognized option '" + string(args[2][:min(len(args[2]), maxShownArgs)]) + "'")
		return
	}
	if !isClientName(args[3]) {
		c.fail("ERR " + strings.ToLower(string(args[2])) + " cannot contain spaces, newlines or special characters.")
		return
	}
	*into = string(args[3])
	c.form = formFor(c.library)
	c.ok()
}

// clientInfo tells about this connection. CLIENT LIST tells of no other one. The
// zeros are there for clients that look for every field that Redis has.
func (c *conn) clientInfo([][]byte) {
	proto, multi := 2, -1
	if c.resp3 {
		proto = 3
	}
	if c.tx != nil {
		multi = c.tx.count
	}
	c.b.out = appendText(c.b.out, fmt.Sprintf("id=%d addr=%s laddr=%s fd=0 name=%s age=%d idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=%d"+
		" qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd=client|info user=default redir=-1 resp=%d lib-name=%s lib-ver=%s server=hapax server-ver=%s\n",
		c.id, c.net.RemoteAddr(), c.net.LocalAddr(), c.name, int64(time.Since(c.since).Seconds()), multi, proto, c.library, c.version, c.srv.opts.Version), c.resp3)
}

func (c *conn) onOff(args [][]byte) {
	if !bytes.EqualFold(args[2], []byte("on")) && !bytes.EqualFold(args[2], []byte("off")) {
		c.fail(errSyntax)
		return
	}
	c.ok()
}

// configGet replies the settings whose names match one of the patterns. Those of
// Redis are here that clients ask for.
func (c *conn) configGet(args [][]byte) {
	settings := [][2]string{
		{"appendonly", "no"},
		{"databases", "1"},
		{"maxclients", strconv.Itoa(c.srv.opts.MaxConnections)},
		{"save", ""},
		{"timeout", strconv.FormatInt(int64(c.srv.opts.IdleTimeout/time.Second), 10)},
	}
	var found [][2]string
	for _, s := range settings {
		for _, pattern := range args[2:] {
			// Of a long pattern with many stars, the comparison alone would take a while.
			if len(pattern) > maxShownArgs {
				continue
			}
			if ok, err := path.Match(strings.ToLower(string(pattern)), s[0]); ok && err == nil {
				found = append(found, s)
				break
			}
		}
	}
	c.b.out = appendMap(c.b.out, len(found), c.resp3)
	for _, s := range found {
		c.bulk(s[0])
		c.bulk(s[1])
	}
}

// info tells about the server, in sections by name; all, if none is asked for.
func (c *conn) info(args [][]byte) {
	s := c.srv
	s.mu.Lock()
	clients := len(s.conns)
	s.mu.Unlock()
	uptime := int64(time.Since(s.started).Seconds())
	sections := []struct{ name, text string }{
		{"Server", fmt.Sprintf("server_name:hapax\r\nhapax_version:%s\r\nredis_version:%s\r\nredis_mode:standalone\r\nprocess_id:%d\r\nuptime_in_seconds:%d\r\nuptime_in_days:%d\r\n", s.opts.Version, likeVersion, os.Getpid(), uptime, uptime/86400)},
		{"Clients", fmt.Sprintf("connected_clients:%d\r\nmaxclients:%d\r\n", clients, s.opts.MaxConnections)},
		{"Persistence", "loading:0\r\n"},
		{"Stats", fmt.Sprintf("total_connections_received:%d\r\nrejected_connections:%d\r\n", s.ids.Load(), s.refused.Load())},
		{"Replication", "role:master\r\nconnected_slaves:0\r\n"},
		{"Cluster", "cluster_enabled:0\r\n"},
		{"Keyspace", ""},
	}
	var text strings.Builder
	for _, section := range sections {
		if !isAsked(section.name, args[1:]) {
			continue
		}
		if text.Len() > 0 {
			text.WriteString("\r\n")
		}
		text.WriteString("# " + section.name + "\r\n" + section.text)
	}
	c.b.out = appendText(c.b.out, text.String(), c.resp3)
}

func isAsked(section string, names [][]byte) bool {
	for _, name := range names {
		switch n := strings.ToLower(string(name)); n {
		case "default", "all", "everything", strings.ToLower(section):
			return true
		}
	}
	return len(names) == 0
}
