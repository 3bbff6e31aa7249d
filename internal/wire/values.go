package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/store/driver"
)

// clean returns text as a message can hold it: valid UTF-8, and no longer than
// most bytes.
func clean(text string, most int) string {
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

var kinds = map[hapax.Kind]hapaxv1.Kind{
	"":                  hapaxv1.Kind_KIND_UNSPECIFIED,
	hapax.KindSegment:   hapaxv1.Kind_KIND_SEGMENT,
	hapax.KindSnowflake: hapaxv1.Kind_KIND_SNOWFLAKE,
}

// NewTag returns the message of a tag.
func NewTag(t hapax.Tag) *hapaxv1.Tag {
	return &hapaxv1.Tag{
		Name: t.Name, Kind: kinds[t.Kind], Start: t.Start, Step: t.Step, MinStep: t.MinStep, MaxStep: t.MaxStep,
		Mark: t.Mark, Token: t.Token, Pool: t.Pool, Deleted: t.Deleted, Delta: t.Delta, Remainder: t.Remainder, Extra: t.Extra,
	}
}

// NewTags returns the messages of tags.
func NewTags(tags []hapax.Tag) []*hapaxv1.Tag {
	ms := make([]*hapaxv1.Tag, len(tags))
	for i, t := range tags {
		ms[i] = NewTag(t)
	}
	return ms
}

// Tag returns the tag of a message. ErrInvalidArgument for a kind that is not
// known.
func Tag(m *hapaxv1.Tag) (hapax.Tag, error) {
	t := hapax.Tag{
		Name: m.GetName(), Start: m.GetStart(), Step: m.GetStep(), MinStep: m.GetMinStep(), MaxStep: m.GetMaxStep(),
		Mark: m.GetMark(), Token: m.GetToken(), Pool: m.GetPool(), Deleted: m.GetDeleted(), Delta: m.GetDelta(), Remainder: m.GetRemainder(), Extra: m.GetExtra(),
	}
	for kind, number := range kinds {
		if number == m.GetKind() {
			t.Kind = kind
			return t, nil
		}
	}
	return t, &hapax.ValueError{Field: "kind", Value: int64(m.GetKind()), Allowed: "KIND_SEGMENT or KIND_SNOWFLAKE", Err: hapax.ErrInvalidArgument}
}

// Tags returns the tags of messages. One that the server cannot read has no kind in its message.
func Tags(ms []*hapaxv1.Tag) ([]hapax.Tag, error) {
	tags := make([]hapax.Tag, len(ms))
	for i, m := range ms {
		if m.GetKind() == hapaxv1.Kind_KIND_UNSPECIFIED {
			tags[i] = hapax.Tag{Name: m.GetName(), Kind: hapax.KindUnreadable}
			continue
		}
		var err error
		if tags[i], err = Tag(m); err != nil {
			return nil, err
		}
	}
	return tags, nil
}

// NewTagUpdate returns the request for a tag's change.
func NewTagUpdate(name string, u driver.TagUpdate) *hapaxv1.UpdateTagRequest {
	return &hapaxv1.UpdateTagRequest{Name: name, Step: u.Step, MinStep: u.MinStep, MaxStep: u.MaxStep, Floor: u.Floor, Extra: u.Extra}
}

// TagUpdate returns the change that a request is for.
func TagUpdate(m *hapaxv1.UpdateTagRequest) driver.TagUpdate {
	return driver.TagUpdate{Step: m.Step, MinStep: m.MinStep, MaxStep: m.MaxStep, Floor: m.Floor, Extra: m.Extra}
}

// StoreHeader is the header by which a reply names the server's store, and a
// request the one that it is meant for.
const StoreHeader = api.StoreHeader

// NewGrant returns the message of a grant.
func NewGrant(g hapax.Grant) *hapaxv1.Grant { return &hapaxv1.Grant{Lo: g.Lo, Hi: g.Hi} }

// Grant returns the grant of a message.
func Grant(m *hapaxv1.Grant) hapax.Grant { return hapax.Grant{Lo: m.GetLo(), Hi: m.GetHi()} }

// NewLease returns the message of a lease.
func NewLease(l hapax.Lease) *hapaxv1.Lease {
	return &hapaxv1.Lease{Pool: l.Pool, Worker: l.Worker, Token: l.Token, Key: string(l.Key), Holder: l.Holder, Grant: NewGrant(l.Grant), From: l.From, Expires: newTime(l.Expires)}
}

// Lease returns the lease of a message.
func Lease(m *hapaxv1.Lease) hapax.Lease {
	return hapax.Lease{Pool: m.GetPool(), Worker: m.GetWorker(), Token: m.GetToken(), Key: hapax.GrantKey(m.GetKey()), Holder: m.GetHolder(), Grant: Grant(m.GetGrant()), From: m.GetFrom(), Expires: timeOf(m.GetExpires())}
}

// NewWorkers returns the messages of workers.
func NewWorkers(workers []driver.Worker) []*hapaxv1.Worker {
	ms := make([]*hapaxv1.Worker, len(workers))
	for i, w := range workers {
		ms[i] = NewWorker(w)
	}
	return ms
}

// NewWorker returns the message of a worker.
func NewWorker(w driver.Worker) *hapaxv1.Worker {
	return &hapaxv1.Worker{Pool: w.Pool, Id: w.ID, Mark: w.Mark, From: w.From, Token: w.Token, Holder: w.Holder, Expires: newTime(w.Expires)}
}

// Workers returns the workers of messages.
func Workers(ms []*hapaxv1.Worker) []driver.Worker {
	workers := make([]driver.Worker, len(ms))
	for i, m := range ms {
		workers[i] = Worker(m)
	}
	return workers
}

// Worker returns the worker of a message.
func Worker(m *hapaxv1.Worker) driver.Worker {
	return driver.Worker{Pool: m.GetPool(), ID: m.GetId(), Mark: m.GetMark(), From: m.GetFrom(), Token: m.GetToken(), Holder: m.GetHolder(), Expires: timeOf(m.GetExpires())}
}

// NewPoolStatus returns the message of a pool as an operator sees it.
func NewPoolStatus(p api.PoolStatus) *hapaxv1.PoolStatus {
	m := &hapaxv1.PoolStatus{
		Pool: NewPool(driver.Pool{Name: p.Name, Layout: p.Layout, Deleted: p.Deleted}), Workers: p.Workers, Configured: p.Configured, Frozen: p.Frozen, StartsLeft: p.StartsLeft,
	}
	if i := p.Issuer; i != nil {
		m.Issuer = &hapaxv1.PoolIssuer{Worker: i.Worker, Issued: i.Issued, RemainingSeconds: i.Remaining}
	}
	return m
}

// PoolStatus returns the pool of a message as an operator sees it.
func PoolStatus(m *hapaxv1.PoolStatus) api.PoolStatus {
	p := api.PoolStatus{
		Name: m.GetPool().GetName(), Layout: m.GetPool().GetLayout(), Workers: m.GetWorkers(), Configured: m.GetConfigured(), Frozen: m.GetFrozen(),
		Deleted: m.GetPool().GetDeleted(), StartsLeft: m.StartsLeft,
	}
	if i := m.GetIssuer(); i != nil {
		p.Issuer = &api.PoolIssuer{Worker: i.GetWorker(), Issued: i.GetIssued(), Remaining: i.GetRemainingSeconds()}
	}
	return p
}

// NewWorkerStatus returns the message of a worker as an operator sees it.
func NewWorkerStatus(w api.WorkerStatus) *hapaxv1.WorkerStatus {
	return &hapaxv1.WorkerStatus{
		Worker: &hapaxv1.Worker{Pool: w.Pool, Id: w.ID, Mark: w.Mark, Token: w.Token, Holder: w.Holder, Expires: newTime(w.Expires)},
		State:  string(w.State), Until: timestamppb.New(w.Until), Free: newTime(w.Free), Parts: NewFields(w.Parts), Retired: w.Retired,
	}
}

// WorkerStatus returns the worker of a message as an operator sees it.
func WorkerStatus(m *hapaxv1.WorkerStatus) api.WorkerStatus {
	w := m.GetWorker()
	return api.WorkerStatus{
		Pool: w.GetPool(), ID: w.GetId(), State: api.WorkerState(m.GetState()), Mark: w.GetMark(), Until: m.GetUntil().AsTime(), Token: w.GetToken(),
		Holder: w.GetHolder(), Expires: timeOf(w.GetExpires()), Free: timeOf(m.GetFree()), Parts: Fields(m.GetParts()), Retired: m.GetRetired(),
	}
}

// NewPools returns the messages of pools.
func NewPools(pools []driver.Pool) []*hapaxv1.Pool {
	ms := make([]*hapaxv1.Pool, len(pools))
	for i, p := range pools {
		ms[i] = NewPool(p)
	}
	return ms
}

// NewPool returns the message of a pool.
func NewPool(p driver.Pool) *hapaxv1.Pool {
	return &hapaxv1.Pool{Name: p.Name, Layout: p.Layout, Deleted: p.Deleted}
}

// Pools returns the pools of messages.
func Pools(ms []*hapaxv1.Pool) []driver.Pool {
	pools := make([]driver.Pool, len(ms))
	for i, m := range ms {
		pools[i] = Pool(m)
	}
	return pools
}

// Pool returns the pool of a message.
func Pool(m *hapaxv1.Pool) driver.Pool {
	return driver.Pool{Name: m.GetName(), Layout: m.GetLayout(), Deleted: m.GetDeleted()}
}

// NewAcquireRequest returns the message of a request for a worker. The server has
// its own clock.
func NewAcquireRequest(r hapax.AcquireRequest) *hapaxv1.AcquireWorkerRequest {
	return &hapaxv1.AcquireWorkerRequest{
		Pool: r.Pool, Layout: layoutSpec(r.Layout), Workers: &hapaxv1.WorkerRange{Lo: r.Workers.Lo, Hi: r.Workers.Hi}, Among: r.Among,
		Holder: r.Holder, Term: NewTerm(r.Term),
	}
}

func layoutSpec(l hapax.Layout) string {
	if l.IsZero() {
		return ""
	}
	return l.String()
}

// AcquireRequest returns the request of a message. ErrInvalidArgument for a
// duration that cannot be, ErrInvalidLayout.
func AcquireRequest(m *hapaxv1.AcquireWorkerRequest) (hapax.AcquireRequest, error) {
	r := hapax.AcquireRequest{
		Pool: m.GetPool(), Workers: hapax.WorkerRange{Lo: m.GetWorkers().GetLo(), Hi: m.GetWorkers().GetHi()}, Among: m.GetAmong(), Holder: m.GetHolder(),
	}
	var err error
	if m.GetLayout() != "" {
		if r.Layout, err = hapax.ParseLayout(m.GetLayout()); err != nil {
			return r, err
		}
	}
	r.Term, err = Term(m.GetTerm())
	return r, err
}

// NewTerm returns the message of a term.
func NewTerm(t hapax.Term) *hapaxv1.Term {
	return &hapaxv1.Term{Length: durationpb.New(t.Length), Ahead: durationpb.New(t.Ahead), Behind: durationpb.New(t.Behind)}
}

// Term returns the term of a message. ErrInvalidArgument for a duration that cannot be.
func Term(m *hapaxv1.Term) (hapax.Term, error) {
	for name, d := range map[string]*durationpb.Duration{"length": m.GetLength(), "ahead": m.GetAhead(), "behind": m.GetBehind()} {
		if d != nil && d.CheckValid() != nil {
			return hapax.Term{}, &hapax.ValueError{Field: name, Value: fmt.Sprint(d), Allowed: "a duration", Err: hapax.ErrInvalidArgument}
		}
	}
	return hapax.Term{Length: m.GetLength().AsDuration(), Ahead: m.GetAhead().AsDuration(), Behind: m.GetBehind().AsDuration()}, nil
}

// NewLayout returns the message of a layout.
func NewLayout(l hapax.Layout) *hapaxv1.Layout {
	m := &hapaxv1.Layout{
		Name: l.Name(), Spec: l.String(), Epoch: timestamppb.New(l.Epoch()), Ends: timestamppb.New(l.Ends()),
		UnitMilliseconds: l.Unit().Milliseconds(), Workers: l.Workers(), PerSecond: l.PerSecond(),
	}
	for f := range l.Fields() {
		m.Fields = append(m.Fields, &hapaxv1.BitField{Name: f.Name, Bits: int32(f.Bits)})
	}
	return m
}

// NewFields returns the messages of a number's fields.
func NewFields(fields hapax.Fields) []*hapaxv1.Field {
	ms := make([]*hapaxv1.Field, len(fields))
	for i, f := range fields {
		ms[i] = &hapaxv1.Field{Name: f.Name, Value: f.Value}
	}
	return ms
}

// Fields returns the fields of messages.
func Fields(ms []*hapaxv1.Field) hapax.Fields {
	fields := make(hapax.Fields, len(ms))
	for i, m := range ms {
		fields[i] = hapax.Field{Name: m.GetName(), Value: m.GetValue()}
	}
	return fields
}
