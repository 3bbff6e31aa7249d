package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/internal/compat/spring"
)

const (
	illegalArgument = "java.lang.IllegalArgumentException"
	typeMismatch    = "org.springframework.web.method.annotation.MethodArgumentTypeMismatchException"
)

// springShape answers as Vesta's server on Spring.
type springShape struct{ handler }

var springRoutes = []string{"/genid", "/expid", "/transtime", "/makeid"}

// ServeHTTP implements http.Handler.
func (h springShape) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if spring.Barred(r) {
		spring.BadRequest(w)
		return
	}
	path, now := spring.Path(r), h.opts.now().In(h.opts.Zone)
	i := slices.IndexFunc(springRoutes, func(route string) bool { return spring.Is(path, route) })
	if i < 0 {
		spring.Fail(w, r, now, http.StatusNotFound, "", "No message available")
		return
	}
	if !spring.Takes(r.Method) {
		spring.Decline(w, r, now)
		return
	}
	form, err := spring.Parameters(w, r)
	if err != nil {
		spring.Fail(w, r, now, http.StatusBadRequest, "", err.Error())
		return
	}
	var bad error
	number := func(name string, missing int64) int64 {
		text := strings.TrimSpace(form.First(name))
		if text == "" {
			return missing
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil && bad == nil {
			//lint:ignore ST1005 as the framework writes it
			bad = fmt.Errorf("Failed to convert value of type 'java.lang.String' to required type 'long'; "+ //nolint:staticcheck // as the framework writes it
				"nested exception is java.lang.NumberFormatException: For input string: %.40q", text)
		}
		return n
	}
	switch springRoutes[i] {
	case "/genid":
		if id, err := h.genID(r.Context()); err != nil {
			refuse(w, err)
		} else {
			send(w, spring.JSON, id.String())
		}
		return
	case "/expid":
		id := number("id", 0)
		if bad == nil {
			h.explain(w, id)
			return
		}
	case "/transtime":
		value := number(vesta.FieldTime, -1)
		if bad == nil {
			h.date(w, r, value)
			return
		}
	default:
		g := given{
			number(vesta.FieldVersion, -1), number(vesta.FieldType, -1), number(vesta.FieldGenMethod, -1),
			number(vesta.FieldMachine, -1), number(vesta.FieldTime, -1), number(vesta.FieldSeq, -1),
		}
		if bad == nil {
			h.compose(w, r, g)
			return
		}
	}
	spring.Fail(w, r, now, http.StatusBadRequest, typeMismatch, bad.Error())
}

func (h springShape) explain(w http.ResponseWriter, id int64) {
	p, err := h.ids.ExpID(hapax.ID(id))
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, spring.JSON, string(spring.Encode(p)))
}

func (h springShape) date(w http.ResponseWriter, r *http.Request, value int64) {
	t, err := h.ids.TransTime(value)
	if err != nil {
		refuse(w, err)
		return
	}
	spring.Text(w, r, string(spring.AppendDate(nil, t.In(h.opts.Zone))))
}

func (h springShape) compose(w http.ResponseWriter, r *http.Request, g given) {
	now := h.opts.now().In(h.opts.Zone)
	if g.time == -1 || g.seq == -1 {
		spring.Fail(w, r, now, http.StatusInternalServerError, illegalArgument, incomplete)
		return
	}
	id, err := h.makeID(g)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, spring.JSON, id.String())
}
