package respapi

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

// A command is one that clients may send.
type command struct {
	name    string // in lower case; a subcommand's is "client|id"
	arity   int    // arguments with the name; negative: at least so many
	summary string
	flags   []string
	key     int             // position of the tag among the arguments; 0: none
	needs   auth.Permission // for that tag, if there is one
	open    bool            // allowed before AUTH
	multi   multiRule       // inside MULTI
	run     func(c *conn, args [][]byte)
	sub     map[string]*command // subcommands by name, if it has some
}

// commands holds every command by its name in upper case.
var commands map[string]*command

func init() { // not a literal: COMMAND reads the table
	read, fast := []string{"readonly", "fast"}, []string{"loading", "stale", "fast"}
	commands = table("",
		&command{name: "incr", arity: 2, key: 1, needs: auth.Issue, run: (*conn).incr, flags: []string{"write", "denyoom", "fast"}, summary: "Issues the next number of a tag."},
		&command{name: "incrby", arity: 3, key: 1, needs: auth.Issue, run: (*conn).incrBy, flags: []string{"write", "denyoom", "fast"}, summary: "Issues n numbers in a row of a segment tag and returns the last."},
		&command{name: "get", arity: 2, key: 1, needs: auth.Show, run: (*conn).get, flags: read, summary: "Returns the last number of a tag that was issued here. Issues none."},
		&command{name: "hapax.next", arity: -2, key: 1, needs: auth.Issue, run: (*conn).next, flags: []string{"write", "denyoom", "fast"}, summary: "Issues one number of a tag, or with COUNT an array of n; as text above 2^53, or as TEXT or INT says."},
		&command{name: "hapax.code", arity: -2, key: 1, needs: auth.Issue, run: (*conn).code, flags: []string{"write", "denyoom", "fast"}, summary: "Issues one number of a tag and returns its code, or with COUNT an array of n."},
		&command{name: "hapax.parse", arity: -2, run: (*conn).parseID, flags: read, summary: "Tells what an ID says, by a layout's name or spec."},
		&command{name: "hapax.tags", arity: -1, needs: auth.List, run: (*conn).tags, flags: read, summary: "Returns the names of live tags, in byte order."},

		&command{name: "ping", arity: -1, run: (*conn).ping, flags: fast, summary: "Returns PONG, or its argument."},
		&command{name: "echo", arity: 2, run: (*conn).echo, flags: fast, summary: "Returns its argument."},
		&command{name: "multi", arity: 1, multi: atOnce, run: (*conn).multiBegin, flags: fast, summary: "Begins a transaction: what follows is carried out by EXEC."},
		&command{name: "exec", arity: 1, multi: atOnce, run: (*conn).exec, flags: fast, summary: "Carries out a transaction."},
		&command{name: "discard", arity: 1, multi: atOnce, run: (*conn).discard, flags: fast, summary: "Forgets a transaction."},
		&command{name: "hello", arity: -1, open: true, multi: never, run: (*conn).hello, flags: fast, summary: "Chooses the protocol's version and tells about the server."},
		&command{name: "auth", arity: -2, open: true, multi: never, run: (*conn).auth, flags: fast, summary: "Authenticates the connection."},
		&command{name: "select", arity: 2, run: (*conn).selectDB, flags: fast, summary: "Accepts database 0, the only one."},
		&command{name: "info", arity: -1, run: (*conn).info, flags: fast, summary: "Tells about the server."},
		&command{name: "reset", arity: 1, open: true, multi: atOnce, run: (*conn).reset, flags: fast, summary: "Makes the connection as new."},
		&command{name: "quit", arity: -1, open: true, multi: atOnce, run: (*conn).quit, flags: fast, summary: "Closes the connection."},
		&command{name: "client", arity: -2, flags: fast, summary: "Commands about this connection.", sub: table("client|",
			&command{name: "id", arity: 2, run: (*conn).clientID},
			&command{name: "getname", arity: 2, run: (*conn).clientGetName},
			&command{name: "setname", arity: 3, run: (*conn).clientSetName},
			&command{name: "setinfo", arity: 4, run: (*conn).clientSetInfo},
			&command{name: "info", arity: 2, run: (*conn).clientInfo},
			&command{name: "list", arity: -2, run: (*conn).clientInfo},
			&command{name: "no-evict", arity: 3, run: (*conn).onOff},
			&command{name: "no-touch", arity: 3, run: (*conn).onOff},
			&command{name: "help", arity: 2, run: help("id", "getname", "setname NAME", "setinfo lib-name|lib-ver VALUE", "info", "list", "no-evict on|off", "no-touch on|off")},
		)},
		&command{name: "command", arity: -1, run: (*conn).allCommands, flags: fast, summary: "Tells about commands.", sub: table("command|",
			&command{name: "count", arity: 2, run: (*conn).commandCount},
			&command{name: "docs", arity: -2, run: (*conn).commandDocs},
			&command{name: "info", arity: -2, run: (*conn).commandInfo},
			&command{name: "list", arity: -2, run: (*conn).commandList},
			&command{name: "help", arity: 2, run: help("count", "docs [NAME ...]", "info [NAME ...]", "list")},
		)},
		&command{name: "config", arity: -2, flags: fast, summary: "Shows settings.", sub: table("config|",
			&command{name: "get", arity: -3, run: (*conn).configGet},
			&command{name: "help", arity: 2, run: help("get NAME [NAME ...]")},
		)},
	)
}

