package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	leafroutes "github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/compat/tinyid"
	tinyidroutes "github.com/hapax-id/hapax/compat/tinyid/routes"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/testservers"
)

// call sends a request as a client does, and returns what comes back.
func call(t *testing.T, method, url, accept string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s %s", res.StatusCode, res.Header.Get("Content-Type"), body)
}

// untagged has one issuer answer for every key.
type untagged struct{ hapax.Issuer }

func (u untagged) Next(ctx context.Context, _ string) (hapax.ID, error) { return u.Issuer.Next(ctx) }

// TestServeLeaf: over Leaf's own table and tree the routes count on from the row,
// and give numbers of the node's worker ID.
func TestServeLeaf(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testservers.SharedMariaDB(t), testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES ('test', 4711, 100, 'by hand')")
	table, err := leaf.OpenTable(t.Context(), db.URL, leaf.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	keys := testdb.NewIssuers(t, table)
	tree, err := leaf.OpenTree(t.Context(), testservers.ZooKeeper(t).URL, leaf.TreeOptions{Name: "demo", Address: "127.0.0.1:8080"})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	flakes, err := hapax.NewSnowflake(t.Context(), tree, tree.Snowflake(hapax.SnowflakeOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	defer flakes.Close(t.Context())
	h, err := leafroutes.New(leafroutes.Options{Segment: keys, Snowflake: untagged{flakes}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	for i := range 250 {
		accept, kind := "", "text/plain;charset=UTF-8"
		if i%2 == 1 {
			accept, kind = "application/json", "application/json;charset=UTF-8"
		}
		if got, want := call(t, "GET", server.URL+"/api/segment/get/test", accept), fmt.Sprintf("200 %s %d", kind, 4711+i); got != want {
			t.Fatalf("got %s; want %s", got, want)
		}
	}
	if got := call(t, "GET", server.URL+"/api/segment/get/none", ""); !strings.HasPrefix(got, "500 ") || !strings.Contains(got, "Result{id=-2, status=EXCEPTION}") {
		t.Errorf("an unknown key: %s", got)
	}
	flake := strings.TrimPrefix(call(t, "POST", server.URL+"/api/snowflake/get/x", ""), "200 text/plain;charset=UTF-8 ")
	if got := call(t, "GET", server.URL+"/decodeSnowflakeId?snowflakeId="+flake, ""); !strings.Contains(got, `{"workerId":"0","sequenceId":"`) {
		t.Errorf("%s decodes as %s; want worker 0", flake, got)
	}
}

// TestServeTinyID sends what the Java client sends.
func TestServeTinyID(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testservers.SharedMariaDB(t), testdb.TinyID...)
	db.Run(t, "INSERT INTO tiny_id_info (biz_type, begin_id, max_id, step, version) VALUES ('test', 1, 1, 100000, 1)",
		"INSERT INTO tiny_id_token (token, biz_type) VALUES ('0f673adf80504e2eaa552f5d791b644c', 'test')")
	store, err := tinyid.Open(t.Context(), []string{db.URL}, tinyid.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	tokens, err := tinyid.OpenTokens(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	ids := testdb.NewIssuers(t, store)
	h, err := tinyidroutes.New(tinyidroutes.Options{Issuer: ids, Granter: store, Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	const client = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"
	for _, c := range []struct{ method, route, token, accept, want string }{
		{"POST", "nextSegmentIdSimple", "0f673adf80504e2eaa552f5d791b644c", client, "200 text/html;charset=UTF-8 1,20001,100001,1,0"},
		{"POST", "nextSegmentIdSimple", "0f673adf80504e2eaa552f5d791b644c", client, "200 text/html;charset=UTF-8 100001,120001,200001,1,0"},
		{"GET", "nextId", "0f673adf80504e2eaa552f5d791b644c", "", `200 application/json;charset=UTF-8 {"data":[200002],"code":200,"message":""}`},
		{"GET", "nextId", "wrong", "", `200 application/json;charset=UTF-8 {"data":null,"code":5,"message":"token is error"}`},
		{"POST", "nextSegmentIdSimple", "wrong", client, "200 text/html;charset=UTF-8 "},
	} {
		if got := call(t, c.method, server.URL+"/tinyid/id/"+c.route+"?token="+c.token+"&bizType=test", c.accept); got != c.want {
			t.Errorf("%s: got %s; want %s", c.route, got, c.want)
		}
	}
}
