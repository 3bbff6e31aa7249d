package rpcapi

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/hapax-id/hapax/internal/service/auth"
)

// TestEveryProcedureForEachCredential asks with each kind of token for each procedure,
// about a tag or a pool named "mine", and has the server refuse all that is not listed.
func TestEveryProcedureForEachCredential(t *testing.T) {
	everybody := []string{
		"IssueService/Parse", "IssueService/Compose", "IssueService/ListLayouts",
		"LeaseService/GetStoreID", "LeaseService/GetStoreTime", "LeaseService/Ping",
	}
	see := []string{"IssueService/ExplainTag", "AdminService/GetTag"}
	take := slices.Concat(everybody, see, []string{"IssueService/Next", "IssueService/NextStream", "IssueService/ParseCode"})
	lease := slices.Concat(everybody, []string{
		"LeaseService/Allocate", "LeaseService/HandBack", "LeaseService/Renew", "LeaseService/FirstUse",
	})
	workers := []string{
		"LeaseService/GetPool", "LeaseService/AcquireWorker", "LeaseService/ExtendWorker", "LeaseService/SealWorker",
	}
	define := slices.Concat(everybody, see, []string{
		"AdminService/CreateTag", "AdminService/UpdateTag", "AdminService/DeleteTag", "AdminService/GetUsage",
	})
	pool := []string{
		"AdminService/ListWorkers", "AdminService/ListWorkerStatuses", "AdminService/GetWorkerStatus",
		"AdminService/RetireWorker", "AdminService/CreatePool", "AdminService/DeletePool",
	}
	everyPool := slices.Concat(pool, []string{"AdminService/ListPools", "AdminService/ListPoolStatuses"})
	operate := []string{
		"AdminService/Trace", "AdminService/TraceFleet", "AdminService/GetStatus", "AdminService/GetFleetStatus", "AdminService/Adopt", "AdminService/AdoptForeign", "AdminService/SettleNode", "AdminService/ListPlugins", "AdminService/SetPlugin",
	}
	list := []string{"AdminService/ListTags"}
	mine, other := []string{"mine"}, []string{"other"}
	for name, c := range map[string]struct {
		config  auth.TokenConfig
		allowed []string
	}{
		"issue":                       {auth.TokenConfig{}, slices.Concat(take, list)},
		"issue, of the tag":           {auth.TokenConfig{Tags: mine}, take},
		"issue, of another tag":       {auth.TokenConfig{Tags: other}, everybody},
		"lease":                       {auth.TokenConfig{Scopes: []string{"lease"}}, lease},
		"lease, with the pool":        {auth.TokenConfig{Scopes: []string{"lease"}, Tags: mine, Pools: mine}, slices.Concat(lease, workers)},
		"lease, of another tag":       {auth.TokenConfig{Scopes: []string{"lease"}, Tags: other, Pools: other}, everybody},
		"metrics":                     {auth.TokenConfig{Scopes: []string{"metrics"}}, everybody},
		"admin":                       {auth.TokenConfig{Scopes: []string{"admin"}}, slices.Concat(define, list, everyPool, operate)},
		"admin, of the tag":           {auth.TokenConfig{Scopes: []string{"admin"}, Tags: mine, Pools: other}, define},
		"admin, of another tag":       {auth.TokenConfig{Scopes: []string{"admin"}, Tags: other, Pools: other}, everybody},
		"admin, of the pool":          {auth.TokenConfig{Scopes: []string{"admin"}, Tags: other, Pools: mine}, slices.Concat(everybody, pool)},
		"admin, of all tags, no pool": {auth.TokenConfig{Scopes: []string{"admin"}, Pools: other}, slices.Concat(define, list)},
		"admin, of all pools, no tag": {auth.TokenConfig{Scopes: []string{"admin"}, Tags: other, Pools: []string{"*"}}, slices.Concat(everybody, everyPool)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, token := serveFor(t, c.config)
			client := &http.Client{Transport: bearer(token)}
			all := methods(t)
			for _, procedure := range slices.Sorted(maps.Keys(all)) {
				fill(all[procedure].ProtoReflect())
				short := strings.TrimPrefix(procedure, "/hapax.v1.")
				refused := isDenied(t, client, url+procedure, all[procedure])
				if allowed := slices.Contains(c.allowed, short); allowed == refused {
					t.Errorf("%s: refused is %v, allowed should be %v", short, refused, allowed)
				}
			}
		})
	}
}

// isDenied reports whether a call is refused because of its caller. Whatever else
// becomes of the made-up request does not matter.
func isDenied(t *testing.T, client *http.Client, url string, m proto.Message) bool {
	t.Helper()
	body, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	contentType := "application/json"
	if strings.HasSuffix(url, "/NextStream") {
		contentType = "application/connect+json"
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	resp, err := client.Post(url, contentType, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(answer, []byte(`"permission_denied"`))
}
