package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	sdk "github.com/hapax-id/hapax/client"
)

// A token for leases sees no tags, over no protocol, and leases all the same.
func TestLeaseTokenSeesNoTags(t *testing.T) {
	t.Parallel()
	token, hash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(config, []byte("tokens: {app: {hash: '"+hash+"', scopes: [lease]}}\ntags: {orders: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config)
	call := func(method, path string) {
		t.Helper()
		if status, code := request(t, &http.Client{}, method, s.url+path, "Authorization: Bearer "+token, "Content-Type: application/json"); status != http.StatusForbidden || code != "permission_denied" {
			t.Errorf("%s %s: %d %s", method, path, status, code)
		}
	}
	call("GET", "/v1/tags")
	call("GET", "/v1/tags/orders")
	call("GET", "/v1/tags/orders/next")
	nc, replies := dialRESP(t, s.respAddress())
	for _, command := range []string{"AUTH " + token, "HAPAX.TAGS", "GET orders"} {
		if _, err := fmt.Fprint(nc, command+"\r\n"); err != nil {
			t.Fatal(err)
		}
		reply, err := replies.ReadString('\n')
		if want := "-NOPERM"; err != nil || strings.HasPrefix(reply, want) == strings.HasPrefix(command, "AUTH") {
			t.Errorf("%s: %q, %v", strings.Fields(command)[0], reply, err)
		}
	}
	c, err := sdk.Dial(t.Context(), sdk.Options{Token: token}, s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Tag(t.Context(), "orders"); !errors.Is(err, api.ErrPermissionDenied) {
		t.Errorf("seeing the tag: %v", err)
	}
	if _, err := c.Tags(t.Context(), "", 10); !errors.Is(err, api.ErrPermissionDenied) {
		t.Errorf("listing tags: %v", err)
	}
	issuer, err := c.Segment(t.Context(), "orders", hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := issuer.Next(t.Context()); id != 1 || err != nil {
		t.Errorf("leasing: %d, %v", id, err)
	}
	if err := issuer.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A token takes no numbers of a period that has not begun, which would be missing when it
// begins, unless it names lines of periods.
func TestFuturePeriods(t *testing.T) {
	t.Parallel()
	asked, askedHash := newToken(t)
	plain, plainHash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	text := fmt.Sprintf("tokens:\n  plain: {hash: '%s'}\n  asked: {hash: '%s', tags: ['invoices*', 'invoices@@*']}\ntags: {invoices: {code: 'R{yyyy}-{seq:6}', zone: UTC}}\n", plainHash, askedHash)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config)
	next := func(token, tag string) (status int, code string) {
		return request(t, &http.Client{}, "GET", s.url+"/v1/tags/"+tag+"/next", "Authorization: Bearer "+token)
	}
	year := time.Now().UTC().Year()
	future := fmt.Sprintf("invoices@@%d", year+1)
	for _, tag := range []string{"invoices", fmt.Sprintf("invoices@@%d", year)} {
		if status, code := next(plain, tag); status != http.StatusOK {
			t.Errorf("%s: %d %s", tag, status, code)
		}
	}
	for i := range 2 { // it stays so when the line is open
		if status, code := next(plain, future); status != http.StatusForbidden || code != "permission_denied" {
			t.Errorf("%s: %d %s", future, status, code)
		}
		nc, replies := dialRESP(t, s.respAddress())
		for _, command := range []string{"AUTH " + plain, "INCR " + future, "INCRBY " + future + " 5", "HAPAX.NEXT " + future + " COUNT 3"} {
			if _, err := fmt.Fprint(nc, command+"\r\n"); err != nil {
				t.Fatal(err)
			}
			reply, err := replies.ReadString('\n')
			if err != nil || strings.HasPrefix(reply, "-NOPERM") == strings.HasPrefix(command, "AUTH") {
				t.Errorf("%s: %q, %v", strings.Fields(command)[0], reply, err)
			}
		}
		if i > 0 {
			break
		}
		if status, code := next(asked, future); status != http.StatusOK {
			t.Errorf("the token that asks for it: %d %s", status, code)
		}
	}
	var got struct{ IDs []string }
	resp, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/tags/"+future+"/ids", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Header.Set("Authorization", "Bearer "+asked)
	answered, err := http.DefaultClient.Do(resp)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := answer(answered); err != nil || json.Unmarshal(body, &got) != nil || len(got.IDs) != 1 || got.IDs[0] != "2" {
		t.Errorf("the line went on to %s, %v", body, err)
	}
}