// table indexes commands by name, and gives them the full one.
func table(of string, list ...*command) map[string]*command {
	byName := map[string]*command{}
	for _, cmd := range list {
		byName[strings.ToUpper(cmd.name)] = cmd
		cmd.name = of + cmd.name
	}
	return byName
}

// maxName is longer than every command's name.
const maxName = 16

// lookup finds a command by name, in whatever case.
func lookup(in map[string]*command, name []byte) *command {
	if len(name) > maxName {
		return nil
	}
	var upper [maxName]byte
	for i, c := range name {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	return in[string(upper[:len(name)])]
}

// fits reports whether n arguments are as many as the command takes.
func (cmd *command) fits(n int) bool { return n == cmd.arity || cmd.arity < 0 && n >= -cmd.arity }

// execute answers a command and those after it that run answers with it, if the
// caller may send it now.
func (c *conn) execute(args [][]byte, frame, after []byte) int {
	defer c.client.Rest()
	caller := c.caller // AUTH changes it
	if caller == nil {
		return c.run(args, frame, after)
	}
	err := caller.Begin()
	if errors.Is(err, api.ErrUnauthenticated) { // it was revoked: the client may show another
		c.distrust()
		return c.run(args, frame, after)
	}
	if err != nil {
		c.failWith(err)
		c.tx.spoil()
		return 1
	}
	defer caller.End()
	if caller.HasRate() {
		after = nil // each counts
	}
	return c.run(args, frame, after)
}

// run is perform, counted; of the runs of a connection one in many is measured.
func (c *conn) run(args [][]byte, frame, after []byte) int {
	c.runs++
	measured, errs := c.runs%health.Every == 0, c.errs
	var began time.Time
	if measured {
		began = time.Now()
	}
	n := c.perform(args, frame, after)
	if c.route != nil {
		if c.route.Served(n, c.errs-errs); measured {
			c.route.Took(time.Since(began).Seconds())
		}
	}
	return n
}

// perform answers a command and, if it is an INCR, those after it that are the
// same. It returns how many it answered. frame is the command as it was received, and
// after the bytes behind it.
func (c *conn) perform(args [][]byte, frame, after []byte) int {
	name := args[0]
	c.route = c.srv.routes[nil]
	if len(args) == 2 && len(name) == 4 && c.trusted && c.tx == nil && bytes.EqualFold(name, incrName) {
		c.route = c.srv.incr
		if err := c.caller.MayIssue(args[1]); err != nil {
			c.failWith(err)
			return 1
		}
		return c.incrRun(args[1], frame, after)
	}
	switch cmd := c.admit(args); {
	case cmd == nil:
		c.tx.spoil()
	case c.tx == nil || cmd.multi == atOnce:
		cmd.run(c, args)
		c.route = c.srv.routes[cmd] // EXEC has run others meanwhile
	case cmd.multi == never:
		c.fail("ERR " + strings.ToUpper(cmd.name) + " is not allowed between MULTI and EXEC")
		c.tx.spoil()
	default:
		c.enqueue(frame)
		c.route = nil // it counts when it is run
	}
	return 1
}

// admit returns the command that is asked for, if it is complete and the caller may
// use it; nil if it was answered with an error.
func (c *conn) admit(args [][]byte) *command {
	name := args[0]
	cmd := lookup(commands, name)
	switch {
	// What follows, which a web page has chosen, would be carried out as commands.
	case cmd == nil && isHTTPWord(name):
		c.over = true
		return nil
	case cmd == nil && c.trusted:
		c.failAs(codeUnknown, unknownCommand(name))
		return nil
	case !c.trusted && (cmd == nil || !cmd.open):
		c.failAs(api.ErrUnauthenticated.Code(), errNoAuth)
		return nil
	}
	if cmd.sub != nil && len(args) > 1 {
		sub := lookup(cmd.sub, args[1])
		if sub == nil {
			c.failAs(codeUnknown, unknownSubcommand(cmd.name, args[1]))
			return nil
		}
		cmd = sub
	}
	if !cmd.fits(len(args)) {
		c.fail(wrongArgs(cmd.name))
		return nil
	}
	if c.caller != nil {
		if err := c.caller.Allow(cmd.needs, cmd.tag(args)); err != nil {
			c.failWith(err)
			return nil
		}
	}
	return cmd
}

// tag returns the tag among a command's arguments.
func (cmd *command) tag(args [][]byte) string {
	if cmd.key == 0 {
		return ""
	}
	return string(args[cmd.key])
}

var incrName = []byte("INCR")

// fail replies an error about what the command says.
func (c *conn) fail(text string) { c.failAs(hapax.ErrInvalidArgument.Code(), text) }

// failAs replies an error, and counts it under a code.
func (c *conn) failAs(code hapax.Code, text string) {
	c.errs++
	c.srv.svc.Refused(API, code)
	c.b.out = appendError(c.b.out, text)
}

// failWith replies an error of the service.
func (c *conn) failWith(err error) {
	if c.client.HasLeft() {
		return // nobody is told
	}
	if c.srv.life.Err() != nil && errors.Is(err, context.Canceled) {
		c.failAs(hapax.ErrClosed.Code(), errStopping) // the wait was cut off
		return
	}
	c.errs++
	c.srv.svc.Failed(API, err)
	c.b.out = appendError(c.b.out, errorText(err))
}

func (c *conn) ok() { c.b.out = appendSimple(c.b.out, "OK") }

func (c *conn) bulk(text string) { c.b.out = appendBulk(c.b.out, text) }

func (c *conn) strings(list ...string) {
	c.b.out = appendArray(c.b.out, len(list))
	for _, s := range list {
		c.bulk(s)
	}
}

// sorted returns the commands in the order of their names.
func sorted() []*command {
	var list []*command
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		list = append(list, commands[name])
	}
	return list
}

