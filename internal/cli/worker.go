package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/supervise"
)

// The exit codes of worker exec and worker hold that are not the command's.
const (
	exitNoWorker   = 110
	exitNoServer   = 111
	exitNotAllowed = 112
	exitClock      = 113
	exitLost       = 114
	exitClockSet   = 115
	exitLeftBehind = 116
	exitWrapper    = 125
	exitCannotRun  = 126
	exitNoCommand  = 127
)

const workerExitHelp = `
Exit codes:

  110  no worker ID came free within --wait
  111  no server answered within --wait
  112  the servers do not allow it: the token is missing, wrong, or not for workers
  113  this clock is too far from the servers'
`

const execExitHelp = workerExitHelp + `  114  no more time was granted, and the command was stopped
  115  the clock was set back, and the command was killed
  116  the command ended with 0 and had left processes behind, which were stopped
  125  wrong command line, a worker ID outside the generator's range, any other failure
  126  the command cannot be run
  127  there is no such command`

const holdExitHelp = workerExitHelp + `  114  no more time was granted; the file was removed
  115  the clock was set back; the file was removed
  125  wrong command line, a worker ID outside the generator's range, any other failure`

// statusError is an error with an exit code of its own. Where there is nothing to say,
// it is only the code.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return fmt.Sprint(e.err) }
func (e *statusError) Unwrap() error { return e.err }

// workerStatusOf gives an error the exit code that its cause has.
func workerStatusOf(err error) error {
	if _, ok := errors.AsType[*statusError](err); ok || err == nil {
		return err
	}
	for _, c := range []struct {
		err    error
		status int
	}{
		{hapax.ErrClockSkew, exitClock},
		{hapax.ErrWorkerPoisoned, exitClock},
		{hapax.ErrNoWorker, exitNoWorker},
		{api.ErrUnauthenticated, exitNotAllowed},
		{api.ErrPermissionDenied, exitNotAllowed},
		{hapax.ErrStoreUnavailable, exitNoServer},
		{hapax.ErrRefillPending, exitNoServer},
	} {
		if errors.Is(err, c.err) {
			return &statusError{c.status, err}
		}
	}
	return &statusError{exitWrapper, err}
}

func workerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Give a worker ID to another generator than hapax",
		Long: `A number generator with worker IDs makes duplicates when two processes run with one
of them, or when a process gets one whose last holder's clock was ahead. Worker takes
worker IDs from the servers together with the time in which they may be used. The
program's generator need not be changed.`,
	}
	hidden := func(name, short string, run func(args []string) int) *cobra.Command {
		return &cobra.Command{
			Use:    name,
			Short:  short,
			Hidden: true,
			RunE: func(_ *cobra.Command, args []string) error {
				if status := run(args); status != 0 {
					return &statusError{status: status}
				}
				return nil
			},
		}
	}
	dog := hidden("watchdog", "End a command when its granted time is over, for worker exec", func([]string) int { return supervise.Watch() })
	begin := hidden("begin", "Become a command once its watchdog knows it, for worker exec", supervise.Begin)
	group(cmd, workerExecCommand(), workerHoldCommand(), dog, begin)
	return cmd
}

// workerFlags say which worker ID is wanted, for which generator, and from which server.
type workerFlags struct {
	settings    *settingFlags
	credentials *credentials
	servers     []string

	pool, workers, name, known string
	env                        []string
	among                      hapax.WorkerRange // of which one was given; hold sets it
	wait, grant, grace         time.Duration
	ahead, maxSkew             time.Duration
	listKnown                  bool
}

