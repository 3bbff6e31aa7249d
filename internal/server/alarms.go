package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/health"
)

// sights are the server's own causes of alarms, beside those of its service.
type sights struct {
	certs  *certificates // nil: no TLS
	within time.Duration // of the certificate's end

	mu     sync.Mutex // guards config
	config string     // what is wrong with the configuration that was read last; empty: nothing
}

// conditions returns the conditions that raise alarms.
func (w *sights) conditions(now time.Time) (all []health.Condition) {
	if w.certs != nil {
		if ends := w.certs.current.Load().expires; ends.Sub(now) < w.within {
			all = append(all, health.Condition{Alarm: health.AlarmCertificate, Detail: "the certificate ends at " + ends.UTC().Format(time.RFC3339)})
		}
		if bad := w.certs.bad.Load(); bad != nil {
			all = append(all, health.Condition{Alarm: health.AlarmCertificateBad, Detail: *bad})
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.config != "" {
		all = append(all, health.Condition{Alarm: health.AlarmConfig, Detail: w.config})
	}
	return all
}

// configRead notes what is wrong with the configuration that was read last.
func (w *sights) configRead(wrong string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.config = wrong
}

// Limits on telling of alarms.
const (
	noticeTries   = 3
	noticeTimeout = 10 * time.Second // of one try
	noticePause   = time.Second
	maxNotices    = 100 // that wait
)

// A notice tells of an alarm. It holds no secret.
type notice struct {
	State string `json:"state"` // "raised" or "cleared"
	Node  string `json:"node"`
	api.Alarm
}

// A notifier carries alarms to where operators want them: to one command, one URL, or
// both, one after the other.
type notifier struct {
	command, url, node string

	log   *slog.Logger
	web   *http.Client
	pause time.Duration // before the second try, and doubled with each

	timeout time.Duration // of one try

	queue  chan notice
	life   context.Context
	stop   context.CancelFunc
	worker sync.WaitGroup
}

// checkAlarmURL refuses a URL to which nothing can be sent.
func checkAlarmURL(c Config) error {
	if c.AlarmURL == "" {
		return nil
	}
	if u, err := url.Parse(c.AlarmURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return &hapax.ValueError{Field: "alarm_url", Value: "(not shown)", Allowed: "an address such as https://HOST/PATH", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// newNotifier returns what the configuration asks for; nil for nothing.
func newNotifier(c Config, log *slog.Logger) (*notifier, error) {
	if c.AlarmCommand == "" && c.AlarmURL == "" {
		return nil, nil
	}
	if err := checkAlarmURL(c); err != nil {
		return nil, err
	}
	n := &notifier{
		command: c.AlarmCommand, url: c.AlarmURL, log: log, pause: noticePause, timeout: noticeTimeout, queue: make(chan notice, maxNotices),
		// No redirect is followed: a notice goes only where the operator has it sent.
		web: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	n.life, n.stop = context.WithCancel(context.Background())
	n.worker.Go(n.work)
	return n, nil
}

// notify queues an alarm.
func (n *notifier) notify(a api.Alarm, raised bool) {
	tell := notice{State: "cleared", Node: n.node, Alarm: a}
	if raised {
		tell.State = "raised"
	}
	// The look for alarms is not to wait for a receiver that hangs.
	select {
	case n.queue <- tell:
	default:
		n.lost(tell, "the queue", fmt.Errorf("%d alarms wait already", maxNotices))
	}
}

func (n *notifier) work() {
	for {
		select {
		case <-n.life.Done():
			return
		case tell := <-n.queue:
			if n.command != "" {
				n.deliver(tell, "the command", n.run)
			}
			if n.url != "" {
				n.deliver(tell, "the URL", n.post)
			}
		}
	}
}

// close ends notices under way.
func (n *notifier) close() {
	if n != nil {
		n.stop()
		n.worker.Wait()
	}
}

// deliver tries a few times.
func (n *notifier) deliver(tell notice, to string, by func(context.Context, notice) error) {
	pause := n.pause
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(n.life, n.timeout)
		err := by(ctx, tell)
		cancel()
		if err == nil || n.life.Err() != nil {
			return
		}
		if try == noticeTries {
			n.lost(tell, to, err)
			return
		}
		select {
		case <-time.After(pause):
		case <-n.life.Done():
			return
		}
		pause *= 2
	}
}

func (n *notifier) lost(tell notice, to string, err error) {
	n.log.Warn("an alarm could not be delivered", "alarm", tell.Name, "about", tell.About, "state", tell.State, "to", to, "err", err)
}

// run calls the command, with the notice as JSON on its standard input. Of the
// environment it gets what a program needs to be found, and nothing that may be secret.
func (n *notifier) run(ctx context.Context, tell notice) error {
	body, err := json.Marshal(tell)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, n.command) //nolint:gosec // it is the operator's own
	// What the command has started may keep the pipe of its standard input open beyond its end.
	cmd.WaitDelay = time.Second
	endTogether(cmd)
	cmd.Stdin = bytes.NewReader(body)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"HAPAX_ALARM=" + tell.Name, "HAPAX_ALARM_STATE=" + tell.State, "HAPAX_ALARM_ABOUT=" + tell.About, "HAPAX_ALARM_DETAIL=" + tell.Detail,
	}
	return cmd.Run()
}

// bareURL returns an error without the URL that it repeats.
func bareURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// post sends the notice as JSON. The URL may hold a secret, so that no error repeats it.
func (n *notifier) post(ctx context.Context, tell notice) error {
	body, err := json.Marshal(tell)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url, bytes.NewReader(body))
	if err != nil {
		return bareURL(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := n.web.Do(req)
	if err != nil {
		return bareURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	return nil
}
