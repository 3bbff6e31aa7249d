package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// listTags answers with a page of tags, and the name to go on after.
func (a *restAPI) listTags(w http.ResponseWriter, r *http.Request) {
	after, _, err := queryValue(r.URL.RawQuery, "after")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	limit, err := queryInt(r.URL.RawQuery, "limit", 100, service.MaxPage)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	tags, err := a.svc.Tags(r.Context(), after, limit)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	page := struct {
		Tags []api.Tag `json:"tags"`
		Next string    `json:"next,omitempty"` // the after of the next page
	}{Tags: make([]api.Tag, len(tags))}
	for i, t := range tags {
		page.Tags[i] = define.Shown(t)
	}
	if len(tags) == limit {
		page.Next = tags[limit-1].Name
	}
	writeJSON(w, http.StatusOK, page)
}

func (a *restAPI) getTag(w http.ResponseWriter, r *http.Request) {
	t, err := a.svc.Tag(r.Context(), r.PathValue("tag"))
	a.answerTag(w, r, http.StatusOK, t, err)
}

func (a *restAPI) deleteTag(w http.ResponseWriter, r *http.Request) {
	t, err := a.svc.DeleteTag(r.Context(), r.PathValue("tag"))
	a.answerTag(w, r, http.StatusOK, t, err)
}

func (a *restAPI) answerTag(w http.ResponseWriter, r *http.Request, status int, t hapax.Tag, err error) {
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, status, define.Shown(t))
}

// putBody is the wanted definition of a tag. Missing fields have their defaults
// at creation, and do not change in a change.
type putBody struct {
	Kind    hapax.Kind `json:"kind"`
	Start   *hapax.ID  `json:"start"`
	Step    *int64     `json:"step"`
	MinStep *int64     `json:"min_step"`
	MaxStep *int64     `json:"max_step"`
	Delta   *int64     `json:"delta"`     // only numbers that leave Rest when divided by it
	Rest    *int64     `json:"remainder"` // 0 to Delta - 1
	Pool    string     `json:"pool"`
	Floor   *hapax.ID  `json:"floor"` // what is granted from now on is at least this
	Code    string     `json:"code"`
	Zone    string     `json:"zone"` // of the code, where its spec names none

	Strategy string `json:"strategy"`
}

// putTag creates a tag, explicitly, or changes one. "If-None-Match: *" makes it
// create only, "If-Match: *" change only.
func (a *restAPI) putTag(w http.ResponseWriter, r *http.Request) {
	var body putBody
	if !a.decode(w, r, &body) {
		return
	}
	mayCreate, err := onlyStar(r, "If-Match")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	mayChange, err := onlyStar(r, "If-None-Match")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	name := r.PathValue("tag")
	// Whether it exists the store says with the attempt: a look beforehand could be old by then.
	if mayCreate {
		def, err := body.definition(name)
		var t hapax.Tag
		if err == nil {
			t, err = a.svc.CreateTag(r.Context(), def, hapax.CreateExplicit)
		}
		// One that is there is changed, unless the client wants to be the one that makes it.
		if !mayChange || !errors.Is(err, hapax.ErrTagExists) {
			a.answerTag(w, r, http.StatusCreated, t, err)
			return
		}
	}
	t, err := a.change(r, name, body)
	a.answerTag(w, r, http.StatusOK, t, err)
}

// onlyStar reports whether a precondition is absent; if it is there it must be "*".
func onlyStar(r *http.Request, header string) (absent bool, err error) {
	switch v := r.Header.Get(header); v {
	case "":
		return true, nil
	case "*":
		return false, nil
	default:
		return false, &hapax.ValueError{Field: header, Value: v, Allowed: "*", Err: hapax.ErrInvalidArgument}
	}
}

// definition returns the tag to create. A zero that was given is not "unset".
func (b putBody) definition(name string) (hapax.Tag, error) {
	t := hapax.Tag{Name: name, Kind: b.Kind, Pool: b.Pool, Extra: define.CodeExtra(b.Code, b.Zone)}
	if b.Zone != "" && b.Code == "" {
		return t, &hapax.ValueError{Field: "zone", Value: b.Zone, Allowed: "none without a code", Err: hapax.ErrInvalidArgument}
	}
	for _, f := range []struct {
		name  string
		given *int64
		to    *int64
		most  int64
	}{
		{"step", b.Step, &t.Step, hapax.MaxStep},
		{"min_step", b.MinStep, &t.MinStep, hapax.MaxStep},
		{"max_step", b.MaxStep, &t.MaxStep, hapax.MaxStep},
		{"delta", b.Delta, &t.Delta, hapax.MaxDelta},
		{"start", (*int64)(b.Start), &t.Start, hapax.MaxMark - 1},
		{"floor", (*int64)(b.Floor), &t.Mark, hapax.MaxMark - 1},
	} {
		if f.given == nil {
			continue
		}
		if *f.given < 1 || *f.given > f.most {
			return t, &hapax.ValueError{Field: f.name, Value: *f.given, Allowed: fmt.Sprintf("1 to %d", f.most), Err: hapax.ErrInvalidArgument}
		}
		*f.to = *f.given
	}
	if b.Rest != nil {
		t.Remainder = *b.Rest // WithDefaults judges it by the delta
	}
	return define.WithStrategy(t, b.Strategy)
}

