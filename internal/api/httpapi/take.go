package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
)

const (
	defaultValidity = time.Hour

	// brief is how long numbers that hold the time may be kept: theirs would be too old
	// after that.
	brief = 10 * time.Second

	maxReceipt = 256 // bytes
)

// A takeBody asks for numbers to issue.
type takeBody struct {
	Count   *int64 `json:"count"`
	Receipt *bool  `json:"receipt"`
	After   string `json:"after"`
	Codes   bool   `json:"codes"`
}

// takenJSON are the numbers. Either First and Delta tell them, which are Count, or IDs.
type takenJSON struct {
	Count      int        `json:"count"`
	First      *hapax.ID  `json:"first,omitempty"`
	Delta      hapax.ID   `json:"delta,omitempty"`
	IDs        []hapax.ID `json:"ids,omitempty"`
	Codes      []string   `json:"codes,omitempty"`
	Period     string     `json:"period,omitempty"`
	ValidFor   float64    `json:"valid_for"` // seconds after the request
	Receipt    string     `json:"receipt,omitempty"`
	Returnable int64      `json:"returnable,omitempty"` // numbers, from the last one down
}

// take answers a client that issues the numbers itself.
func (a *restAPI) take(w http.ResponseWriter, r *http.Request) {
	ctx, tag := r.Context(), r.PathValue("tag")
	var body takeBody
	if !a.isForThisStore(w, r) || !a.decode(w, r, &body) {
		return
	}
	count := int64(1)
	if body.Count != nil {
		count = *body.Count
	}
	var after receipt
	if body.After != "" {
		var err error
		if after, err = parseReceipt("after", body.After); err != nil {
			a.fail(w, r, err)
			return
		}
	}
	if body.Codes {
		if body.After != "" || body.Receipt != nil && *body.Receipt {
			a.fail(w, r, &hapax.ValueError{Field: "codes", Value: true, Allowed: "codes without after and receipt: numbers with codes are not leased", Err: hapax.ErrInvalidArgument})
			return
		}
		a.takeCodes(w, r, tag, count)
		return
	}
	taken, err := a.svc.Take(ctx, tag, count, body.Receipt == nil || *body.Receipt, after.key)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	answer := takenJSON{Count: len(taken.IDs)}
	switch taken.Keep {
	case service.KeepLong:
		answer.ValidFor = a.opts.Validity.Seconds()
	case service.KeepBriefly:
		answer.ValidFor = min(a.opts.Validity, brief).Seconds()
	}
	if taken.Leased {
		answer.lend(taken.Lease)
	} else if delta, ok := evenly(taken.IDs); ok {
		answer.First, answer.Delta = &taken.IDs[0], delta
	} else {
		answer.IDs = taken.IDs
	}
	a.answerNamed(w, r, answer)
}

// lend describes a lease.
func (t *takenJSON) lend(a hapax.Allocation) {
	delta := max(1, a.Tag.Delta)
	place := (max(0, a.Grant.Lo-a.Tag.Remainder) + delta - 1) / delta
	t.Count = int((max(0, a.Grant.Hi-a.Tag.Remainder)+delta-1)/delta - place)
	t.First, t.Delta = new(hapax.ID(place*delta+a.Tag.Remainder)), hapax.ID(delta)
	if a.Key == "" { // of a store that takes nothing back
		return
	}
	t.Receipt = receipt{lo: a.Grant.Lo, hi: a.Grant.Hi, from: a.From, token: a.Tag.Token, delta: delta, key: a.Key}.String()
	t.Returnable = (a.Grant.Hi - a.From) / delta
}

// evenly tells how far apart numbers are, if that is the same between all of them.
func evenly(ids []hapax.ID) (delta hapax.ID, ok bool) {
	if len(ids) == 1 {
		return 1, true
	}
	delta = ids[1] - ids[0]
	for i := 2; i < len(ids); i++ {
		if ids[i]-ids[i-1] != delta {
			return 0, false
		}
	}
	return delta, true
}

