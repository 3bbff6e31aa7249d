package rest

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/internal/compat/spring"
)

// incomplete stands before the -1 of a number that could not be made.
const incomplete = "Both time and seq are required."

// help is what a path gets that is none of the four.
const help = "\r\nPlease input right URI:" +
	"\r\n    Example 1: http://ip:port/genid" +
	"\r\n    Example 2: http://ip:port/expid?id=?" +
	"\r\n    Example 3: http://ip:port/transtime?time=?" +
	"\r\n    Example 4: http://ip:port/makeid?version=?&type=?&genmethod=?&machine=?&time=?&seq=?"

// netty answers as Vesta's server on Netty.
type netty struct{ handler }

// ServeHTTP implements http.Handler.
func (h netty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.URL.RawQuery) > maxQuery {
		refuse(w, &hapax.ValueError{Field: "query", Value: "(" + strconv.Itoa(len(r.URL.RawQuery)) + " bytes)", Allowed: "up to " + strconv.Itoa(maxQuery), Err: hapax.ErrInvalidArgument})
		return
	}
	id, g, ok := numbers(r.URL.RawQuery)
	if !ok {
		panic(http.ErrAbortHandler) // Vesta closes the connection
	}
	body, err := h.answer(r, id, g)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, "text/plain", body)
}

// numbers reads a query. The last value of a parameter counts, and each must be a number.
func numbers(query string) (id int64, g given, ok bool) {
	values := map[string]int64{}
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, text, _ := strings.Cut(pair, "=")
		name, errName := url.QueryUnescape(name)
		text, errText := url.QueryUnescape(text)
		if errName != nil || errText != nil {
			return 0, g, false
		}
		switch name {
		case "id", vesta.FieldVersion, vesta.FieldType, vesta.FieldGenMethod, vesta.FieldMachine, vesta.FieldTime, vesta.FieldSeq:
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return 0, g, false
			}
			values[name] = n
		}
	}
	of := func(name string) int64 {
		if n, there := values[name]; there {
			return n
		}
		return -1
	}
	return of("id"), given{
		of(vesta.FieldVersion), of(vesta.FieldType), of(vesta.FieldGenMethod), of(vesta.FieldMachine), of(vesta.FieldTime), of(vesta.FieldSeq),
	}, true
}

func (h netty) answer(r *http.Request, id int64, g given) (string, error) {
	switch r.URL.Path {
	case "/genid":
		n, err := h.genID(r.Context())
		return n.String(), err
	case "/expid":
		p, err := h.ids.ExpID(hapax.ID(id))
		if err != nil {
			return "", err
		}
		text, err := hapax.Fields{
			{Name: vesta.FieldGenMethod, Value: p.GenMethod},
			{Name: vesta.FieldMachine, Value: p.Machine},
			{Name: vesta.FieldSeq, Value: p.Seq},
			{Name: vesta.FieldTime, Value: p.Time},
			{Name: vesta.FieldType, Value: p.Type},
			{Name: vesta.FieldVersion, Value: p.Version},
		}.MarshalJSON()
		return string(text), err
	case "/transtime":
		t, err := h.ids.TransTime(g.time)
		return string(spring.AppendDate(nil, t.In(h.opts.Zone))), err
	case "/makeid":
		if g.time == -1 || g.seq == -1 {
			return incomplete + "-1", nil
		}
		n, err := h.makeID(g)
		return n.String(), err
	}
	return help, nil
}
