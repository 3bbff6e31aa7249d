package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax/internal/server"
)

// How the file with the settings is named.
const (
	configFlag = "config"
	configEnv  = "HAPAX_CONFIG"
)

// settingFlags collects what a command's flags say about settings.
type settingFlags struct {
	file  string
	given map[string]string
}

// addSettings adds flags for the named settings, or for all, and for the
// configuration file.
func addSettings(cmd *cobra.Command, names ...string) *settingFlags {
	flags := cmd.Flags()
	s := &settingFlags{given: map[string]string{}}
	flags.StringVar(&s.file, configFlag, "", "YAML file with settings (or $"+configEnv+")")
	for _, setting := range server.Settings() {
		if len(names) > 0 && !slices.Contains(names, setting.Name) {
			continue
		}
		f := flags.VarPF(&settingValue{setting, s.given}, setting.Flag(), "", flagUsage(setting))
		if setting.Type == "bool" {
			f.NoOptDefVal = "true"
		}
		if setting.Choices != nil {
			completeFlag(cmd, f.Name, setting.Choices...)
		}
	}
	return s
}

func flagUsage(s server.Setting) string {
	usage := s.Doc
	if s.Allowed != "" && s.Type != "bool" {
		usage += " (" + s.Allowed + ")"
	}
	return usage
}

// hasConfig reports whether tags and pools are defined by anything that was given.
func (s *settingFlags) hasConfig() bool {
	if s.file != "" || os.Getenv(configEnv) != "" {
		return true
	}
	for _, setting := range server.Settings() {
		if _, ok := os.LookupEnv(setting.Env()); ok && (setting.Name == "tags" || setting.Name == "pools") {
			return true
		}
	}
	return false
}

// load returns the configuration from file, environment and flags.
func (s *settingFlags) load() (server.Config, error) {
	file := s.file
	if file == "" {
		file = os.Getenv(configEnv)
	}
	return server.Load(server.Sources{File: file, Env: os.LookupEnv, Flags: s.given})
}

// settingValue is the flag of one setting. What it is given is judged later,
// with all other sources.
type settingValue struct {
	setting server.Setting
	given   map[string]string
}

func (v *settingValue) Set(text string) error {
	v.given[v.setting.Name] = text
	return nil
}

func (v *settingValue) String() string { return v.setting.Default }

func (v *settingValue) Type() string { return v.setting.Type }

// serveCommand returns the command that runs a server; setup may be nil.
func serveCommand(setup server.Setup) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a server",
		Long: `Serve issues numbers over HTTP and the Redis protocol until it is told to stop
by SIGINT or SIGTERM. Then it finishes the requests in flight, gives back what it
holds and exits with 0. After SIGTERM it first reports for the time of --lame-duck
that it is not ready, and serves on; another signal cuts that short. A signal while
it stops ends it at once, with 1: that costs numbers, but repeats none. On SIGHUP it
reloads tokens, certificates and log_level, and names in the log the other settings
that have changed, which need a restart.

With --check it prints what a start would change, such as a store or a witness that is
made, and what prevents a start, such as a format of another version, a store that went
back or is a copy, or an address in use: a line each, ok, change or blocked. Stores of foreign systems are not looked at. The exit code is 0 if it
could start, 1 where something blocks it, and 2 for an error in the configuration.

Every setting is a flag, an environment variable (HAPAX_ and the flag's name in
upper case, with _ for -) and a key of the YAML file (with _ for -). A flag takes
precedence over the environment, and the environment over the file.`,
		Example: `  hapax serve
  hapax serve --data /var/lib/hapax --http 127.0.0.1:9000
  hapax serve --print-config > hapax.yaml
  hapax serve --check --store postgres://…`,
		Args: arguments(0, 0),
	}
	settings := addSettings(cmd)
	check := cmd.Flags().Bool("check", false, "print what a start would change and what prevents it, and exit; nothing is changed")
	printConfig := cmd.Flags().Bool("print-config", false, "print the configuration that results, as a YAML file, and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config, err := settings.load()
		if err != nil {
			return err
		}
		config.Setup = setup
		if *printConfig {
			// A configuration that no server would take must not become a file.
			if err := server.Check(cmd.Context(), config); err != nil {
				return err
			}
			text, err := config.AppendYAML(nil)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}
		if *check {
			return printFindings(cmd, config)
		}
		ctx, leaving, stop := untilSignal(cmd.Context(), config.LameDuck, cmd.ErrOrStderr())
		defer stop()
		return server.Run(ctx, leaving, config, settings.load, cmd.ErrOrStderr())
	}
	return cmd
}

// printFindings says what a start would change and what stands against it.
func printFindings(cmd *cobra.Command, config server.Config) error {
	found, err := server.Look(cmd.Context(), config)
	if err != nil {
		return err
	}
	blocked := 0
	for _, f := range found {
		if f.Verdict == server.VerdictBlocked {
			blocked++
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%s\n", f.Verdict, f.Part, f.Detail); err != nil {
			return err
		}
	}
	if blocked > 0 {
		return fmt.Errorf("a server could not start, or would be granted nothing: %d of these block it", blocked)
	}
	return nil
}

// oneSignal is how soon after another a signal counts as the same: some tools
// signal a process and then its group.
const oneSignal = 200 * time.Millisecond

// untilSignal returns a context that ends with SIGINT, or when the lame duck's time
// after SIGTERM is over, and a channel that is closed when that time begins. A signal
// within that time ends the context, and one after it the process.
func untilSignal(ctx context.Context, lameDuck time.Duration, errs io.Writer) (_ context.Context, leaving <-chan struct{}, end func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, leaving, over := heed(ctx, lameDuck, signals, func() {
		fmt.Fprintln(errs, "hapax: stopped at once by another signal; what was held is not given back")
		os.Exit(exitFailure)
	})
	return ctx, leaving, func() {
		signal.Stop(signals)
		over()
	}
}

// heed is untilSignal for signals from a channel; another is called for each one after the
// context's end.
func heed(ctx context.Context, lameDuck time.Duration, signals <-chan os.Signal, another func()) (_ context.Context, leaving <-chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var last time.Time                // when the last signal came
		timer := time.NewTimer(time.Hour) // of the lame duck
		timer.Stop()
		for {
			var s os.Signal
			select {
			case <-over:
				return
			case <-timer.C:
				cancel()
				continue
			case s = <-signals:
			}
			first, again := last.IsZero(), time.Since(last) <= oneSignal
			last = time.Now()
			switch {
			case again:
			case ctx.Err() != nil:
				another()
			case first && s == syscall.SIGTERM && lameDuck > 0:
				close(left)
				timer.Reset(lameDuck)
			default:
				timer.Stop()
				cancel()
			}
		}
	}()
	return ctx, left, func() {
		close(over)
		// Afterwards, no signal may be taken for another one: the caller goes on.
		<-ended
		cancel()
	}
}
