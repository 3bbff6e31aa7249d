// Package routes answers the HTTP routes of Didi TinyID:
//
//	/tinyid/id/nextId, nextIdSimple
//	/tinyid/id/nextSegmentId, nextSegmentIdSimple
//
// or below another context path,
// with the bytes that TinyID answers with, from whatever issues the numbers, to GET, HEAD,
// POST, PUT, PATCH and DELETE alike. As below TinyID's own framework, a route may end in a
// slash or in a suffix such as .json, and parts of its path may have parameters (;a=1). Of
// a parameter that is given twice, the texts are joined with a comma. Every call shows a
// token for its bizType, which is never written anywhere.
package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/spring"
)

// An Issuer issues numbers of a tag in ascending order.
type Issuer interface {
	NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error)
}

// A Granter grants whole segments. Every hapax.SegmentStore is one; its
// allocations are the clients' from then on.
type Granter interface {
	Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error)
}

// Tokens tell which token may ask for which bizType. *tinyid.Tokens are some.
type Tokens interface {
	Allows(token, bizType string) bool
}

// A Readier tells that no token can be judged yet, at once or after a wait that it bounds:
// Tokens that are one have calls fail as the system's error then, and not as the token's.
type Readier interface {
	Ready(ctx context.Context) error
}

// Options choose what is answered.
type Options struct {
	Issuer  Issuer
	Granter Granter
	Tokens  Tokens

	// TryNext, if set, issues one of Issuer's numbers that is in hand, and reports whether
	// there was one. It spares a call its deadline.
	TryNext func(tag string) (hapax.ID, bool)

	// Failed, if set, is told of every error of an issuer or granter that a client was
	// told of.
	Failed func(error)

	// Known, if set, is called for every call that shows a good token.
	Known func(context.Context)

	// ContextPath is what stands before /id/ in the routes, as CheckContextPath takes it;
	// default /tinyid. "/" is none.
	ContextPath string

	// MaxWait bounds how long a call waits for numbers; default 2 s.
	MaxWait time.Duration

	now func() time.Time // for tests
}

// MaxBatch is the largest batchSize; a larger one counts as this.
const MaxBatch = 100_000

const (
	// DefaultContextPath is that of the properties that TinyID ships.
	DefaultContextPath = "/tinyid"

	codeOK     = 200
	codeToken  = 5
	codeSystem = 6

	badToken = "token is error"
	conflict = "get next segmentId conflict"

	// queried stands before the reason why a number could not be had, and not before the
	// reason why a segment could not.
	queried = "error query segmentId: "
)

// A Conflict is an error of an issuer or granter that tells whether others were faster
// each time.
type Conflict interface {
	error
	Conflict() bool
}

type handler struct {
	Options

	paths []string // of names, in their order
}

// New returns the handler of the routes.
func New(o Options) (http.Handler, error) {
	if o.MaxWait == 0 {
		o.MaxWait = 2 * time.Second
	}
	switch {
	case o.MaxWait < 0 || o.MaxWait > time.Minute:
		return nil, &hapax.ValueError{Field: "max_wait", Value: o.MaxWait, Allowed: "1ms to 1m", Err: hapax.ErrInvalidArgument}
	case o.Issuer == nil || o.Granter == nil || o.Tokens == nil:
		return nil, fmt.Errorf("%w: TinyID's routes need an issuer, a granter and tokens", hapax.ErrInvalidArgument)
	}
	if err := CheckContextPath("context_path", o.ContextPath); err != nil {
		return nil, err
	}
	if o.now == nil {
		o.now = time.Now
	}
	return handler{o, Paths(o.ContextPath)}, nil
}