// change applies the body to a tag that exists.
func (a *restAPI) change(r *http.Request, name string, b putBody) (hapax.Tag, error) {
	t, err := a.svc.Tag(r.Context(), name)
	strategy := cmp.Or(define.Shown(t).Strategy, string(t.Kind))
	switch {
	case err != nil:
		return t, err
	case b.Kind != "" && b.Kind != t.Kind:
		return t, fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, name, t.Kind)
	case b.Strategy != "" && b.Strategy != strategy:
		return t, &hapax.ValueError{Field: "strategy", Value: b.Strategy, Allowed: fmt.Sprintf("%q, which cannot change", strategy), Err: hapax.ErrInvalidArgument}
	case b.Pool != "" && b.Pool != t.Pool:
		return t, &hapax.ValueError{Field: "pool", Value: b.Pool, Allowed: fmt.Sprintf("%q, which cannot change", t.Pool), Err: hapax.ErrInvalidArgument}
	case b.Start != nil && int64(*b.Start) != t.Start:
		return t, &hapax.ValueError{Field: "start", Value: *b.Start, Allowed: fmt.Sprintf("%d, which cannot change; floor raises the next number", t.Start), Err: hapax.ErrInvalidArgument}
	case b.Delta != nil && *b.Delta != t.Delta:
		return t, &hapax.ValueError{Field: "delta", Value: *b.Delta, Allowed: fmt.Sprintf("%d, which cannot change", t.Delta), Err: hapax.ErrInvalidArgument}
	case b.Rest != nil && *b.Rest != t.Remainder:
		return t, &hapax.ValueError{Field: "remainder", Value: *b.Rest, Allowed: fmt.Sprintf("%d, which cannot change", t.Remainder), Err: hapax.ErrInvalidArgument}
	case b.Step == nil && b.MinStep == nil && b.MaxStep == nil && b.Floor == nil && b.Code == "":
		return t, nil
	}
	u := driver.TagUpdate{Step: b.Step, MinStep: b.MinStep, MaxStep: b.MaxStep, Floor: (*int64)(b.Floor)}
	if b.Code != "" {
		u.Extra = new(define.CodeExtra(b.Code, b.Zone))
	}
	return a.svc.UpdateTag(r.Context(), name, u)
}

type layoutJSON struct {
	Name      string         `json:"name,omitempty"`
	Spec      string         `json:"spec"`
	Fields    []bitFieldJSON `json:"fields"` // from the highest bit down
	Unit      string         `json:"unit"`
	Epoch     time.Time      `json:"epoch"`
	Ends      time.Time      `json:"ends"`
	Workers   int64          `json:"workers"`
	PerSecond float64        `json:"per_second"` // IDs a second and worker
}

type bitFieldJSON struct {
	Name string `json:"name"`
	Bits int    `json:"bits"`
}

// ends returns when the layout's time ends, or the last instant that JSON can
// tell where it ends with the year 9999.
func ends(l hapax.Layout) time.Time {
	if at := l.Ends(); at.Year() <= 9999 {
		return at
	}
	return time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
}

func (a *restAPI) listLayouts(w http.ResponseWriter, _ *http.Request) {
	var list struct {
		Layouts []layoutJSON `json:"layouts"`
	}
	for _, l := range a.svc.Layouts() {
		j := layoutJSON{
			Name: l.Name(), Spec: l.String(), Unit: l.Unit().String(), Epoch: l.Epoch(), Ends: ends(l),
			Workers: l.Workers(), PerSecond: l.PerSecond(),
		}
		for f := range l.Fields() {
			j.Fields = append(j.Fields, bitFieldJSON{f.Name, f.Bits})
		}
		list.Layouts = append(list.Layouts, j)
	}
	writeJSON(w, http.StatusOK, list)
}
