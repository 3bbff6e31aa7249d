package respapi

import "strings"

// A numberForm is how numbers above 2^53 - 1 go to a client in replies that are
// integers in Redis. Smaller ones are integers always.
type numberForm uint8

const (
	formUnknown numberForm = iota // an integer, or text, as the options say for clients that are not known
	formInteger                   // of 64 bits
	formText
)

// lossy are the clients that read integers as floating point numbers with their
// defaults, exact those that keep all 64 bits: by the name that a client gives with
// CLIENT SETINFO, in lower case.
var (
	lossy = map[string]bool{"ioredis": true, "node-redis": true}
	exact = map[string]bool{
		"redis-py": true, "go-redis": true, "jedis": true, "lettuce": true, "redisson": true,
		"se.redis": true, "nredisstack": true, "redis-rs": true, "redis-rb": true, "hiredis": true,
	}
)

// formFor returns how a client of that name takes large numbers. A name can have
// something in brackets at its end, which tells what is built on the client.
func formFor(library string) numberForm {
	name, _, _ := strings.Cut(strings.ToLower(library), "(")
	switch {
	case lossy[name]:
		return formText
	case exact[name]:
		return formInteger
	}
	return formUnknown
}

// number replies a number that was issued.
func (c *conn) number(v int64) {
	if isSafe(v) || c.form == formInteger {
		c.b.out = appendInt(c.b.out, v)
		return
	}
	c.largeNumber(v)
}

func (c *conn) largeNumber(v int64) {
	if c.form == formUnknown && !c.srv.opts.LargeAsText {
		c.form = formInteger
		if c.srv.warned.CompareAndSwap(false, true) {
			c.srv.opts.Logger.Warn("a number above 2^53 went as an integer to a Redis client that is not known to keep it whole: in JavaScript and Lua it is rounded, and two of them become the same. Have such clients use HAPAX.NEXT, or set resp_large_numbers: text; this is logged once",
				"address", c.net.RemoteAddr().String(), "client", c.library, "number", v)
		}
	}
	c.b.out = appendNumber(c.b.out, v, c.form != formInteger)
}
