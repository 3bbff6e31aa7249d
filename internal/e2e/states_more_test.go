package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
)

var fleetStates = []stateTest{
	{
		name: "missing node", heals: true, state: "refusing", degraded: true, unready: true, code: hapax.ErrStoreRolledBack.Code(), command: "hapax nodes settle",
		alarms: []string{"budget_low", "store_went_back"}, alerts: []string{"HapaxBudgetLow", "HapaxFenced", "HapaxNotReady", "HapaxNoneReady", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			s, gone := r.node("a", oneByOne), r.node("gone", oneByOne)
			mustTakeSoon(r.t, s)
			r.note(s)
			r.goBack(func() {
				mustTakeSoon(r.t, gone)
				mustTakeSoon(r.t, s) // each grant is a heartbeat, which the copy lacks
				gone.kill()
			})
			s.await("the store went back")
			r.drain(s, "orders")
			return s
		},
	},
	{name: "pool short", alarms: []string{"workers_short"}, alerts: []string{"HapaxWorkersShort"}, enter: func(r *stateRig) *serving {
		const two = "pools: {default: {layout: 'time:41,worker:1,sequence:12,unit=1ms,epoch=2020-01-01T00:00:00Z'}}\nrefresh: 1s\n"
		s := r.node("a", two)
		r.issues(s, "snowflake")
		takeSoon(r.t, r.node("b", two), "snowflake", 1)
		return s
	}},
	{
		name: "pool exhausted", degraded: true, alarms: []string{"cannot_issue"}, alerts: []string{"HapaxWorkersShort", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			const two = "pools: {default: {layout: 'time:41,worker:1,sequence:12,unit=1ms,epoch=2020-01-01T00:00:00Z'}}\nrefresh: 1s\n"
			takeSoon(r.t, r.node("a", two), "snowflake", 1)
			takeSoon(r.t, r.node("b", two), "snowflake", 1)
			s := r.node("c", two)
			r.issues(s, "orders")
			patience.Until(r.t, "no worker ID is left", func() bool {
				_, err := take(patient, s.url, "snowflake", 1)
				return refused(err) == hapax.ErrNoWorker.Code()
			})
			return s
		},
	},
}

var lineStates = []stateTest{
	{name: "line near its end", alarms: []string{"forecast_near"}, alerts: []string{"HapaxForecastNear"}, enter: func(r *stateRig) *serving {
		s := r.node("a", fmt.Sprintf("tags: {orders: {start: %d}}\n", int64(hapax.MaxMark-1_000_000)))
		r.issues(s, "orders")
		takeSoon(r.t, s, "orders", 10_000)
		return s
	}},
	{name: "reader near its end", alarms: []string{"forecast_near"}, alerts: []string{"HapaxForecastNear"}, enter: func(r *stateRig) *serving {
		s := r.node("a", fmt.Sprintf("tags: {orders: {start: %d, reader_bits: 31}}\n", 1<<31-1_000_000))
		r.issues(s, "orders")
		takeSoon(r.t, s, "orders", 10_000)
		return s
	}},
	{name: "layout near its end", alarms: []string{"forecast_near"}, alerts: []string{"HapaxForecastNear"}, enter: func(r *stateRig) *serving {
		epoch := time.Now().Add(10*24*time.Hour - 1<<28*time.Second).UTC().Truncate(time.Second).Format(time.RFC3339)
		s := r.node("a", "pools: {default: {layout: 'time:28,worker:10,sequence:12,unit=1s,epoch="+epoch+"'}}\n")
		r.issues(s, "snowflake")
		return s
	}, logged: "the layout's time ends within a year"},
	{name: "clock ahead", alarms: []string{"clock_skew"}, alerts: []string{"HapaxClockSkew"}, enter: func(r *stateRig) *serving {
		s := r.nodeWith([]string{"HAPAX_TEST_CLOCK_OFFSET=5s"}, "a", "")
		r.issues(s, "snowflake")
		return s
	}},
	{name: "clock behind", alarms: []string{"clock_skew"}, alerts: []string{"HapaxClockSkew"}, enter: func(r *stateRig) *serving {
		s := r.nodeWith([]string{"HAPAX_TEST_CLOCK_OFFSET=-5s"}, "a", "")
		r.issues(s, "snowflake")
		return s
	}},
	{name: "rollback", alarms: []string{"clock_rollback"}, alerts: []string{"HapaxClockRollback"}, enter: func(r *stateRig) *serving {
		file := filepath.Join(r.dir, "offset")
		set := func(offset string) {
			if err := os.WriteFile(file, []byte(offset), 0o600); err != nil {
				r.t.Fatal(err)
			}
		}
		set("500ms")
		s := r.nodeWith([]string{"HAPAX_TEST_CLOCK_OFFSET=@" + file}, "a", "")
		r.issues(s, "snowflake")
		set("-500ms")
		patience.Until(r.t, "the rollback is seen", func() bool {
			_, _ = take(patient, s.url, "snowflake", 1)
			return strings.Contains(s.logged(), `"event":"rollback"`)
		})
		return s
	}},
	{name: "tag deleted", enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		patience.Until(r.t, "the tag is deleted", func() bool { return run(r.t, r.dir, "tags", "delete", "orders", "--server", s.url).code == 0 })
		if _, err := take(patient, s.url, "orders", 1); refused(err) != hapax.ErrTagDeleted.Code() {
			r.t.Errorf("a deleted tag: %v", err)
		}
		return s
	}, logged: "delete tag"},
}

