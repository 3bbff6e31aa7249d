package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
)

// A midnight is a server whose numbers begin anew after its first answer, and that has so many answers.
type midnight struct {
	hapaxv1connect.UnimplementedIssueServiceHandler

	asked, most int
}

func (m *midnight) Next(_ context.Context, req *hapaxv1.NextRequest) (*hapaxv1.NextResponse, error) {
	if m.asked++; m.asked > m.most {
		return nil, hapax.ErrTagDeleted
	}
	res := &hapaxv1.NextResponse{Period: fmt.Sprint(20261120 + min(m.asked, 2))}
	first := int64(1)
	if m.asked > 2 {
		first += remoteBatch
	}
	for id := first; id < first+int64(req.GetCount()); id++ {
		res.Ids, res.Codes = append(res.GetIds(), id), append(res.GetCodes(), fmt.Sprintf("%s-%d", res.GetPeriod(), id))
	}
	return res, nil
}

// Codes are printed with the period that they are of, although it ends between two requests, and
// although the server has no more of them then.
func TestCodesOverMidnight(t *testing.T) {
	for most, want := range map[int][]issuedCount{
		3: {{"20261121", remoteBatch}, {"20261122", remoteBatch + 1}},
		2: {{"20261121", remoteBatch}, {"20261122", remoteBatch}},
		1: {{"20261121", remoteBatch}},
		0: nil,
	} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			mux := http.NewServeMux()
			mux.Handle(hapaxv1connect.NewIssueServiceHandler(&midnight{most: most}))
			srv := httptest.NewServer(mux)
			defer srv.Close()
			var out, errs bytes.Buffer
			args := []string{"next", "invoices", "--code", "-n", fmt.Sprint(2*remoteBatch + 1), "--json", "--server", srv.URL}
			code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if (code == 0) != (most == 3) {
				t.Errorf("exit code %d, %s", code, &errs)
			}
			var got []issuedCount
			for line := range strings.Lines(out.String()) {
				var issued issuedJSON
				if err := json.Unmarshal([]byte(line), &issued); err != nil {
					t.Fatal(err)
				}
				got = append(got, issuedCount{issued.Period, len(issued.IDs)})
				for i, text := range issued.Codes {
					if text != fmt.Sprintf("%s-%d", issued.Period, issued.IDs[i]) {
						t.Fatalf("%s is shown as the code of %d in period %s", text, issued.IDs[i], issued.Period)
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("printed are %v; want %v", got, want)
			}
		})
	}
}

// An issuedCount is how many codes of a period were printed.
type issuedCount struct {
	period string
	n      int
}
