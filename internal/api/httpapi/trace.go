package httpapi

import (
	"net/http"

	"github.com/hapax-id/hapax/internal/service"
)

func (a *api) trace(w http.ResponseWriter, r *http.Request) {
	query, err := queryOf(r, "tag", "layout", "format")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	req := service.TraceRequest{Text: r.PathValue("number"), Tag: query.Get("tag"), Layout: query.Get("layout")}
	switch format := query.Get("format"); format {
	case "", "number":
	case "code":
		req.Code = true
	default:
		a.fail(w, r, outOfRange("format", format, "number, code"))
		return
	}
	t, err := a.svc.Trace(r.Context(), req)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, t)
}
