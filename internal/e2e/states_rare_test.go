package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/strategy"
)

// rareStates are those in which alerts fire that no other state has fire.
var rareStates = []stateTest{
	{name: "down", gone: true, alerts: []string{"HapaxDown", "HapaxNoneReady"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		s.kill()
		return s
	}},
	{
		name: "not joined", state: "joining", code: hapax.ErrStoreUnavailable.Code(), degraded: true, unready: true, command: "hapax nodes",
		alarms: []string{"not_joined"}, alerts: []string{"HapaxNotJoined", "HapaxNotReady", "HapaxNoneReady", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			silent := r.node("silent", "heartbeat: 8s\n") // others give it five of those
			takeSoon(r.t, silent, "orders", 1)
			silent.kill()
			return r.node("a", "")
		},
	},
	{
		name: "line ended", degraded: true, alarms: []string{"cannot_issue", "forecast_near"}, alerts: []string{"HapaxCannotIssue", "HapaxEnded", "HapaxForecastNear"},
		enter: func(r *stateRig) *serving {
			s := r.node("a", fmt.Sprintf("tags: {orders: {start: %d, step: 1, max_step: 1}}\n", int64(hapax.MaxMark-10)))
			r.issues(s, "orders")
			r.drain(s, "orders")
			return s
		}, logged: "no numbers are left",
	},
	{name: "worker poisoned", alarms: []string{"worker_poisoned"}, alerts: []string{"HapaxWorkerPoisoned"}, enter: func(r *stateRig) *serving {
		wrong := r.nodeWith([]string{"HAPAX_TEST_CLOCK_OFFSET=8760h"}, "a", "", "--store", "bolt:") // which has no clock to find that out by
		takeSoon(r.t, wrong, "snowflake", 1)
		wrong.kill()
		s := r.node("a", "refresh: 1s\n", "--store", "bolt:")
		r.issues(s, "snowflake")
		return s
	}},
	{
		name: "plugin failing", alarms: []string{"plugin_failing"}, alerts: []string{"HapaxPluginFailing"},
		enter: func(r *stateRig) *serving {
			s := r.node("a", "plugins: {who: {kind: history, sync: true}}\ntags: {orders: {step: 1000000}}\nmax_wait: 1m\n") // what is slow is no failure
			r.issues(s, "orders")
			r.limit(s, "10")
			if _, err := take(patient, s.url, "orders", 1); refused(err) != strategy.ErrPluginFailed.Code() {
				r.t.Errorf("the history cannot be written, and a call gets %v", err)
			}
			return s
		}, logged: `"code":"plugin_failed"`,
	},
	{name: "internal errors", alerts: []string{"HapaxInternalErrors"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "ledger: on\n")
		r.issues(s, "orders")
		ledger := filepath.Join(r.dir, "a", "ledger")
		if err := errors.Join(os.Rename(ledger, ledger+".away"), os.WriteFile(ledger, nil, 0o600)); err != nil {
			r.t.Fatal(err)
		}
		if status, text, err := r.get(s, "/v1/trace/1"); err != nil || status != http.StatusInternalServerError {
			r.t.Errorf("a ledger that cannot be read: %d %s, %v", status, text, err)
		}
		return s
	}, logged: "request failed"},
	{name: "callers wait", grows: true, alerts: []string{"HapaxCallersWait"}, enter: func(r *stateRig) *serving {
		s := r.node("a", oneByOne+"max_wait: 10s\n")
		r.issues(s, "orders")
		r.proxy.Delay(slow, 0)
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				for range 3 {
					_, _ = take(patient, s.url, "orders", 1)
				}
			})
		}
		callers.Wait()
		r.proxy.Delay(0, 0)
		return s
	}},
	{
		name: "answers refused", degraded: true, alarms: []string{"cannot_issue"}, alerts: []string{"HapaxAnswersRefused", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			s := r.node("a", oneByOne)
			r.issues(s, "orders")
			db := r.open()
			defer db.Close()
			done, err := db.ExecContext(r.t.Context(), "UPDATE "+r.table+`rows SET value = '{"delta": -1}' WHERE tbl = '' AND name = 'orders'`)
			if err != nil {
				r.t.Fatal(err)
			}
			if n, err := done.RowsAffected(); err != nil || n != 1 {
				r.t.Fatalf("%d rows were edited, %v", n, err)
			}
			patience.Until(r.t, "the row is refused", func() bool {
				_, err := take(patient, s.url, "orders", 1)
				e, ok := errors.AsType[*refusal](err)
				return ok && e.Code == hapax.ErrStoreCorrupt.Code()
			})
			return s
		}, logged: "the store's answer cannot be used",
	},
}