// A response is what the routes answer with, with its fields in order.
type response struct {
	Data    any    `json:"data"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// A segment is a segment as TinyID's clients take it: (CurrentID, MaxID], to be
// followed by the next one from LoadingID on.
type segment struct {
	MaxID     int64 `json:"maxId"`
	LoadingID int64 `json:"loadingId"`
	CurrentID int64 `json:"currentId"`
	Delta     int64 `json:"delta"`
	Remainder int64 `json:"remainder"`
}

// A fault is an error with TinyID's code.
type fault struct {
	code    int
	message string
}

func (f *fault) Error() string { return f.message }

// A request is what a call asks for.
type request struct {
	bizType, token string
	batch          int
}

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if spring.Barred(r) {
		spring.BadRequest(w)
		return
	}
	path := spring.Path(r)
	i := slices.IndexFunc(h.paths, func(route string) bool { return spring.Is(path, route) })
	if i < 0 {
		spring.Fail(w, r, h.now(), http.StatusNotFound, "", "No message available")
		return
	}
	if !spring.Takes(r.Method) {
		spring.Decline(w, r, h.now())
		return
	}
	q, ok := read(w, r, names[i])
	if !ok {
		spring.BadRequest(w)
		return
	}
	ctx := r.Context()
	switch names[i] {
	case nextID:
		ids, err := h.next(ctx, q)
		h.object(w, r, ids, err)
	case nextIDSimple:
		ids, err := h.next(ctx, q)
		simple(w, r, ids, err)
	case nextSegment:
		s, err := h.segment(ctx, q)
		h.object(w, r, s, err)
	default:
		s, err := h.segment(ctx, q)
		simple(w, r, []int64{s.CurrentID, s.LoadingID, s.MaxID, s.Delta, s.Remainder}, err)
	}
}

// The routes.
const (
	nextID            = "nextId"
	nextIDSimple      = "nextIdSimple"
	nextSegment       = "nextSegmentId"
	nextSegmentSimple = "nextSegmentIdSimple"
)

var names = []string{nextID, nextIDSimple, nextSegment, nextSegmentSimple}

// Prefix returns what the paths of the routes begin with.
func Prefix(contextPath string) string {
	return strings.TrimSuffix(cmp.Or(contextPath, DefaultContextPath), "/") + "/id/"
}

// Paths returns the paths of the routes.
func Paths(contextPath string) (all []string) {
	for _, name := range names {
		all = append(all, Prefix(contextPath)+name)
	}
	return all
}

var contextPaths = regexp.MustCompile(`^(/|(/[A-Za-z0-9._~-]{1,64}){1,8})?$`)

// CheckContextPath judges a context path; empty stands for the default.
func CheckContextPath(field, path string) error {
	if !contextPaths.MatchString(path) || slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool { return part == "." || part == ".." }) {
		return &hapax.ValueError{Field: field, Value: path, Allowed: "a path such as /tinyid, of 1 to 8 parts of letters, digits and ._~- without a slash at its end, or / for none", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// read takes the parameters of a request for a route; false if one is not what it should
// be. Only numbers have a batchSize: as TinyID does, a route that grants a segment does
// not look at it.
func read(w http.ResponseWriter, r *http.Request, name string) (request, bool) {
	form, err := spring.Parameters(w, r)
	if err != nil {
		return request{}, false
	}
	q := request{bizType: form.Text("bizType"), token: form.Text("token"), batch: 1}
	if name == nextSegment || name == nextSegmentSimple {
		return q, true
	}
	if text := strings.TrimSpace(form.First("batchSize")); text != "" {
		// TinyID reads an int: what none holds is a bad request there, too.
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return q, false
		}
		q.batch = int(min(n, MaxBatch))
	}
	return q, true
}

// admit refuses a call without a token of its bizType; before stands before the message
// of an error of the system.
func (h handler) admit(ctx context.Context, before string, q request) error {
	if r, ok := h.Tokens.(Readier); ok {
		if err := r.Ready(ctx); err != nil {
			return h.system(before, q.bizType, err)
		}
	}
	if !h.Tokens.Allows(q.token, q.bizType) {
		return &fault{codeToken, badToken}
	}
	// After the token: a stranger's requests must not make a connection a known one.
	if h.Known != nil {
		h.Known(ctx)
	}
	return nil
}

// next issues what a call asks for, all of it or none. No numbers are issued to one that
// asks for 0 or fewer.
func (h handler) next(ctx context.Context, q request) ([]int64, error) {
	if err := h.admit(ctx, queried, q); err != nil {
		return nil, err
	}
	if q.batch < 1 {
		return []int64{}, nil
	}
	if q.batch == 1 && h.TryNext != nil {
		if id, ok := h.TryNext(q.bizType); ok {
			return []int64{int64(id)}, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.MaxWait)
	defer cancel()
	ids := make([]hapax.ID, q.batch)
	if _, err := h.Issuer.NextN(ctx, q.bizType, ids); err != nil {
		return nil, h.system(queried, q.bizType, err)
	}
	out := make([]int64, len(ids))
	for i, id := range ids {
		out[i] = int64(id)
	}
	return out, nil
}

// segment takes a whole segment.
func (h handler) segment(ctx context.Context, q request) (segment, error) {
	if err := h.admit(ctx, "", q); err != nil {
		return segment{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.MaxWait)
	defer cancel()
	a, err := h.Granter.Allocate(ctx, q.bizType, 0, "")
	if err != nil {
		return segment{}, h.system("", q.bizType, err)
	}
	current, last := a.Grant.Lo-1, a.Grant.Hi-1
	// A client fetches the next segment when it comes to loadingId: with a fifth of this one used, as with
	// TinyID.
	return segment{last, current + (last-current)/5, current, max(1, a.Tag.Delta), a.Tag.Remainder}, nil
}

// system returns the fault for an error of the issuer or the store, behind what stands
// before it. What a store says may name hosts, so it is told by its code.
func (h handler) system(before, bizType string, err error) *fault {
	if h.Failed != nil {
		h.Failed(err)
	}
	switch c, ok := errors.AsType[Conflict](err); {
	case errors.Is(err, hapax.ErrTagNotFound), errors.Is(err, hapax.ErrTagDeleted), errors.Is(err, hapax.ErrInvalidTag):
		return &fault{codeSystem, before + "can not find biztype:" + bizType}
	case ok && c.Conflict():
		return &fault{codeSystem, before + conflict}
	}
	return &fault{codeSystem, before + string(hapax.CodeOf(err))}
}

// object answers with an object; errors have status 200 too.
func (h handler) object(w http.ResponseWriter, r *http.Request, data any, err error) {
	if f, ok := errors.AsType[*fault](err); ok {
		spring.Failed(w)
		spring.Object(w, r, h.now(), response{nil, f.code, f.message})
		return
	}
	spring.Object(w, r, h.now(), response{data, codeOK, ""})
}

// simple answers with numbers and commas, and with nothing on an error.
func simple(w http.ResponseWriter, r *http.Request, numbers []int64, err error) {
	if err != nil {
		spring.Failed(w)
		spring.Text(w, r, "")
		return
	}
	var b []byte
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	spring.Text(w, r, string(b))
}
