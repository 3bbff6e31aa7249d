// Package routes answers the HTTP routes of Meituan Leaf:
//
//	/api/segment/get/{key}
//	/api/snowflake/get/{key}
//	/decodeSnowflakeId?snowflakeId=N
//	/cache, /db
//
// with exactly the bytes of Leaf's answers, from whatever issues the numbers. The
// routes ask for no token, so they answer only loopback, unless Options.Allow names
// networks or Options.AllowAnyone is set; who calls is told by the address at the
// other end of the connection, and by no header.
package routes

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/internal/spring"
)

// An Issuer issues numbers of a tag.
type Issuer interface {
	Next(ctx context.Context, tag string) (hapax.ID, error)
}

// A Monitor tells what the pages /cache and /db show.
type Monitor interface {
	Cache(ctx context.Context) ([]CacheRow, error)
	Database(ctx context.Context) ([]DatabaseRow, error)
}

// A CacheRow is what is in hand of one tag: two segments, of which Pos says which
// is being issued from, 0 or 1.
type CacheRow struct {
	Name                string
	Init, Next          bool // a segment was loaded; the next one is there
	Pos                 int
	Value0, Max0, Step0 int64
	Value1, Max1, Step1 int64
}

// A DatabaseRow is one row of the table.
type DatabaseRow struct {
	Tag     string
	MaxID   int64
	Step    int64
	Updated string // as the table has it; empty if it is not known
}

// Options choose what is answered, and to whom.
type Options struct {
	// Segment and Snowflake issue; one that is nil is a mode that is switched off.
	Segment, Snowflake Issuer

	// TrySegment, if set, issues one of Segment's numbers that is in hand, and reports
	// whether there was one. It spares a call its deadline. A method of Segment is not
	// looked for: in an Issuer that embeds another, it would be the other's.
	TrySegment func(tag string) (hapax.ID, bool)

	// Monitor, if set, feeds /cache and /db; they are not found without it.
	Monitor Monitor

	// Allow lists the networks whose clients may call, besides loopback.
	Allow []netip.Prefix

	// AllowAnyone lets every client call.
	AllowAnyone bool

	// MaxWait bounds how long a call waits for a number; default 2 s.
	MaxWait time.Duration

	// CutAtDot has a key that is not found looked for once more without what
	// follows its last dot, which Leaf's framework cuts off.
	CutAtDot bool

	// ZeroWhenOff answers 200 and 0 where a mode is switched off, as Leaf does: a
	// trap, since every caller gets the same number.
	ZeroWhenOff bool

	// Failed, if set, is told of every error of an issuer that a client was told of.
	Failed func(error)

	// Location is the time zone of /decodeSnowflakeId; default time.Local.
	Location *time.Location

	now func() time.Time // for tests
}

const (
	segmentPrefix   = "/api/segment/get/"
	snowflakePrefix = "/api/snowflake/get/"

	serverException  = "com.sankuai.inf.leaf.server.exception.LeafServerException"
	missingParameter = "org.springframework.web.bind.MissingServletRequestParameterException"
)

type handler struct{ Options }

// New returns the handler of the routes.
func New(o Options) (http.Handler, error) {
	if o.MaxWait == 0 {
		o.MaxWait = 2 * time.Second
	}
	if o.MaxWait < 0 || o.MaxWait > time.Minute {
		return nil, &hapax.ValueError{Field: "max_wait", Value: o.MaxWait, Allowed: "1ms to 1m", Err: hapax.ErrInvalidArgument}
	}
	for _, p := range o.Allow {
		if !p.IsValid() {
			return nil, &hapax.ValueError{Field: "allow", Value: p.String(), Allowed: "networks such as 10.0.0.0/8", Err: hapax.ErrInvalidArgument}
		}
	}
	if o.Location == nil {
		o.Location = time.Local
	}
	if o.now == nil {
		o.now = time.Now
	}
	return handler{o}, nil
}

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.allowed(r.RemoteAddr) {
		spring.Fail(w, r, h.now(), http.StatusForbidden, "", "this address may not call; see the setting allow")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodPost && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, POST, HEAD")
		spring.Fail(w, r, h.now(), http.StatusMethodNotAllowed, "", "Request method '"+r.Method+"' not supported")
		return
	}
	path := r.URL.EscapedPath()
	if key, ok := strings.CutPrefix(path, segmentPrefix); ok && validKey(key) {
		h.get(w, r, h.Segment, h.TrySegment, key, segmentCode)
		return
	}
	if key, ok := strings.CutPrefix(path, snowflakePrefix); ok && validKey(key) {
		h.get(w, r, h.Snowflake, nil, key, snowflakeCode)
		return
	}
	switch strings.TrimSuffix(path, "/") {
	case "/decodeSnowflakeId":
		h.decode(w, r)
	case "/cache":
		h.page(w, r, h.cache)
	case "/db":
		h.page(w, r, h.database)
	default:
		h.notFound(w, r)
	}
}

func (h handler) notFound(w http.ResponseWriter, r *http.Request) {
	spring.Fail(w, r, h.now(), http.StatusNotFound, "", "No message available")
}

// validKey reports whether what follows a route is a key: one part of a path,
// which may end in a slash.
func validKey(key string) bool {
	key = strings.TrimSuffix(key, "/")
	return key != "" && !strings.Contains(key, "/")
}