// named returns the commands of those names; all, if there are none. One that
// does not exist is nil.
func named(names [][]byte) []*command {
	if len(names) == 0 {
		return sorted()
	}
	list := make([]*command, 0, len(names))
	for _, name := range names {
		list = append(list, lookup(commands, name))
	}
	return list
}

func (c *conn) allCommands([][]byte) { c.describe(sorted()) }

func (c *conn) commandInfo(args [][]byte) { c.describe(named(args[2:])) }

func (c *conn) commandCount([][]byte) { c.b.out = appendInt(c.b.out, int64(len(commands))) }

func (c *conn) commandList(args [][]byte) {
	if len(args) > 2 {
		c.fail(errSyntax)
		return
	}
	c.b.out = appendArray(c.b.out, len(commands))
	for _, cmd := range sorted() {
		c.bulk(cmd.name)
	}
}

// describe replies what COMMAND tells: name, arity, flags, where the keys are,
// and what there is none of here.
func (c *conn) describe(list []*command) {
	out := appendArray(c.b.out, len(list))
	for _, cmd := range list {
		if cmd == nil {
			if c.resp3 {
				out = appendNull(out, true)
			} else {
				out = append(out, "*-1\r\n"...)
			}
			continue
		}
		out = appendArray(out, 10)
		out = appendBulk(out, cmd.name)
		out = appendInt(out, int64(cmd.arity))
		out = appendArray(out, len(cmd.flags))
		for _, flag := range cmd.flags {
			out = appendSimple(out, flag)
		}
		for _, v := range []int{cmd.key, cmd.key, min(cmd.key, 1)} { // first, last, step
			out = appendInt(out, int64(v))
		}
		for range 4 { // categories, tips, key specifications, subcommands
			out = appendArray(out, 0)
		}
	}
	c.b.out = out
}

// commandDocs replies a map of summaries. Names that do not exist are left out.
func (c *conn) commandDocs(args [][]byte) {
	list := slices.DeleteFunc(named(args[2:]), func(cmd *command) bool { return cmd == nil })
	out := appendMap(c.b.out, len(list), c.resp3)
	for _, cmd := range list {
		out = appendBulk(out, cmd.name)
		out = appendMap(out, 2, c.resp3)
		out = appendBulk(out, "summary")
		out = appendBulk(out, cmd.summary)
		out = appendBulk(out, "group")
		out = appendBulk(out, "generic")
	}
	c.b.out = out
}

// help returns what answers HELP.
func help(lines ...string) func(*conn, [][]byte) {
	return func(c *conn, _ [][]byte) { c.strings(lines...) }
}
