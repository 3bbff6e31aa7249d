package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/peer"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// A frontConn is what a connection of a front keeps.
type frontConn struct {
	api    *restAPI
	life   context.Context
	nc     net.Conn
	conn   *auth.Conn
	client *peer.Context // ends when the client leaves
	moved  time.Time     // when the deadlines were last moved on

	caller *auth.Caller // who showed the token last; nil before
	shown  []byte       // the Authorization header of that
	tag    string       // the tag that was asked for last, which the caller may use
	host   []byte       // the Host that was found to be good

	told   [2]tally // of a round of answers, for one number and for several
	fails  int      // answers that were errors
	rounds uint

	out  []byte
	now  time.Time
	date []byte // as a header, of the second
	sec  int64
}

func newFrontConn(life context.Context, api *restAPI, nc net.Conn, conn *auth.Conn) *frontConn {
	c := &frontConn{api: api, life: auth.NewConnContext(life, conn), nc: nc, conn: conn}
	c.calledBy(nil)
	return c
}

// calledBy notes who makes the requests from here on.
func (c *frontConn) calledBy(caller *auth.Caller) {
	c.caller, c.tag = caller, ""
	c.client = peer.NewContext(auth.NewContext(c.life, caller, c.nc.RemoteAddr().String()), gate.Bare(c.nc))
}

func (c *frontConn) close() {
	c.client.Rest()
	c.conn.Close()
}

// A tally is how many requests were answered, and how many of them with an error.
type tally struct{ all, failed int }

// answer puts the answers to requests into out, and returns what comes after them, and
// whether the next one may be the front's: out is long enough.
func (c *frontConn) answer(in []byte) (rest []byte, more bool) {
	if cap(c.out) > 2*frontAnswers {
		c.out = nil
	}
	c.out, c.now = c.out[:0], time.Now()
	if sec := c.now.Unix(); sec != c.sec {
		c.sec = sec
		c.date = c.now.UTC().AppendFormat(append(c.date[:0], "Date: "...), http.TimeFormat)
		c.date = append(c.date, '\r', '\n')
	}
	rest, more = c.each(in)
	c.count()
	return rest, more
}

// count adds a round to the metrics: the clock is read for one round in many.
func (c *frontConn) count() {
	c.rounds++
	for i, route := range [...]*service.Route{c.api.next, c.api.ids} {
		if t := c.told[i]; t.all > 0 {
			route.Served(t.all, t.failed)
			if c.rounds%service.Every == 0 {
				route.Took(time.Since(c.now).Seconds())
			}
			c.told[i] = tally{}
		}
	}
}

// each answers one request after the other.
func (c *frontConn) each(in []byte) (rest []byte, more bool) {
	for len(in) > 0 {
		if len(c.out) >= frontAnswers {
			return in, true
		}
		r, size := c.match(in)
		if size == 0 || !c.enter(r) {
			break
		}
		which, fails := 0, c.fails
		if r.count == 0 {
			c.next(r.tag)
		} else {
			which = 1
			c.several(r.tag, r.count)
		}
		c.told[which].all++
		c.told[which].failed += c.fails - fails
		c.caller.End()
		in = in[size:]
		if c.client.Rest(); c.client.HasLeft() {
			return nil, false
		}
	}
	return in, false
}

// enter reports whether the request is one of somebody who may make it, and counts it
// until End. Revoked and expired tokens are found by Begin, with each request.
func (c *frontConn) enter(r frontRequest) bool {
	policy := c.api.opts.Policy
	if policy == nil {
		return true
	}
	if c.caller == nil || !bytes.Equal(r.authorization, c.shown) {
		var shown []string
		if r.authorization != nil {
			shown = []string{string(r.authorization)}
		}
		caller, err := policy.Bearer(shown)
		if err != nil || c.conn.Use(caller) != nil {
			return false
		}
		c.calledBy(caller)
		c.shown = bytes.Clone(r.authorization)
	}
	if string(r.tag) != c.tag {
		tag := string(r.tag)
		if c.caller.Allow(auth.Issue, tag) != nil {
			return false
		}
		c.tag = tag
	}
	return c.caller.Begin() == nil
}

var (
	goodHead   = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nServer: " + build.Product() + "\r\nContent-Type: "
	numberHead = goodHead + typeText[0] + "\r\n"
	jsonHead   = goodHead + typeJSON[0] + "\r\n"
)

// next answers with one number, or with why there is none.
func (c *frontConn) next(tag []byte) {
	id, err := c.api.svc.NextBytes(c.client, tag)
	if err != nil {
		c.fail(err)
		return
	}
	var digits [20]byte
	c.good(numberHead, id.Append(digits[:0]))
}

// several answers with that many numbers, or with why there are none.
func (c *frontConn) several(tag []byte, count int) {
	s := scratches.Get().(*scratch)
	defer s.release()
	if cap(s.ids) < count {
		s.ids = make([]hapax.ID, count)
	}
	ids := s.ids[:count]
	if c.tag != string(tag) {
		c.tag = string(tag)
	}
	if _, err := c.api.svc.NextN(c.client, c.tag, ids); err != nil {
		c.fail(err)
		return
	}
	s.buf = appendJSON(s.buf[:0], ids)
	c.good(jsonHead, s.buf)
}

// good puts a good answer into out.
func (c *frontConn) good(head string, body []byte) {
	c.out = append(append(c.out, head...), c.date...)
	c.out = strconv.AppendInt(append(c.out, "Content-Length: "...), int64(len(body)), 10)
	c.out = append(append(c.out, "\r\n\r\n"...), body...)
}

