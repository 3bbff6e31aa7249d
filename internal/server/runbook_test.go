package server

import (
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/api/respapi"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/signals"
)

// Every code that a server can tell has an entry in the runbook, and every entry's code
// exists.
func TestCodesAreInTheRunbook(t *testing.T) {
	known := map[string]bool{}
	for _, codes := range [][]hapax.Code{hapax.Codes(), httpapi.Codes(), respapi.Codes(), rpcapi.Codes()} {
		for _, code := range codes {
			known[string(code)] = true
			if signals.SeeCode(string(code)) == "" {
				t.Errorf("the code %s has no entry in package signals", code)
			}
		}
	}
	for _, trouble := range signals.Troubles() {
		for _, code := range trouble.Codes {
			if !known[code] {
				t.Errorf("%s has the code %s, which does not exist", trouble.ID, code)
			}
		}
	}
}
