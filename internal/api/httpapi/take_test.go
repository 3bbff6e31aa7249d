package httpapi

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// secret is what differs in answers from run to run.
var secret = regexp.MustCompile(`"receipt":"([0-9a-z.]+)\.[0-9a-f]{32}"`)

// TestTake makes requests one after the other and compares what clients see.
func TestTake(t *testing.T) {
	opts := service.Options{MaxCount: 100, Tags: map[string]service.TagConfig{
		"even": {Start: 100, Delta: 10, Remainder: 3}, "narrow": {MinStep: 1, Step: 3, MaxStep: 5},
	}}
	bubble(t, opts, func(t *testing.T, h http.Handler, _ *storetest.Faults) {
		receipt := ""
		for i, c := range []struct {
			path, body string
			status     int
			want       string
		}{
			{"orders/take", `{}`, 200, `{"count":1,"first":"1","delta":"1","valid_for":3600,"receipt":"1.1.2.1.0.1.SECRET","returnable":1}`},
			{"orders/take", `{"count":1000,"after":"LAST"}`, 200, `{"count":1000,"first":"2","delta":"1","valid_for":3600,"receipt":"1.2.ru.1.0.1.SECRET","returnable":1001}`},
			{"orders/handback", `{"receipt":"LAST","unused":1001}`, 200, `{"returned":1001}`},
			{"orders/handback", `{"receipt":"LAST","unused":1001}`, 409, "lease_lost"},
			{"orders/take", `{"count":2}`, 200, `{"count":2,"first":"1","delta":"1","valid_for":3600,"receipt":"1.1.3.1.1.1.SECRET","returnable":2}`},
			{"orders/handback", `{"receipt":"LAST","unused":3}`, 400, "1 to 2, which is the receipt's returnable"},
			{"orders/handback", `{"receipt":"LAST","unused":0}`, 400, "1 to 2, which is the receipt's returnable"},
			{"orders/handback", `{"receipt":"LAST"}`, 400, "unused"},
			{"orders/handback", `{"unused":1}`, 400, "receipt"},
			{"orders/handback", `{"receipt":"1.1.3.1.1.0.x","unused":1}`, 400, "receipt"},
			{"orders/handback", `{"receipt":"1.1.3.1.1.-1.x","unused":1}`, 400, "receipt"},
			{"orders/handback", `{"receipt":"1.1.zzzzzzzzzzzzzz.1.1.1.x","unused":1}`, 400, "receipt"},
			{"orders/handback", `{"receipt":"` + strings.Repeat("1", 300) + `","unused":1}`, 400, "receipt"},
			{"other/handback", `{"receipt":"LAST","unused":1}`, 404, "tag_not_found"},
			{"orders/take", `{"count":2,"receipt":false}`, 200, `{"count":2,"first":"3","delta":"1","valid_for":3600}`},
			{"orders/take", `{"count":200,"receipt":false}`, 200, `{"count":100,"first":"5","delta":"1","valid_for":3600}`},
			{"orders/take", `{"count":0}`, 400, "1 to 1000000"},
			{"orders/take", `{"count":1000001}`, 400, "1 to 1000000"},
			{"orders/take", `{"count":"3"}`, 400, "count"},
			{"orders/take", `{"counts":3}`, 400, "one of count, receipt, after, codes"},
			{"orders/take", `{"after":"1.2.3"}`, 400, "after"},
			{"orders/take", `{"codes":true,"after":"LAST"}`, 400, "codes"},
			{"orders/take", `{"codes":true}`, 400, "a tag that has a code"},
			{"orders/take", ``, 415, "Content-Type"},
			{"even/take", `{"count":3}`, 200, `{"count":3,"first":"103","delta":"10","valid_for":3600,"receipt":"1.2s.3m.2s.0.a.SECRET","returnable":3}`},
			{"even/handback", `{"receipt":"LAST","unused":1}`, 200, `{"returned":1}`},
			{"even/take", `{"count":2}`, 200, `{"count":2,"first":"123","delta":"10","valid_for":3600,"receipt":"1.3c.3w.3c.1.a.SECRET","returnable":2}`},
			{"narrow/take", `{"count":10}`, 200, `{"count":5,"first":"1","delta":"1","valid_for":3600,"receipt":"1.1.6.1.0.1.SECRET","returnable":5}`},
			{"a%2Fb%20%C3%BC/take", `{"count":1}`, 200, `{"count":1,"first":"1","delta":"1","valid_for":3600,"receipt":"1.1.2.1.0.1.SECRET","returnable":1}`},
		} {
			got := call(t, h, "POST", "/v1/tags/"+c.path, strings.ReplaceAll(c.body, "LAST", receipt))
			body := strings.TrimSpace(got.Body.String())
			if m := regexp.MustCompile(`"receipt":"([^"]+)"`).FindStringSubmatch(body); m != nil && got.Code == 200 {
				receipt = m[1]
			}
			if receipt != "" && got.Code >= 400 && strings.Contains(body, receipt) {
				t.Errorf("%d: %s shows the receipt: %s", i, c.path, body)
			}
			shown := secret.ReplaceAllString(body, `"receipt":"$1.SECRET"`)
			if got.Code != c.status || c.status == 200 && shown != c.want || !strings.Contains(shown, c.want) {
				t.Errorf("%d: %s %s: %d %s, want %d %s", i, c.path, c.body, got.Code, shown, c.status, c.want)
			}
			if named := got.Header().Get(api.StoreHeader); (named != "") != (got.Code == 200) {
				t.Errorf("%d: %s: the store is %q", i, c.path, named)
			}
		}
	})
}

