package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

const tinyidToken = "0f673adf80504e2eaa552f5d791b644c"

func newTinyIDDatabase(t *testing.T, server *testservers.Server, row string) foreignDB {
	return newForeignDB(t, server, append(testdb.TinyID,
		"INSERT INTO tiny_id_info (biz_type, begin_id, max_id, step, delta, remainder, create_time, update_time, version) VALUES "+row,
		"INSERT INTO tiny_id_token (token, biz_type, remark, create_time, update_time) VALUES ('"+tinyidToken+"', 'test', '', NOW(), NOW())")...)
}

// One command serves TinyID's routes over tables that its own script has made and that
// were filled by hand, and counts on from the row; its client's request is answered.
func testTinyIDTables(t *testing.T, server *testservers.Server) {
	db := newTinyIDDatabase(t, server, "('test', 1, 1, 100000, 1, 0, NOW(), NOW(), 1)")
	at := freeAddress(t)
	s := serve(t, t.TempDir(), nil, "--compat", fmt.Sprintf(`{tinyid: {databases: [%q], http: %q}}`, db.url, at))
	client := func(route string) string { // as the Java client sends it
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at+"/tinyid/id/"+route, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2")
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%d, %v", res.StatusCode, err)
		}
		return res.Header.Get("Content-Type") + " " + string(body)
	}
	for _, c := range []struct{ route, want string }{
		{"nextSegmentIdSimple?token=" + tinyidToken + "&bizType=test", "text/html;charset=UTF-8 1,20001,100001,1,0"},
		{"nextIdSimple?token=" + tinyidToken + "&bizType=test&batchSize=3", "text/html;charset=UTF-8 100002,100003,100004"},
		{"nextId?token=" + tinyidToken + "&bizType=test", `application/json;charset=UTF-8 {"data":[100005],"code":200,"message":""}`},
		{"nextId?token=wrong&bizType=test", `application/json;charset=UTF-8 {"data":null,"code":5,"message":"token is error"}`},
		{"nextSegmentIdSimple?token=wrong&bizType=test", "text/html;charset=UTF-8 "},
	} {
		if got := client(c.route); got != c.want {
			t.Errorf("%s: %s; want %s", c.route, got, c.want)
		}
	}
	if _, metrics := answers(t, s.url+"/metrics"); !strings.Contains(metrics, `hapax_issued_total{beside="tinyid",pool="",tag="test"} 4`) {
		t.Error("the metrics do not count TinyID's numbers")
	}
	if strings.Contains(s.logged(), tinyidToken) {
		t.Error("a token is in the log")
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.logged())
	}
}

// tinyidActor takes segments of a row by TinyID's own operations until it is stopped.
func tinyidActor(t *testing.T, db *sql.DB, taken *takenSet, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		var id, maxID, step, delta, remainder, version int64
		err := db.QueryRowContext(t.Context(), "SELECT id, max_id, step, delta, remainder, version FROM tiny_id_info WHERE biz_type = 'test'").
			Scan(&id, &maxID, &step, &delta, &remainder, &version)
		var res sql.Result
		if err == nil {
			res, err = db.ExecContext(t.Context(), "UPDATE tiny_id_info SET max_id = ?, update_time = NOW(), version = version + 1 WHERE id = ? AND max_id = ? AND version = ? AND biz_type = 'test'",
				maxID+step, id, maxID, version)
		}
		var changed int64
		if err == nil {
			changed, err = res.RowsAffected()
		}
		if err != nil {
			t.Error(err)
			return
		}
		for n := maxID + 1; changed == 1 && n <= maxID+step; n++ {
			if n%delta == remainder {
				taken.take("TinyID", n)
			}
		}
	}
}

func testTinyIDBesideItsServers(t *testing.T, server *testservers.Server) {
	even, odd := newTinyIDDatabase(t, server, "('test', 0, 0, 200, 2, 0, NOW(), NOW(), 1)"), newTinyIDDatabase(t, server, "('test', 0, 0, 200, 2, 1, NOW(), NOW(), 1)")
	beside(t, fmt.Sprintf(`{tinyid: {databases: [%q, %q], http: %%q}}`, even.url, odd.url), "/tinyid/id/nextIdSimple?batchSize=5&bizType=test&token="+tinyidToken,
		func(taken *takenSet, stop <-chan struct{}) {
			ended := make(chan struct{})
			go func() { defer close(ended); tinyidActor(t, odd.DB, taken, stop) }()
			tinyidActor(t, even.DB, taken, stop)
			<-ended
		})
}

// Databases that are away at the start are waited for; a call fails as the system's
// error meanwhile, and not as the token's.
func TestTinyIDAwayAtTheStart(t *testing.T) {
	t.Parallel()
	at, nobody := freeAddress(t), freeAddress(t)
	s := serve(t, t.TempDir(), []string{"HAPAX_MAX_WAIT=300ms"}, "--compat", fmt.Sprintf(`{tinyid: {databases: ["mysql://root@%s/db"], http: %q}}`, nobody, at))
	if _, body := answers(t, "http://"+at+"/tinyid/id/nextId?bizType=test&token="+tinyidToken); body != `{"data":null,"code":6,"message":"error query segmentId: store_unavailable"}` {
		t.Errorf("while the database is away: %s", body)
	}
	if status, _ := answers(t, "http://"+at+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	if code := s.stop(); code != 0 || ctx.Err() != nil {
		t.Errorf("exit code %d: %s", code, s.logged())
	}
}
