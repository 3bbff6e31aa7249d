package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

const (
	remoteBatch = 10_000   // numbers asked for at a time: what a server allows by default
	maxAnswer   = 16 << 20 // bytes read of an answer
)

// remote is a server, over its HTTP interface.
type remote struct {
	base   *url.URL
	client *http.Client
	token  string // empty: none
	kept   bool   // there is a token, and nobody has named this server
	creds  *credentials
}

// newUnnamed returns a server that nobody has named. It is shown no token: whoever
// got to the address first would have it.
func newUnnamed(address string, c *credentials) (target, error) {
	r, err := newRemote(address, c)
	if err != nil {
		return nil, err
	}
	r.token, r.kept = "", r.token != ""
	return r, nil
}

func newRemote(address string, c *credentials) (*remote, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		if strings.Contains(address, "@") {
			address = "(not shown, for it may hold a password)"
		}
		return nil, &hapax.ValueError{Field: "server", Value: address, Allowed: "a URL such as http://127.0.0.1:8080", Err: hapax.ErrInvalidArgument}
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	return &remote{base: base, client: client, token: token, creds: c}, nil
}

func (r *remote) Close(context.Context) error {
	r.client.CloseIdleConnections()
	return nil
}

// A serverError is an error that a server told.
type serverError struct {
	text  string
	cause *hapax.Error // may be nil
}

func (e *serverError) Error() string { return e.text }

func (e *serverError) Unwrap() error {
	if e.cause == nil {
		return nil
	}
	return e.cause
}

// call makes one request and decodes its JSON answer. The segments of the path
// are escaped here.
func (r *remote) call(ctx context.Context, method string, path []string, query url.Values, header http.Header, body, answer any) error {
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return err
		}
	}
	for i := range path {
		path[i] = url.PathEscape(path[i])
	}
	target := strings.TrimRight(r.base.String(), "/") + "/v1/" + strings.Join(path, "/")
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, &text)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return &serverError{fmt.Sprintf("the server at %s cannot be reached: %v", r.base.Redacted(), reason(err)), nil}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the answer of %s broke off: %w", r.base.Redacted(), reason(err))
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return r.failure(resp, data)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the answer of %s is not that of a hapax server: %w", r.base.Redacted(), err)
	}
	return nil
}

// reason drops the method and URL, which url.Error repeats.
func reason(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// failure returns the error that an answer tells.
func (r *remote) failure(resp *http.Response, data []byte) error {
	var problem struct{ Title, Detail, Code string }
	if json.Unmarshal(data, &problem) != nil || problem.Code == "" {
		return fmt.Errorf("%s answered %s, which is not an answer of a hapax server", r.base.Redacted(), resp.Status)
	}
	text := problem.Detail
	if text == "" {
		text = problem.Title + "; the server's log tells more"
	}
	switch {
	case problem.Code != string(hapax.ErrUnauthenticated.Code()):
	case r.kept:
		text += "; the one that is given was not shown, because nobody has named this server: give --server " + r.base.Redacted() + " or $" + serverEnv + " if it is the right one"
	default:
		text += "; give one in $" + tokenEnv + " or with --token-file"
	}
	return &serverError{text, hapax.ErrorOf(hapax.Code(problem.Code))}
}

func (r *remote) Next(ctx context.Context, tag string, n int) ([]hapax.ID, error) {
	var ids []hapax.ID
	for len(ids) < n {
		var answer struct{ IDs []hapax.ID }
		query := url.Values{"count": {strconv.Itoa(min(n-len(ids), remoteBatch))}}
		if err := r.call(ctx, http.MethodPost, []string{"tags", tag, "ids"}, query, nil, nil, &answer); err != nil {
			return ids, err
		}
		if len(answer.IDs) == 0 {
			return ids, fmt.Errorf("%s answered without numbers, unlike a hapax server", r.base.Redacted())
		}
		ids = append(ids, answer.IDs...)
	}
	return ids, nil
}

// tagCall makes a request about one tag, which answers with the tag.
func (r *remote) tagCall(ctx context.Context, method, name string, header http.Header, body any) (hapax.Tag, error) {
	var answer tagJSON
	err := r.call(ctx, method, []string{"tags", name}, nil, header, body, &answer)
	return answer.tag(), err
}

func (r *remote) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return r.tagCall(ctx, http.MethodGet, name, nil, nil)
}

func (r *remote) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	var answer struct{ Tags []tagJSON }
	query := url.Values{"after": {after}, "limit": {strconv.Itoa(limit)}}
	if err := r.call(ctx, http.MethodGet, []string{"tags"}, query, nil, nil, &answer); err != nil {
		return nil, err
	}
	tags := make([]hapax.Tag, len(answer.Tags))
	for i, t := range answer.Tags {
		tags[i] = t.tag()
	}
	return tags, nil
}