func addWorkerFlags(cmd *cobra.Command) *workerFlags {
	f := &workerFlags{settings: addSettings(cmd, "data")}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.servers, "server", nil, "URLs of the servers to ask (or $"+serverEnv+")")
	f.credentials = addCredentials(flags)
	flags.StringVar(&f.pool, "pool", hapax.DefaultPool, "worker pool; give each kind of generator one of its own")
	flags.StringVar(&f.workers, "workers", "", "worker IDs to choose from, LO-HI or one (default: all of the pool's)")
	flags.StringVar(&f.name, "name", "", "name by which hapax workers shows the holder")
	flags.StringArrayVar(&f.env, "env", nil, "NAME=TEMPLATE: a variable with the worker ID in it, such as 'W={worker}', 'DC={worker/32}', 'M={worker%32}'")
	flags.StringVar(&f.known, "for", "", "set the variables, the worker IDs and --ahead for a generator that --list-known lists")
	flags.BoolVar(&f.listKnown, "list-known", false, "list the generators that --for knows")
	flags.DurationVar(&f.wait, "wait", 30*time.Second, "how long to wait for the servers and a free worker ID (1s or more)")
	flags.DurationVar(&f.ahead, "ahead", hapax.DefaultRunAhead, "how far the time in the generator's numbers may be ahead of the clock, plus the unit of that time")
	flags.DurationVar(&f.grant, "grant", hapax.DefaultHoldGrant, "time granted at first; it doubles up to 5m, or to what the servers allow")
	flags.DurationVar(&f.grace, "grace", hapax.DefaultHoldGrace, "time to stop in when no more is granted")
	flags.DurationVar(&f.maxSkew, "max-skew", 10*time.Second, "how far this clock may be from the servers'")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &statusError{exitWrapper, cmd.Root().FlagErrorFunc()(cmd, err)}
	})
	return f
}

// maxMargin is the longest that the worker ID stays unused before its time is over, in
// case killing takes a moment.
const maxMargin = time.Second

// margin returns for how long before the time granted is over nothing may run any more.
func (f *workerFlags) margin() time.Duration { return min(maxMargin, f.grant/10) }

// prepare completes the flags by those of a known generator, and returns the worker IDs
// to choose from and the variables.
func (f *workerFlags) prepare(cmd *cobra.Command) (hapax.WorkerRange, []variable, error) {
	var ids hapax.WorkerRange
	var vars []variable
	if f.wait < time.Second {
		return ids, nil, &hapax.ValueError{Field: "--wait", Value: f.wait, Allowed: "1s or more", Err: hapax.ErrInvalidArgument}
	}
	if f.workers != "" {
		var err error
		if ids, err = parseWorkers(f.workers); err != nil {
			return ids, nil, err
		}
	}
	if f.known != "" {
		k, err := knownGenerator(f.known)
		if err != nil {
			return ids, nil, err
		}
		all := hapax.WorkerRange{Lo: k.least, Hi: k.most + 1}
		switch {
		case ids == (hapax.WorkerRange{}):
			ids = all
		case ids.Lo < all.Lo || ids.Hi > all.Hi:
			return ids, nil, &hapax.ValueError{Field: "--workers", Value: f.workers, Allowed: fmt.Sprintf("worker IDs from %d to %d, which %s can have", k.least, k.most, k.name), Err: hapax.ErrInvalidArgument}
		}
		if !cmd.Flags().Changed("ahead") {
			f.ahead = k.ahead
		}
		vars = k.variables()
	}
	for _, text := range f.env {
		v, err := parseVariable(text)
		if err != nil {
			return ids, nil, err
		}
		vars = append(vars, v)
	}
	return ids, vars, nil
}

// parseWorkers reads LO-HI, both included, or one worker ID.
func parseWorkers(text string) (hapax.WorkerRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	lo, err := strconv.ParseInt(strings.TrimSpace(first), 10, 64)
	hi := lo
	if isRange && err == nil {
		hi, err = strconv.ParseInt(strings.TrimSpace(last), 10, 64)
	}
	if err != nil || lo < 0 || hi < lo || hi >= 1<<62 {
		return hapax.WorkerRange{}, &hapax.ValueError{Field: "--workers", Value: text, Allowed: "LO-HI or one worker ID, such as 0-31", Err: hapax.ErrInvalidArgument}
	}
	return hapax.WorkerRange{Lo: lo, Hi: hi + 1}, nil
}

// dial returns a client of the servers that are meant.
func (f *workerFlags) dial(ctx context.Context) (*client.Client, error) {
	named := true
	servers := f.servers
	if len(servers) == 0 {
		address, is, err := f.settings.server(ctx, "")
		if err != nil {
			return nil, err
		}
		servers, named = strings.Split(address, ","), is
	}
	token, err := f.credentials.token()
	if err != nil {
		return nil, err
	}
	if !named { // whoever got to that address first would have it
		token = ""
	}
	config, err := f.credentials.tls()
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, client.Options{Token: token, TLS: config}, servers...)
}

