package httpapi

import (
	"net/http"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// trace tells what this node knows of a number, or of the one that a code shows.
func (a *restAPI) trace(w http.ResponseWriter, r *http.Request) {
	req := service.TraceRequest{Text: r.PathValue("number")}
	var format string
	for name, value := range map[string]*string{"tag": &req.Tag, "layout": &req.Layout, "format": &format} {
		var err error
		if *value, _, err = queryValue(r.URL.RawQuery, name); err != nil {
			a.fail(w, r, err)
			return
		}
	}
	if req.Code = format == "code"; !req.Code && format != "" && format != "id" {
		a.fail(w, r, &hapax.ValueError{Field: "format", Value: format, Allowed: "id or code", Err: hapax.ErrInvalidArgument})
		return
	}
	t, err := a.svc.Trace(r.Context(), req)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, t)
}