// fail answers as the route does.
func (c *frontConn) fail(err error) {
	c.fails++
	if c.client.HasLeft() {
		return // nobody is told
	}
	w := recorded{header: http.Header{"Cache-Control": noStore, "Server": product}}
	c.api.fail(&w, (&http.Request{}).WithContext(context.WithoutCancel(c.client)), err)
	b := bytes.NewBuffer(c.out)
	fmt.Fprintf(b, "HTTP/1.1 %d %s\r\n", w.status, http.StatusText(w.status))
	b.Write(c.date)
	w.header.Set("Content-Length", strconv.Itoa(len(w.body)))
	_ = w.header.Write(b) // to memory
	b.WriteString("\r\n")
	b.Write(w.body)
	c.out = b.Bytes()
}

// recorded is a response in memory.
type recorded struct {
	header http.Header
	status int
	body   []byte
}

func (w *recorded) Header() http.Header    { return w.header }
func (w *recorded) WriteHeader(status int) { w.status = status }

func (w *recorded) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}

// A frontRequest is one that the front may answer.
type frontRequest struct {
	tag           []byte
	count         int    // of numbers as JSON; 0: one bare number
	authorization []byte // the header's value; nil: there is none
}

var (
	frontGet      = []byte("GET /v1/tags/")
	frontNext     = []byte("/next")
	frontPost     = []byte("POST /v1/tags/")
	frontIDs      = []byte("/ids")
	frontCount    = []byte("?count=")
	frontProtocol = []byte(" HTTP/1.1\r\n")
)

// match returns the request at the front of a buffer, and its length: 0 if it is not
// all there, or not one for the front. A request with a body is none, because no header
// of a body is harmless but that which says that there is none.
func (c *frontConn) match(in []byte) (r frontRequest, size int) {
	prefix, route, accepts := frontGet, frontNext, "text/plain"
	if bytes.HasPrefix(in, frontPost) {
		prefix, route, accepts, r.count = frontPost, frontIDs, jsonMedia, 1
	}
	rest, ok := bytes.CutPrefix(in, prefix)
	if !ok {
		return r, 0
	}
	n := 0
	for n < len(rest) && isPlain(rest[n]) {
		n++
	}
	r.tag = rest[:n]
	if rest, ok = bytes.CutPrefix(rest[n:], route); !ok || n == 0 || n > 128 || r.tag[0] == '.' {
		return r, 0
	}
	if after, counted := bytes.CutPrefix(rest, frontCount); counted && r.count > 0 {
		if r.count, rest = leadingCount(after); r.count < 1 || r.count > c.api.svc.MaxCount() {
			return r, 0
		}
	}
	if rest, ok = bytes.CutPrefix(rest, frontProtocol); !ok {
		return r, 0
	}
	at := len(in) - len(rest)
	for hosts, lengths := 0, 0; ; {
		end := bytes.IndexByte(in[at:], '\n')
		if end < 1 || in[at+end-1] != '\r' {
			return r, 0
		}
		line := in[at : at+end-1]
		at += end + 1
		if len(line) == 0 {
			if hosts != 1 {
				return r, 0
			}
			return r, at
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return r, 0
		}
		for _, b := range line { // a control byte could end a line elsewhere, and others fold to letters
			if (b < ' ' || b > '~') && b != '\t' {
				return r, 0
			}
		}
		name, value := line[:colon], bytes.Trim(line[colon+1:], " \t")
		switch {
		case bytes.EqualFold(name, []byte("Host")):
			if hosts++; !c.isGood(value) {
				return r, 0
			}
		case bytes.EqualFold(name, []byte("Accept")):
			if string(value) != "*/*" && string(value) != accepts {
				return r, 0
			}
		case bytes.EqualFold(name, []byte("Authorization")):
			if r.authorization != nil || len(value) == 0 {
				return r, 0
			}
			r.authorization = value
		case bytes.EqualFold(name, []byte("Content-Length")):
			if lengths++; string(value) != "0" || r.count == 0 || lengths > 1 {
				return r, 0
			}
		case bytes.EqualFold(name, []byte("Connection")):
			if !bytes.EqualFold(value, []byte("keep-alive")) {
				return r, 0
			}
		case bytes.EqualFold(name, []byte("User-Agent")), bytes.EqualFold(name, []byte("Accept-Encoding")), bytes.EqualFold(name, []byte("Accept-Language")):
		default:
			return r, 0
		}
	}
}

// leadingCount returns the number that digits begin with, of up to six without a leading
// zero, and what comes after them; 0 if there is none.
func leadingCount(in []byte) (n int, rest []byte) {
	at := 0
	for at < len(in) && at < 6 && '0' <= in[at] && in[at] <= '9' {
		n = 10*n + int(in[at]-'0')
		at++
	}
	if at == 0 || in[0] == '0' {
		return 0, in
	}
	return n, in[at:]
}

// isPlain reports whether a byte of a path stands for itself.
func isPlain(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '-' || b == '_' || b == '.' || b == '~'
}

// isGood reports whether a Host is one that the listener takes as it is.
func (c *frontConn) isGood(host []byte) bool {
	if len(host) > 0 && bytes.Equal(host, c.host) {
		return true
	}
	if len(host) == 0 {
		return false
	}
	for _, b := range host {
		if !isPlain(b) && b != ':' && b != '[' && b != ']' {
			return false
		}
	}
	if c.api.hosts != nil && !c.api.hosts(string(host)) {
		return false
	}
	c.host = bytes.Clone(host)
	return true
}