// A holding is a worker ID with the client that extends it.
type holding struct {
	*hapax.HeldWorker
	client   *client.Client
	extended chan struct{} // gets one when more time was granted
	clock    hapax.Clock   // of a test; else nil
}

// hold takes a worker ID.
func (f *workerFlags) hold(ctx context.Context, ids hapax.WorkerRange, holder string, onRollback hapax.RollbackPolicy) (*holding, error) {
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	clock, err := server.TestClock()
	if err != nil {
		return nil, err
	}
	c, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	layout, err := c.PoolLayout(ctx, f.pool)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if f.known != "" && f.workers == "" {
		ids.Hi = min(ids.Hi, layout.Workers()) // the pool may be smaller than the generator's range
	}
	if ids.Lo >= layout.Workers() || ids.Hi > layout.Workers() {
		return nil, errors.Join(&hapax.ValueError{
			Field: "--workers", Value: fmt.Sprintf("%d-%d", ids.Lo, ids.Hi-1), Err: hapax.ErrInvalidArgument,
			Allowed: fmt.Sprintf("worker IDs of the pool %q, which has 0 to %d", f.pool, layout.Workers()-1),
		}, c.Close())
	}
	if f.among = ids; ids == (hapax.WorkerRange{}) {
		f.among.Hi = layout.Workers()
	}
	h := &holding{client: c, extended: make(chan struct{}, 1), clock: clock}
	h.HeldWorker, err = c.HoldWorker(ctx, hapax.HoldOptions{
		Pool: f.pool, Layout: layout, Workers: ids, Holder: holder, MaxSkew: f.maxSkew,
		Grant: f.grant, RunAhead: f.ahead, Grace: f.grace + f.margin(), OnRollback: onRollback, Clock: clock,
		Observer: func(e hapax.Event) {
			if e.Kind == hapax.EventGrant {
				// One word is enough: the deadline is read anew with it.
				select {
				case h.extended <- struct{}{}:
				default:
				}
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return h, nil
}

// untilForm is how the end of the time granted is written.
const untilForm = "2006-01-02T15:04:05.000Z"

// lasts returns the time from which on the worker ID must not be used, by the wall clock as it stands,
// and how long that is.
func (h *holding) lasts() (until time.Time, left time.Duration) {
	source := h.clock
	if source == nil {
		source = hapax.SystemClock{}
	}
	// In this order a pause between them makes the time that is told too short, not too long, and so does an
	// extension.
	wall, _ := source.Now()
	until, left = h.Until(), h.Remaining()
	// A wall clock that was set back since the grant reaches the granted end too late.
	if soonest := wall.Add(left); soonest.Before(until) {
		until = soonest
	}
	return until, left
}

// sealWithin bounds how long the end waits for the servers to take the worker ID back.
const sealWithin = 2 * time.Second

// end gives the worker ID back, where nothing uses it any more.
func (h *holding) end(gone bool) {
	// Of its own: the command's context may have ended.
	ctx, cancel := context.WithTimeout(context.Background(), sealWithin)
	defer cancel()
	if gone {
		_ = h.Close(ctx) // what does not get there costs the next holder a wait
	} else {
		// What may still run uses the worker ID, which stays taken until its time is over.
		_ = h.Abandon(ctx)
	}
	_ = h.client.Close()
}

// giveBack is end for an ID that programs ask for. One that was told a time by its name goes on until then, whatever
// becomes of this process.
func (h *holding) giveBack(one *claim) { h.end(!one.end()) }

// Lengths of the parts of a holder's name.
const (
	maxHolderName    = 32
	maxHolderHost    = 32
	maxHolderCommand = 24
)

// holder names this process and what it holds the worker ID for. No two have one name.
func holder(kind, name, command string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	text := kind
	if name != "" {
		text += " name=" + plain(name, maxHolderName)
	}
	text += fmt.Sprintf(" host=%s pid=%d", plain(host, maxHolderHost), os.Getpid())
	if command != "" {
		text += " cmd=" + plain(filepath.Base(command), maxHolderCommand)
	}
	return text + " run=" + strings.ToLower(rand.Text()[:6])
}

// plain returns text as one printable ASCII word of limited length.
func plain(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > unicode.MaxASCII-1 {
			return '_'
		}
		return r
	}, text)
	return text[:min(len(text), most)]
}
