package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestCodes(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, _ *storetest.Faults) {
		for _, step := range []struct {
			method, path, body string
			status             int
			want               string // in the answer
		}{
			{"PUT", "/v1/tags/coupons", `{"code":"C{id:4}{check}"}`, 201, `"code":"C{id:4}{check}"`},
			{"GET", "/v1/tags/coupons/next?format=code", "", 200, "C00013\n"},
			{"POST", "/v1/tags/coupons/ids?format=code&count=2", "", 200, `{"ids":["2","3"],"codes":["C00021","C00037"]}`},
			{"POST", "/v1/tags/coupons/ids?format=code", `{"count":1}`, 200, `{"ids":["4"],"codes":["C00045"]}`},
			{"GET", "/v1/tags/coupons/next?format=id", "", 200, "5"},
			{"GET", "/v1/tags/coupons/next?format=hex", "", 400, "id, code"},
			{"GET", "/v1/tags/coupons/codes/C00021", "", 200, `{"code":"C00021","id":"2","spec":"C{id:4}{check}"}`},
			{"GET", "/v1/tags/coupons/codes/C00012", "", 400, `position 6`},
			{"GET", "/v1/tags/none/codes/C00021", "", 404, `tag_not_found`},
			{"PUT", "/v1/tags/coupons", `{"code":"C{id:4:36}"}`, 200, `"old_codes":["C{id:4}{check}"]`},
			{"PUT", "/v1/tags/coupons", `{"code":"C{id:5}"}`, 400, `another shape`},
			{"GET", "/v1/tags?limit=1", "", 200, `"code":"C{id:4:36}"`},
			{"PUT", "/v1/tags/invoices", `{"code":"{yyyy}-{seq:3}"}`, 400, `zone`},
			{"PUT", "/v1/tags/invoices", `{"zone":"UTC"}`, 400, `none without a code`},
			{"PUT", "/v1/tags/invoices", `{"code":"{yyyy}-{seq:3}","zone":"UTC"}`, 201, `"code":"{zone:UTC}{yyyy}-{seq:3}"`},
			{"POST", "/v1/tags/invoices/ids?format=code", "", 200, `{"ids":["1"],"codes":["2026-001"],"period":"2026"}`},
			{"GET", "/v1/tags/invoices/next", "", 200, `2`},
			{"GET", "/v1/tags/invoices/codes/2026-001", "", 200, `"from":"2026-01-01T00:00:00Z","until":"2027-01-01T00:00:00Z"`},
			{"PUT", "/v1/tags/invoices@@2026", `{}`, 400, `invalid_tag`},
			{"GET", "/v1/tags/plain/next?format=code", "", 400, `hapax tags set TAG --code`},
		} {
			r := call(t, h, step.method, step.path, step.body)
			if r.Code != step.status || !strings.Contains(r.Body.String(), step.want) {
				t.Errorf("%s %s answered %d %s, want %d %s", step.method, step.path, r.Code, r.Body, step.status, step.want)
			}
		}
	})
}