// What cannot be leased is issued, and kept no longer than it is good for.
func TestTakeOfWhatIsNotLeased(t *testing.T) {
	opts := service.Options{Tags: map[string]service.TagConfig{
		"daily": {Code: "{yyyy}{MM}{dd}-{seq:6}", Zone: "UTC"},
		"plain": {Code: "INV-{id:8}"},
	}}
	bubble(t, opts, func(t *testing.T, h http.Handler, _ *storetest.Faults) {
		for tag, want := range map[string]struct {
			valid  float64
			leased bool
		}{"snowflake": {10, false}, "daily": {0, false}, "plain": {3600, true}} {
			var got takenJSON
			for _, body := range []string{`{"count":3}`, `{"count":3}`} {
				w := call(t, h, "POST", "/v1/tags/"+tag+"/take", body)
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || got.Count != 3 || got.ValidFor != want.valid || (got.Receipt != "") != want.leased {
					t.Errorf("%s: %d %s", tag, w.Code, w.Body)
				}
			}
		}
		var coded takenJSON
		w := call(t, h, "POST", "/v1/tags/daily/take", `{"count":2,"codes":true}`)
		if err := json.Unmarshal(w.Body.Bytes(), &coded); err != nil || len(coded.Codes) != 2 || len(coded.IDs) != 2 || coded.Period == "" || coded.ValidFor != 0 {
			t.Errorf("codes: %d %s", w.Code, w.Body)
		}
	})
}

// Without the scope lease, numbers are issued; and a request that names another store gets
// none.
func TestTakeAsks(t *testing.T) {
	h, tokens, _ := guardedHandler(t, map[string]auth.TokenConfig{
		"issuer": {}, "both": {Scopes: []string{"issue", "lease"}}, "elsewhere": {Scopes: []string{"issue", "lease"}, Tags: []string{"other"}},
	})
	as := func(who, path, body string, headers ...string) (takenJSON, int) {
		w := call(t, h, "POST", path, body, append(headers, "Authorization: Bearer "+tokens[who])...)
		var got takenJSON
		if w.Code == 200 && strings.HasSuffix(path, "take") {
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
		}
		return got, w.Code
	}
	if got, code := as("issuer", "/v1/tags/orders/take", `{"count":5}`); code != 200 || got.Count != 5 || got.Receipt != "" {
		t.Errorf("without the scope lease: %d %+v", code, got)
	}
	lent, code := as("both", "/v1/tags/orders/take", `{"count":5}`)
	if code != 200 || lent.Receipt == "" {
		t.Fatalf("with both scopes: %d %+v", code, lent)
	}
	back := fmt.Sprintf(`{"receipt":%q,"unused":2}`, lent.Receipt)
	for who, want := range map[string]int{"issuer": 403, "elsewhere": 403} {
		if _, code := as(who, "/v1/tags/orders/handback", back); code != want {
			t.Errorf("a hand-back as %s: %d", who, code)
		}
	}
	for _, route := range []struct{ path, body string }{{"/v1/tags/orders/take", `{}`}, {"/v1/tags/orders/handback", back}} {
		if _, code := as("both", route.path, route.body, api.StoreHeader+": another"); code != 503 {
			t.Errorf("%s of another store: %d", route.path, code)
		}
	}
	if _, code := as("both", "/v1/tags/orders/handback", back); code != 200 {
		t.Errorf("a hand-back after those that were refused: %d", code)
	}
}

