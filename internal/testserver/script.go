package testserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// A Script says what a test server has, and when it fails. Its zero value is one server
// that never does. The files of transcripts are scripts, too: their other fields are for
// those who play the client.
type Script struct {
	Tags       map[string]service.TagConfig `json:"tags"`        // as in a server's configuration
	Tokens     map[string]Token             `json:"tokens"`      // by name; none: no token is asked for
	ValidFor   float64                      `json:"valid_for"`   // seconds that numbers may be kept; default an hour
	AutoCreate *bool                        `json:"auto_create"` // default true
	Servers    []Server                     `json:"servers"`     // default one

	Name     string            `json:"name"`
	Why      string            `json:"why"`
	Client   json.RawMessage   `json:"client"`
	Steps    json.RawMessage   `json:"steps"`
	Requests []json.RawMessage `json:"requests"` // expected, for /check
	More     bool              `json:"more"`     // more requests may come after them
}

// A Token is one that clients may show.
type Token struct {
	Token  string   `json:"token"`  // as hapax token new prints it
	Scopes []string `json:"scopes"` // default issue
	Tags   []string `json:"tags"`   // default all
}

// A Server is one of several over one store.
type Server struct {
	Store  string  `json:"store"` // servers that name the same share one
	Faults []Fault `json:"faults"`
}

// A Fault is what goes wrong with some of the requests for numbers that come to a server.
type Fault struct {
	At    int    `json:"at"`    // with which request it begins; the first is 1
	Times int    `json:"times"` // for how many; default 1, -1 for all that follow
	Do    string `json:"do"`    // one of the faults below

	MS         int    `json:"ms"`          // delay, restart: milliseconds
	Code       string `json:"code"`        // fail: the code of an error
	RetryAfter int    `json:"retry_after"` // fail: seconds
	Count      int64  `json:"count"`       // limit, take: numbers
	Tag        string `json:"tag"`         // delete, take
	Token      string `json:"token"`       // revoke: its name
	Status     int    `json:"status"`      // answer
	Body       string `json:"body"`        // answer
	Store      string `json:"store"`       // misname, answer: what the answer calls its store; nothing, or its name, if empty
}

// The faults, each with the field that it needs.
var faults = map[string]string{
	"lose":    "",      // numbers are taken, and the connection is closed without an answer
	"drop":    "",      // the connection is closed, and nothing is done
	"delay":   "ms",    // numbers are taken, and the answer comes later
	"fail":    "code",  // nothing is done, and the answer is an error
	"answer":  "",      // nothing is done, and the answer is any text: what stands between is no hapax server
	"misname": "",      // numbers are taken, and the answer names another store than theirs
	"limit":   "count", // no more than this many numbers
	"restart": "ms",    // the server stops, and starts again over the same store
	"wipe":    "",      // the server's store is replaced by an empty one
	"revoke":  "token", // the token is good for nothing from now on
	"delete":  "tag",   // the tag is deleted
	"take":    "tag",   // somebody else takes numbers of the tag
}

const (
	maxScript  = 1 << 20 // bytes
	maxServers = 10
	maxMS      = 600_000
)

// ParseScript reads a script, in JSON.
func ParseScript(from io.Reader) (Script, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxScript+1))
	if err != nil {
		return Script{}, err
	}
	if len(text) > maxScript {
		return Script{}, invalid("script", fmt.Sprintf("more than %d bytes", maxScript), fmt.Sprintf("up to %d bytes", maxScript))
	}
	var s Script
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("%w: the script is no JSON object of the known fields: %w", hapax.ErrInvalidArgument, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return s, invalid("script", "more after the object", "one JSON object")
	}
	return s, s.check()
}

func (s Script) check() error {
	if s.ValidFor < 0 || s.ValidFor > 1e6 {
		return invalid("valid_for", s.ValidFor, "0 to 1000000 seconds")
	}
	if len(s.Servers) > maxServers {
		return invalid("servers", len(s.Servers), fmt.Sprintf("up to %d", maxServers))
	}
	for i, server := range s.Servers {
		for j, f := range server.Faults {
			if err := f.check(fmt.Sprintf("servers[%d].faults[%d]", i, j), s); err != nil {
				return err
			}
			if f.At < 1 {
				return invalid(fmt.Sprintf("servers[%d].faults[%d].at", i, j), f.At, "1 or more: the first request is 1")
			}
		}
	}
	return nil
}

func (f Fault) check(field string, s Script) error {
	needs, ok := faults[f.Do]
	if !ok {
		names := make([]string, 0, len(faults))
		for name := range faults {
			names = append(names, name)
		}
		slices.Sort(names)
		return invalid(field+".do", f.Do, "one of "+strings.Join(names, ", "))
	}
	_, token := s.Tokens[f.Token]
	switch {
	case f.Times < -1:
		return invalid(field+".times", f.Times, "1 or more, or -1 for all that follow")
	case f.MS < 0 || f.MS > maxMS || needs == "ms" && f.MS == 0:
		return invalid(field+".ms", f.MS, fmt.Sprintf("1 to %d", maxMS))
	case needs == "code" && hapax.ErrorOf(hapax.Code(f.Code)) == nil:
		return invalid(field+".code", f.Code, "the code of an error, such as store_unavailable")
	case f.RetryAfter < 0 || f.RetryAfter > 3600:
		return invalid(field+".retry_after", f.RetryAfter, "0 to 3600 seconds")
	case (needs == "count" || f.Do == "take") && (f.Count < 1 || f.Count > service.MaxTake):
		return invalid(field+".count", f.Count, fmt.Sprintf("1 to %d", service.MaxTake))
	case needs == "token" && !token:
		return invalid(field+".token", f.Token, "the name of one of the script's tokens")
	case needs == "tag" && f.Tag == "":
		return invalid(field+".tag", f.Tag, "a tag")
	case f.Do == "answer" && (f.Status < 200 || f.Status > 599):
		return invalid(field+".status", f.Status, "200 to 599")
	}
	return nil
}

// applies reports whether a fault is for the n-th request.
func (f Fault) applies(n int) bool {
	switch {
	case n < f.At:
		return false
	case f.Times < 0:
		return true
	}
	return n < f.At+max(1, f.Times)
}

func (f Fault) pause() time.Duration { return time.Duration(f.MS) * time.Millisecond }

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
