package httpapi

import (
	"net/http"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// wantsCode reports whether a query asks for the texts that show numbers.
func wantsCode(query string) (bool, error) {
	format, given, err := queryValue(query, "format")
	if err != nil || !given || format == "id" {
		return false, err
	}
	if format != "code" {
		return false, &hapax.ValueError{Field: "format", Value: format, Allowed: "id, code", Err: hapax.ErrInvalidArgument}
	}
	return true, nil
}

// issueCodes answers with that many numbers and their texts, or with one text a
// line.
func (a *restAPI) issueCodes(w http.ResponseWriter, r *http.Request, count int, asJSON bool) {
	issued, err := a.svc.NextCodes(r.Context(), r.PathValue("tag"), count)
	switch {
	case err != nil:
		a.fail(w, r, err)
	case asJSON:
		writeBody(w, typeJSON, codesJSON(issued))
	default:
		writeBody(w, typeText, codesText(issued))
	}
}

// codesJSON returns numbers with their texts.
func codesJSON(issued service.Issued) []byte {
	return encode(struct {
		IDs    []hapax.ID `json:"ids"`
		Codes  []string   `json:"codes"`
		Period string     `json:"period,omitempty"`
	}{issued.IDs, issued.Codes, issued.Period})
}

// codesText returns the texts, one a line.
func codesText(issued service.Issued) (text []byte) {
	for _, code := range issued.Codes {
		text = append(append(text, code...), '\n')
	}
	return text
}

// getCode takes a code of a tag apart.
func (a *restAPI) getCode(w http.ResponseWriter, r *http.Request) {
	parsed, err := a.svc.ParseCode(r.Context(), r.PathValue("tag"), r.PathValue("code"))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, parsed)
}