// putJSON is what a tag should be; what is missing has its default, or stays as
// it is.
type putJSON struct {
	Kind    hapax.Kind `json:"kind,omitempty"`
	Start   *hapax.ID  `json:"start,omitempty"`
	Step    *int64     `json:"step,omitempty"`
	MinStep *int64     `json:"min_step,omitempty"`
	MaxStep *int64     `json:"max_step,omitempty"`
	Delta   int64      `json:"delta,omitempty"`
	Rest    int64      `json:"remainder,omitempty"`
	Pool    string     `json:"pool,omitempty"`
	Floor   *hapax.ID  `json:"floor,omitempty"`
	Code    string     `json:"code,omitempty"`
	Zone    string     `json:"zone,omitempty"`
}

func (r *remote) CreateTag(ctx context.Context, tag hapax.Tag, _ hapax.CreateMode) (hapax.Tag, error) {
	body := putJSON{Kind: tag.Kind, Pool: tag.Pool, Delta: tag.Delta, Rest: tag.Remainder}
	body.Code, body.Zone = service.AskedCode(tag.Extra)
	if tag.Kind == hapax.KindSegment {
		body.Start, body.Step, body.MinStep, body.MaxStep = new(hapax.ID(tag.Start)), &tag.Step, &tag.MinStep, &tag.MaxStep
	}
	return r.tagCall(ctx, http.MethodPut, tag.Name, http.Header{"If-None-Match": {"*"}}, body)
}

func (r *remote) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	body := putJSON{Step: u.Step, MinStep: u.MinStep, MaxStep: u.MaxStep, Floor: (*hapax.ID)(u.Floor)}
	if u.Extra != nil {
		body.Code, body.Zone = service.AskedCode(*u.Extra)
	}
	return r.tagCall(ctx, http.MethodPut, name, http.Header{"If-Match": {"*"}}, body)
}

func (r *remote) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return r.tagCall(ctx, http.MethodDelete, name, nil, nil)
}

func (r *remote) PoolStatuses(ctx context.Context) ([]service.PoolStatus, error) {
	var answer struct{ Pools []poolJSON }
	if err := r.call(ctx, http.MethodGet, []string{"pools"}, nil, nil, nil, &answer); err != nil {
		return nil, err
	}
	pools := make([]service.PoolStatus, len(answer.Pools))
	for i, p := range answer.Pools {
		pools[i] = service.PoolStatus{Pool: hapax.Pool{Name: p.Name, Layout: p.Layout}, Configured: p.Configured, Frozen: p.Frozen}
	}
	return pools, nil
}

func (r *remote) Pools(ctx context.Context) ([]hapax.Pool, error) {
	statuses, err := r.PoolStatuses(ctx)
	var pools []hapax.Pool
	for _, p := range statuses {
		pools = append(pools, p.Pool)
	}
	return pools, err
}

func (r *remote) WorkerStatuses(ctx context.Context, pool string) ([]service.WorkerStatus, error) {
	var answer struct{ Workers []workerJSON }
	if err := r.call(ctx, http.MethodGet, []string{"pools", pool, "workers"}, nil, nil, nil, &answer); err != nil {
		return nil, err
	}
	workers := make([]service.WorkerStatus, len(answer.Workers))
	for i, w := range answer.Workers {
		workers[i] = w.status(pool)
	}
	return workers, nil
}

func (r *remote) WorkerStatus(ctx context.Context, pool string, id int64) (service.WorkerStatus, error) {
	var answer workerJSON
	err := r.call(ctx, http.MethodGet, []string{"pools", pool, "workers", strconv.FormatInt(id, 10)}, nil, nil, nil, &answer)
	return answer.status(pool), err
}

func (r *remote) RetireWorker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	var answer workerJSON
	err := r.call(ctx, http.MethodPost, []string{"pools", pool, "workers", strconv.FormatInt(id, 10), "retire"}, nil, nil, nil, &answer)
	return answer.status(pool).Worker, err
}

// CreatePool implements hapax.PoolStore.
func (r *remote) CreatePool(ctx context.Context, pool, layout string) (hapax.Pool, error) {
	c, err := dial(ctx, r.base.String(), r.creds, !r.kept)
	if err != nil {
		return hapax.Pool{}, err
	}
	defer c.Close()
	return c.CreatePool(ctx, pool, layout)
}

// DeletePool implements hapax.PoolStore.
func (r *remote) DeletePool(ctx context.Context, pool string) (hapax.Pool, error) {
	c, err := dial(ctx, r.base.String(), r.creds, !r.kept)
	if err != nil {
		return hapax.Pool{}, err
	}
	defer c.Close()
	return c.DeletePool(ctx, pool)
}