var accessStates = []stateTest{
	{name: "token revoked", enter: func(r *stateRig) *serving {
		s, gone := r.guarded("")
		takeWith := func() (int, string) {
			return request(r.t, patient, http.MethodPost, s.url+"/v1/tags/orders/ids", "Authorization: Bearer "+gone)
		}
		patience.Until(r.t, "the token is good", func() bool { status, _ := takeWith(); return status == http.StatusOK })
		r.note(s)
		r.tokens("")
		r.signal(s, syscall.SIGHUP)
		s.await("configuration read")
		if status, code := takeWith(); status != http.StatusUnauthorized || code != "unauthenticated" {
			r.t.Errorf("a revoked token: %d %s", status, code)
		}
		return s
	}},
	{name: "wrong tokens", alarms: []string{"wrong_tokens"}, alerts: []string{"HapaxWrongTokens"}, enter: func(r *stateRig) *serving {
		s, _ := r.guarded("")
		wrong, _ := newToken(r.t)
		for range 12 {
			request(r.t, patient, http.MethodPost, s.url+"/v1/tags/orders/ids", "Authorization: Bearer "+wrong)
		}
		patience.Slow(time.Second) // one report a second tells of them
		request(r.t, patient, http.MethodPost, s.url+"/v1/tags/orders/ids", "Authorization: Bearer "+wrong)
		return s
	}, logged: "a wrong token was shown"},
	{name: "quota spent", alerts: []string{"HapaxLimitsReached"}, enter: func(r *stateRig) *serving {
		s, token := r.guarded(", numbers_per_day: 5")
		patience.Until(r.t, "the quota is spent", func() bool {
			status, code := request(r.t, patient, http.MethodPost, s.url+"/v1/tags/orders/ids", "Authorization: Bearer "+token)
			return status == http.StatusTooManyRequests && code == "limit_exceeded"
		})
		return s
	}},
	{name: "certificate near its end", alarms: []string{"certificate_near"}, alerts: []string{"HapaxCertificateNear"}, enter: func(r *stateRig) *serving {
		s, _ := r.secure()
		return s
	}},
	{
		name: "certificate bad", alarms: []string{"certificate_bad", "certificate_near"}, alerts: []string{"HapaxCertificateBad", "HapaxCertificateNear"},
		enter: func(r *stateRig) *serving {
			s, a := r.secure()
			if err := os.WriteFile(a.file("server.pem"), []byte("none\n"), 0o600); err != nil {
				r.t.Fatal(err)
			}
			return s
		}, logged: "the certificates cannot be used",
	},
}

// tokens writes a configuration with the rig's own token, and others.
func (r *stateRig) tokens(others string) string {
	r.t.Helper()
	if r.token == "" {
		var hash string
		r.token, hash = newToken(r.t)
		r.env = append(r.env, "HAPAX_TOKEN="+r.token)
		if err := os.WriteFile(filepath.Join(r.dir, "own-hash"), []byte(hash), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	own, err := os.ReadFile(filepath.Join(r.dir, "own-hash"))
	if err != nil {
		r.t.Fatal(err)
	}
	text := "tokens:\n  own: {hash: '" + string(own) + "', scopes: [admin, metrics, issue]}\n" + others
	r.config("a", text)
	return text
}

// guarded starts a node with tokens, one of which has more settings.
func (r *stateRig) guarded(more string) (s *serving, token string) {
	r.t.Helper()
	token, hash := newToken(r.t)
	s = r.node("a", r.tokens("  client: {hash: '"+hash+"'"+more+"}\n"))
	patience.Until(r.t, "the node serves", func() bool {
		status, _ := request(r.t, patient, http.MethodPost, s.url+"/v1/tags/own/ids", "Authorization: Bearer "+r.token)
		return status == http.StatusOK
	})
	r.note(s)
	return s, token
}

// secure starts a node with a certificate of a day.
func (r *stateRig) secure() (*serving, *authority) {
	r.t.Helper()
	a := newAuthority(r.t)
	a.sign("server", false)
	r.web = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS12}}, Timeout: patience.Long}
	r.env = append(r.env, "HAPAX_CA_FILE="+a.file("ca.pem"))
	s := r.node("a", "", "--tls-cert", a.file("server.pem"), "--tls-key", a.file("server.key"))
	patience.Until(r.t, "the node serves", func() bool {
		_, err := take(r.web, s.url, "orders", 1)
		return err == nil
	})
	r.note(s)
	return s, a
}
