package httpapi

import (
	_ "embed"
	"net/http"
)

// document describes the routes in OpenAPI 3.1. A test compares the two.
//
//go:embed openapi.json
var document []byte

func (a *restAPI) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = typeJSON
	_, _ = w.Write(document) // an error means that the client has disconnected
}
