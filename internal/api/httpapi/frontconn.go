package httpapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/hangup"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

// A frontConn is what a connection of a front keeps.
type frontConn struct {
	api     *restAPI
	life    context.Context
	nc      net.Conn
	address string // at the other end
	conn    *auth.Conn
	client  *hangup.Context // ends when the client leaves
	moved   time.Time       // when the deadlines were last moved on

	routes  frontRoutes
	secured *tls.ConnectionState // nil: without TLS

	caller *auth.Caller // who showed the token last; nil before
	shown  []byte       // the Authorization header of that
	tag    string       // the tag that was asked for last, which the caller may use
	host   []byte       // the Host that was found to be good

	told   [2]tally // of a round of answers, for one number and for several
	fails  int      // answers that were errors
	rounds uint

	out    []byte
	waited bool // the last request had to
	now    time.Time
	date   []byte // as a header, of the second
	sec    int64
}

func newFrontConn(life context.Context, api *restAPI, nc net.Conn, conn *auth.Conn) *frontConn {
	c := &frontConn{api: api, life: auth.NewConnContext(life, conn), nc: nc, address: nc.RemoteAddr().String(), conn: conn}
	c.calledBy(nil)
	return c
}

// calledBy notes the caller of the requests from here on.
func (c *frontConn) calledBy(caller *auth.Caller) {
	c.caller, c.tag = caller, ""
	c.client = hangup.NewContext(auth.NewContext(c.life, caller, c.address), gate.Bare(c.nc))
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
	c.out, c.now = c.out[:0], time.Now()
	if sec := c.now.Unix(); sec != c.sec {
		c.sec = sec
		c.date = c.now.UTC().AppendFormat(append(c.date[:0], "Date: "...), http.TimeFormat)
		c.date = append(c.date, '\r', '\n')
	}
	rest, more = c.each(in)
	c.count()
	// A wait makes the round's clock old, and deadlines due that were moved by it.
	if c.waited {
		c.now, c.moved, c.waited = time.Now(), time.Time{}, false
	}
	return rest, more
}

// count adds a round to the metrics: the clock is read for one round in many.
func (c *frontConn) count() {
	c.rounds++
	if c.api == nil {
		return // routes count themselves
	}
	for i, route := range [...]*health.Route{c.api.next, c.api.ids} {
		if t := c.told[i]; t.all > 0 {
			route.Served(t.all, t.failed)
			if c.rounds%health.Every == 0 {
				route.Took(time.Since(c.now).Seconds())
			}
			c.told[i] = tally{}
		}
	}
}

// each answers one request after the other, up to one that had to wait: what is answered
// is written then.
func (c *frontConn) each(in []byte) (rest []byte, more bool) {
	for len(in) > 0 {
		if len(c.out) >= frontAnswers {
			return in, true
		}
		size := c.one(in)
		if size == 0 {
			break
		}
		in = in[size:]
		c.waited = c.client.Rest()
		if c.client.HasLeft() {
			return nil, false
		}
		if c.waited {
			return in, true
		}
	}
	return in, false
}

// one answers the request at the front of a buffer, and returns its length: 0 if it is not
// one for the front.
func (c *frontConn) one(in []byte) (size int) {
	r, size := c.match(in)
	if size == 0 {
		return c.routed(in)
	}
	if !c.enter(r) {
		return 0
	}
	defer c.caller.End() // also where a plugin panics, which ends the connection alone
	which, fails := 0, c.fails
	if r.ids {
		which = 1
	}
	c.issue(r)
	c.told[which].all++
	c.told[which].failed += c.fails - fails
	return size
}

// enter reports whether the caller may make the request, and counts it
// until End. Revoked and expired tokens are found by Begin, with each request.
func (c *frontConn) enter(r frontRequest) bool {
	policy := c.api.opts.Policy
	if policy == nil {
		c.conn.Vouch() // for TLS, which has asked for a certificate if one is needed
		return true
	}
	if c.caller == nil || !bytes.Equal(r.authorization, c.shown) {
		var shown []string
		if r.authorization != nil {
			shown = []string{string(r.authorization)}
		}
		caller, err := policy.Who(c.life, shown)
		if err != nil || c.conn.Use(caller) != nil {
			return false
		}
		c.calledBy(caller)
		// The buffer is read into again.
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
	goodHead = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nServer: " + build.Product() + "\r\nContent-Type: "
	textHead = goodHead + typeText[0] + "\r\n"
	jsonHead = goodHead + typeJSON[0] + "\r\n"
)

// issue answers with the numbers of a request, or with the error.
func (c *frontConn) issue(r frontRequest) {
	switch {
	case r.code:
		c.codes(r)
	case r.count == 1 && !r.json && !r.line:
		c.next(r.tag)
	default:
		c.several(r)
	}
}

// next answers with one bare number.
func (c *frontConn) next(tag []byte) {
	id, err := c.api.svc.NextBytes(c.client, tag)
	if err != nil {
		c.fail(err)
		return
	}
	var digits [20]byte
	c.good(textHead, id.Append(digits[:0]))
}

// several answers with numbers, in JSON or one a line.
func (c *frontConn) several(r frontRequest) {
	s := scratches.Get().(*scratch)
	defer s.release()
	if cap(s.ids) < r.count {
		s.ids = make([]hapax.ID, r.count)
	}
	ids := s.ids[:r.count]
	if _, err := c.api.svc.NextN(c.client, c.named(r.tag), ids); err != nil {
		c.fail(err)
		return
	}
	if r.json {
		s.buf = appendJSON(s.buf[:0], ids)
		c.good(jsonHead, s.buf)
		return
	}
	s.buf = appendLines(s.buf[:0], ids)
	c.good(textHead, s.buf)
}

// codes answers with the texts that show numbers.
func (c *frontConn) codes(r frontRequest) {
	issued, err := c.api.svc.NextCodes(c.client, c.named(r.tag), r.count)
	switch {
	case err != nil:
		c.fail(err)
	case r.json:
		c.good(jsonHead, codesJSON(issued))
	default:
		c.good(textHead, codesText(issued))
	}
}

// named returns the name of a tag, which is the last one's most of the time.
func (c *frontConn) named(tag []byte) string {
	if c.tag != string(tag) {
		c.tag = string(tag)
	}
	return c.tag
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
	// The client is there, whatever else has ended the context: the error counts.
	c.api.fail(&w, (&http.Request{}).WithContext(context.WithoutCancel(c.client)), err)
	c.write(&w)
}

// write puts a recorded answer into out.
func (c *frontConn) write(w *recorded) {
	// As net/http does for a handler that tells no type.
	if w.header["Content-Type"] == nil && len(w.body) > 0 {
		w.header.Set("Content-Type", http.DetectContentType(w.body))
	}
	w.header.Set("Content-Length", strconv.Itoa(len(w.body)))
	status := max(w.status, http.StatusOK)
	b := bytes.NewBuffer(c.out)
	fmt.Fprintf(b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	b.Write(c.date)
	_ = w.header.Write(b) // to memory
	b.WriteString("\r\n")
	b.Write(w.body)
	c.out = b.Bytes()
}

// recorded is a response in memory.
type recorded struct {
	header http.Header
	status int // 0: that is all right
	body   []byte
}

func (w *recorded) Header() http.Header { return w.header }

func (w *recorded) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorded) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p...)
	return len(p), nil
}