// allowed reports whether a client at an address may call.
func (h handler) allowed(remote string) bool {
	if h.AllowAnyone {
		return true
	}
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	addr := at.Addr().Unmap().WithZone("")
	return addr.IsLoopback() || slices.ContainsFunc(h.Allow, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// get answers with one number, of those in hand if try is set and there is one.
func (h handler) get(w http.ResponseWriter, r *http.Request, issuer Issuer, try func(string) (hapax.ID, bool), key string, code func(error) int) {
	key, err := url.PathUnescape(strings.TrimSuffix(key, "/"))
	if err != nil {
		h.notFound(w, r)
		return
	}
	if issuer == nil {
		if h.ZeroWhenOff {
			spring.Text(w, r, "0")
			return
		}
		spring.Fail(w, r, h.now(), http.StatusInternalServerError, serverException, "this mode is switched off here")
		return
	}
	if try != nil {
		if id, ok := try(key); ok {
			spring.Text(w, r, strconv.FormatInt(int64(id), 10))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.MaxWait)
	defer cancel()
	id, err := issuer.Next(ctx, key)
	if i := strings.LastIndexByte(key, '.'); h.CutAtDot && i > 0 && unknown(err) {
		id, err = issuer.Next(ctx, key[:i])
	}
	if err != nil {
		if h.Failed != nil {
			h.Failed(err)
		}
		spring.Fail(w, r, h.now(), http.StatusInternalServerError, serverException, fmt.Sprintf("Result{id=%d, status=EXCEPTION}", code(err)))
		return
	}
	spring.Text(w, r, strconv.FormatInt(int64(id), 10))
}

// unknown reports whether an error says that there is no such tag.
func unknown(err error) bool {
	return errors.Is(err, hapax.ErrTagNotFound) || errors.Is(err, hapax.ErrTagDeleted) || errors.Is(err, hapax.ErrInvalidTag)
}

// segmentCode returns Leaf's number for an error of a segment tag.
func segmentCode(err error) int {
	switch {
	case unknown(err), errors.Is(err, hapax.ErrKindMismatch):
		return -2 // no such key
	case errors.Is(err, hapax.ErrStoreUnavailable):
		return -1 // nothing could be loaded
	}
	return -3 // nothing is left to issue
}

// snowflakeCode returns Leaf's number for an error of the snowflake mode.
func snowflakeCode(err error) int {
	switch {
	case errors.Is(err, hapax.ErrClockRollback), errors.Is(err, hapax.ErrClockSkew), errors.Is(err, hapax.ErrWorkerPoisoned):
		return -3 // the clock is behind
	case errors.Is(err, context.Canceled):
		return -2 // interrupted
	}
	return -1 // waiting did not help
}

// Leaf's own layout, in which /decodeSnowflakeId reads a number whatever it is.
const (
	twEpoch      = 1288834974657
	sequenceBits = 12
	workerBits   = 10
)

// decoded is what /decodeSnowflakeId answers, with its fields in order.
type decoded struct {
	Worker    string `json:"workerId"`
	Sequence  string `json:"sequenceId"`
	Timestamp string `json:"timestamp"`
}

func (h handler) decode(w http.ResponseWriter, r *http.Request) {
	form, err := spring.Parameters(w, r)
	if err != nil {
		spring.Fail(w, r, h.now(), http.StatusBadRequest, "", err.Error())
		return
	}
	text, ok := form["snowflakeId"]
	if !ok {
		spring.Fail(w, r, h.now(), http.StatusBadRequest, missingParameter, "Required String parameter 'snowflakeId' is not present")
		return
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		spring.Object(w, struct {
			Message string `json:"errorMsg"`
		}{"snowflakeId is not a number of 64 bits"})
		return
	}
	ms := id>>(sequenceBits+workerBits) + twEpoch
	spring.Object(w, decoded{
		Worker:    strconv.FormatInt(id>>sequenceBits&(1<<workerBits-1), 10),
		Sequence:  strconv.FormatInt(id&(1<<sequenceBits-1), 10),
		Timestamp: fmt.Sprintf("%d(%s)", ms, time.UnixMilli(ms).In(h.Location).Format("2006-01-02 15:04:05.000")),
	})
}

// page answers with what a monitor tells.
func (h handler) page(w http.ResponseWriter, r *http.Request, body func(context.Context) (string, error)) {
	if h.Monitor == nil {
		h.notFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.MaxWait)
	defer cancel()
	text, err := body(ctx)
	if err != nil {
		spring.Fail(w, r, h.now(), http.StatusInternalServerError, "", "the table cannot be read now")
		return
	}
	spring.Page(w, text)
}

func (h handler) cache(ctx context.Context) (string, error) {
	rows, err := h.Monitor.Cache(ctx)
	var cells [][]string
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, r := range rows {
		cells = append(cells, []string{
			r.Name, strconv.FormatBool(r.Init), strconv.FormatBool(r.Next), strconv.Itoa(r.Pos),
			n(r.Value0), n(r.Max0), n(r.Step0), n(r.Value1), n(r.Max1), n(r.Step1),
		})
	}
	return table([]string{"name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1"}, cells), err
}

func (h handler) database(ctx context.Context) (string, error) {
	rows, err := h.Monitor.Database(ctx)
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{r.Tag, strconv.FormatInt(r.MaxID, 10), strconv.FormatInt(r.Step, 10), r.Updated})
	}
	return table([]string{"tag", "max", "step", "update time"}, cells), err
}

// table returns a page with one table.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(element string, cells []string) {
		b.WriteString("<tr>")
		for _, c := range cells {
			b.WriteString("<" + element + ">" + html.EscapeString(c) + "</" + element + ">")
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("<!DOCTYPE html>\n<html><head><meta charset=\"UTF-8\"></head><body>\n<table>\n")
	line("th", head)
	for _, r := range rows {
		line("td", r)
	}
	b.WriteString("</table>\n</body></html>\n")
	return b.String()
}
