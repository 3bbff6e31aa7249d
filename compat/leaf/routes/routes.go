// Package routes answers the HTTP routes of Meituan Leaf:
//
//	/api/segment/get/{key}
//	/api/snowflake/get/{key}
//	/decodeSnowflakeId?snowflakeId=N
//	/cache, /db
//
// with exactly the bytes of Leaf's answers, from whatever issues the numbers, to GET,
// HEAD, POST, PUT, PATCH and DELETE alike. As below Leaf's own framework, a route may end
// in a slash or in a suffix such as .json, and parts of its path may have parameters
// (;a=1). The
// routes ask for no token, so they answer only loopback, unless Options.Allow names
// networks or Options.AllowAnyone is set; who calls is told by the address at the
// other end of the connection, and by no header.
package routes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/spring"
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
	Updated string // the time, as Leaf's driver writes it; empty if it is not known
}

// Options choose the routes, and the callers that they answer.
type Options struct {
	// Segment and Snowflake issue; one that is nil is a mode that is switched off.
	Segment, Snowflake Issuer

	// TrySegment, if set, issues one of Segment's numbers that is in hand, and reports
	// whether there was one. It spares a call its deadline. A method of Segment is not
	// looked for: in an Issuer that embeds another, it would be the other's.
	TrySegment func(tag string) (hapax.ID, bool)

	// Monitor, if set, feeds /cache and /db; without it, they answer as those of a Leaf
	// whose segment mode is off.
	Monitor Monitor

	// Allow lists the networks whose clients may call, besides loopback.
	Allow []netip.Prefix

	// AllowAnyone lets every client call.
	AllowAnyone bool

	// MaxWait bounds how long a call waits for a number; default 2 s.
	MaxWait time.Duration

	// KeepDots has a key with a dot looked for as it is alone. By default, one that is
	// not found is looked for once more without its last dot and what follows it, which
	// Leaf's framework cuts off.
	KeepDots bool

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
	illegalArgument  = "java.lang.IllegalArgumentException"
	missingParameter = "org.springframework.web.bind.MissingServletRequestParameterException"

	segmentOff  = "You should config leaf.segment.enable=true first"
	undecodable = "snowflake Id反解析发生异常!"
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
	return &handler{o}, nil
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.allowed(r.RemoteAddr) {
		h.fail(w, r, http.StatusForbidden, "", "this address may not call; see the setting allow")
		return
	}
	if spring.Barred(r) {
		spring.BadRequest(w)
		return
	}
	path := spring.Path(r)
	segment, isSegment := keyOf(path, segmentPrefix)
	flake, isFlake := keyOf(path, snowflakePrefix)
	isDecode, isCache, isDB := spring.Is(path, "/decodeSnowflakeId"), spring.Is(path, "/cache"), spring.Is(path, "/db")
	switch {
	case !isSegment && !isFlake && !isDecode && !isCache && !isDB:
		h.fail(w, r, http.StatusNotFound, "", "No message available")
	case !spring.Takes(r.Method):
		spring.Decline(w, r, h.time())
	case isSegment:
		h.get(w, r, h.Segment, h.TrySegment, segment, segmentCode)
	case isFlake:
		h.get(w, r, h.Snowflake, nil, flake, snowflakeCode)
	case isDecode:
		h.decode(w, r)
	case isCache:
		h.page(w, r, h.cache)
	default:
		h.page(w, r, h.database)
	}
}

// time is now, in the zone of dates.
func (h *handler) time() time.Time { return h.now().In(h.Location) }

func (h *handler) fail(w http.ResponseWriter, r *http.Request, status int, exception, message string) {
	spring.Fail(w, r, h.time(), status, exception, message)
}

// keyOf returns the key that follows a route: one part of a path, which may end in a
// slash.
func keyOf(path, prefix string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(path, prefix)
	if rest = strings.TrimSuffix(rest, "/"); !ok || rest == "" || strings.Contains(rest, "/") {
		return "", false
	}
	key, err := url.PathUnescape(rest)
	return key, err == nil
}

// allowed reports whether a client at an address may call.
func (h *handler) allowed(remote string) bool {
	if h.AllowAnyone {
		return true
	}
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	// A listener for both families shows IPv4 clients as IPv6, and no prefix contains an address with a zone.
	addr := at.Addr().Unmap().WithZone("")
	return addr.IsLoopback() || slices.ContainsFunc(h.Allow, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// get answers with one number, of those in hand if try is set and there is one.
func (h *handler) get(w http.ResponseWriter, r *http.Request, issuer Issuer, try func(string) (hapax.ID, bool), key string, code func(error) int) {
	if issuer == nil {
		if h.ZeroWhenOff {
			spring.Text(w, r, "0")
			return
		}
		h.fail(w, r, http.StatusInternalServerError, serverException, "this mode is switched off here")
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
	id, err := h.next(ctx, issuer, key)
	if err != nil {
		if h.Failed != nil {
			h.Failed(err)
		}
		h.fail(w, r, http.StatusInternalServerError, serverException, fmt.Sprintf("Result{id=%d, status=EXCEPTION}", code(err)))
		return
	}
	spring.Text(w, r, strconv.FormatInt(int64(id), 10))
}

// next issues a number of a key, or where there is no such key, of the part before its
// last dot.
func (h *handler) next(ctx context.Context, issuer Issuer, key string) (hapax.ID, error) {
	dot := strings.LastIndexByte(key, '.')
	if h.KeepDots || dot <= 0 {
		return issuer.Next(ctx, key)
	}
	id, err := issuer.Next(ctx, key)
	if unknown(err) {
		return issuer.Next(ctx, key[:dot])
	}
	return id, err
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