// takeCodes answers with numbers and the texts that show them, which are for use at once.
func (a *restAPI) takeCodes(w http.ResponseWriter, r *http.Request, tag string, count int64) {
	if most := int64(a.svc.MaxCount()); count < 1 || count > most {
		a.fail(w, r, &hapax.ValueError{Field: "count", Value: count, Allowed: fmt.Sprintf("1 to %d, for codes", most), Err: hapax.ErrInvalidArgument})
		return
	}
	issued, err := a.svc.NextCodes(r.Context(), tag, int(count))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answerNamed(w, r, takenJSON{Count: len(issued.IDs), IDs: issued.IDs, Codes: issued.Codes, Period: issued.Period})
}

// handBack takes back the last numbers of a lease.
func (a *restAPI) handBack(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Receipt string `json:"receipt"`
		Unused  int64  `json:"unused"`
	}
	if !a.isForThisStore(w, r) || !a.decode(w, r, &body) {
		return
	}
	lease, err := parseReceipt("receipt", body.Receipt)
	// A receipt that could not be read has no delta to divide by.
	if most := (lease.hi - lease.from) / max(1, lease.delta); err == nil && (body.Unused < 1 || body.Unused > most) {
		err = &hapax.ValueError{Field: "unused", Value: body.Unused, Allowed: fmt.Sprintf("1 to %d, which is the receipt's returnable", most), Err: hapax.ErrInvalidArgument}
	}
	if err == nil {
		err = a.svc.HandBack(r.Context(), hapax.Allocation{
			Grant: hapax.Grant{Lo: lease.lo, Hi: lease.hi}, Tag: hapax.Tag{Name: r.PathValue("tag"), Token: lease.token, Delta: lease.delta}, Key: lease.key, From: lease.from,
		}, lease.hi-body.Unused*lease.delta)
	}
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answerNamed(w, r, returnedJSON{body.Unused})
}

// returnedJSON is how many numbers were taken back.
type returnedJSON struct {
	Returned int64 `json:"returned"`
}

// A receipt is everything needed to hand a lease back, as one text that clients do not
// look into. It is no proof but for the key: the store compares everything.
type receipt struct {
	lo, hi, from, token, delta int64
	key                        hapax.GrantKey
}

// String returns the text, which is a secret.
func (l receipt) String() string {
	text := []byte("1")
	for _, n := range []int64{l.lo, l.hi, l.from, l.token, l.delta} {
		text = strconv.AppendInt(append(text, '.'), n, 36)
	}
	return string(append(append(text, '.'), l.key...))
}

// parseReceipt reads a receipt, which may be anybody's invention.
func parseReceipt(field, text string) (receipt, error) {
	wrong := &hapax.ValueError{Field: field, Value: "(not shown)", Allowed: "a receipt as it came with numbers of the tag", Err: hapax.ErrInvalidArgument}
	if len(text) > maxReceipt {
		return receipt{}, wrong
	}
	parts := strings.Split(text, ".")
	if len(parts) != 7 || parts[0] != "1" || parts[6] == "" {
		return receipt{}, wrong
	}
	var l receipt
	for i, into := range []*int64{&l.lo, &l.hi, &l.from, &l.token, &l.delta} {
		n, err := strconv.ParseInt(parts[i+1], 36, 64)
		if err != nil || n < 0 {
			return receipt{}, wrong
		}
		*into = n
	}
	l.key = hapax.GrantKey(parts[6])
	// Within these bounds, nothing that is computed from an invented one overflows.
	if l.delta < 1 || l.delta > hapax.MaxDelta || l.from > l.lo || l.lo >= l.hi || l.hi > hapax.MaxMark {
		return receipt{}, wrong
	}
	return l, nil
}

// isForThisStore answers requests that name a store which the server's does not stand for: their
// client has numbers of that one in hand, which this one's may repeat.
func (a *restAPI) isForThisStore(w http.ResponseWriter, r *http.Request) bool {
	want := r.Header.Get(api.StoreHeader)
	if want == "" {
		return true
	}
	if _, err := a.svc.StoreFor(r.Context(), want); err != nil {
		a.fail(w, r, err)
		return false
	}
	return true
}

// answerNamed answers with numbers, and names the store that they are from, as the client knows
// it. An answer that could not would have a client take numbers of two stores for those of one: it
// is not given.
func (a *restAPI) answerNamed(w http.ResponseWriter, r *http.Request, v any) {
	id, err := a.svc.StoreFor(context.WithoutCancel(r.Context()), r.Header.Get(api.StoreHeader))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set(api.StoreHeader, id)
	writeJSON(w, http.StatusOK, v)
}
