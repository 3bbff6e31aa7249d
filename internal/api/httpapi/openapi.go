package httpapi

import (
	_ "embed"
	"net/http"
)

// document tells of the routes as OpenAPI 3.1. A test holds it to them.
//
//go:embed openapi.json
var document []byte

func (a *restAPI) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = typeJSON
	_, _ = w.Write(document) // an error means that the client has disconnected
}