// A holder is a client that takes numbers of one tag and hands back those that it does not
// issue.
type holder struct {
	takenJSON
	used int // of the stretch
}

// hostile plays clients that take and hand back, with requests that come late, twice, in
// another order, and with receipts that somebody made up. It returns the numbers that were
// issued twice. A client that keeps on goes on with numbers that it handed back.
func hostile(t *testing.T, seed uint64, tag string, keepsOn bool) (double []int64, returned int) {
	h := newHandler(t, memstore.New(), service.Options{Tags: map[string]service.TagConfig{
		"odd": {Start: 5, Delta: 7, Remainder: 2},
	}})
	rng := rand.New(rand.NewPCG(seed, 0))
	issued := map[int64]bool{}
	holders := make([]holder, 3)
	var sent []string // hand-backs, all of which may come again
	issue := func(c *holder, n int) {
		for ; n > 0 && c.used < c.Count; n-- {
			id := int64(*c.First) + int64(c.used)*int64(c.Delta)
			c.used++
			if issued[id] {
				double = append(double, id)
			}
			issued[id] = true
		}
	}
	for range 300 {
		c := &holders[rng.IntN(len(holders))]
		switch rng.IntN(6) {
		case 0, 1:
			after := ""
			if c.Receipt != "" && rng.IntN(3) > 0 {
				after = c.Receipt
			}
			old := *c
			w := call(t, h, "POST", "/v1/tags/"+tag+"/take", fmt.Sprintf(`{"count":%d,"after":%q}`, 1+rng.IntN(20), after))
			*c = holder{}
			if err := json.Unmarshal(w.Body.Bytes(), &c.takenJSON); err != nil || w.Code != 200 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			if unused := int64(old.Count - old.used); c.Returnable >= int64(c.Count)+unused && after != "" && unused > 0 && rng.IntN(2) == 0 {
				sent = append(sent, fmt.Sprintf(`{"receipt":%q,"unused":%d}`, c.Receipt, int64(c.Count)+unused)) // both
				*c = holder{}
			} else if unused > 0 {
				issue(&old, old.Count) // goes on with the first
			}
		case 2, 3:
			issue(c, 1+rng.IntN(8))
		case 4:
			if c.Receipt == "" || c.used == c.Count {
				continue
			}
			sent = append(sent, fmt.Sprintf(`{"receipt":%q,"unused":%d}`, c.Receipt, c.Count-c.used))
			if !keepsOn {
				c.Count = c.used // whatever the answer
			}
		case 5:
			if len(sent) == 0 {
				continue
			}
			body := sent[rng.IntN(len(sent))]
			if rng.IntN(4) == 0 { // forged: another number in it
				parts := strings.Split(body, ".")
				at := 1 + rng.IntN(5)
				n, _ := strconv.ParseInt(parts[at], 36, 64)
				parts[at] = strconv.FormatInt(max(0, n+rng.Int64N(41)-20), 36)
				body = strings.Join(parts, ".")
			}
			if w := call(t, h, "POST", "/v1/tags/"+tag+"/handback", body); w.Code == 200 {
				returned++
			}
		}
	}
	return double, returned
}

func TestHandBacksAreHarmless(t *testing.T) {
	returned := 0
	for seed := range uint64(30) {
		for _, tag := range []string{"orders", "odd"} {
			double, n := hostile(t, seed, tag, false)
			if returned += n; len(double) > 0 {
				t.Fatalf("seed %d, tag %s: issued twice: %v", seed, tag, double)
			}
		}
	}
	if returned < 30 {
		t.Errorf("only %d hand-backs were taken", returned)
	}
	caught := false
	for seed := uint64(0); seed < 30 && !caught; seed++ {
		double, _ := hostile(t, seed, "orders", true)
		caught = len(double) > 0
	}
	if !caught {
		t.Error("a client that goes on with what it handed back is not caught")
	}
}

func FuzzReceipt(f *testing.F) {
	f.Add("1.1.s2.1.0.1.00112233445566778899aabbccddeeff")
	f.Add("1.-1.2.3.4.5.x")
	f.Add("......")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseReceipt("receipt", text)
		if err != nil {
			return
		}
		again, err := parseReceipt("receipt", l.String())
		if err != nil || again != l || l.lo >= l.hi || l.from > l.lo || l.delta < 1 {
			t.Errorf("%q: %+v, %+v, %v", text, l, again, err)
		}
	})
}
