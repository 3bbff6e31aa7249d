package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
)

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong, in the order of harm",
		Long: `Doctor looks at the configuration of this machine, at the data directory, the disk, the
limit on open files, the certificate, and at the store: its settings, its clock and the
other nodes. Where a server runs, it asks that one, too, for its state, alarms, outage
budget and forecasts. It says what it found, the worst first:

  danger   numbers may come twice, or none comes
  soon     this will be so
  weak     it works, and not as well as it could
  ok

Without --config and --data, and where there is no ./hapax-data, it takes the settings of
the service that a package has installed, /etc/hapax/hapax.yaml.

The exit code is 1 if there is a danger.` + serverHelp,
		Args: arguments(0, 0),
	}
	settings := addSettings(cmd)
	address := cmd.Flags().String("server", "", "URL of the server to ask (or $"+serverEnv+")")
	credentials := addCredentials(cmd.Flags())
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		told := settings.ofTheService()
		config, err := settings.load()
		if err != nil {
			return err
		}
		found, err := server.Examine(ctx, config)
		if err != nil {
			return err
		}
		found = append(found, told...)
		found = append(found, askServer(ctx, settings, *address, credentials)...)
		server.SortDiagnoses(found)
		out := newOutput(cmd, *asJSON, "HARM", "PART", "DETAIL", "DO", "SEE")
		dangers := 0
		for _, d := range found {
			if d.Harm == server.HarmDanger {
				dangers++
			}
			if err := out.add(d, string(d.Harm), d.Part, d.Detail, dash(d.Do), dash(d.See)); err != nil {
				return err
			}
		}
		if err := out.flush(); err != nil {
			return err
		}
		if dangers > 0 {
			return fmt.Errorf("%d of these are a danger", dangers)
		}
		return nil
	}
	return cmd
}

// serviceConfig is where packages have the settings of the service that they install.
var serviceConfig = "/etc/hapax/hapax.yaml" // tests have another

// ofTheService takes the settings of the service that a package has installed, where no
// others are named and no server's data directory is here, and says so.
func (s *settingFlags) ofTheService() []server.Diagnosis {
	_, data := s.given["data"]
	if s.file != "" || os.Getenv(configEnv) != "" || data || os.Getenv(dataEnv) != "" || exists("hapax-data") || !exists(serviceConfig) {
		return nil
	}
	f, err := os.Open(serviceConfig)
	if err != nil {
		return []server.Diagnosis{{Harm: server.HarmWeak, Part: "configuration", Detail: "these are the defaults: " + err.Error(), Do: "run it as root or as the service's user, or give --config"}}
	}
	defer f.Close()
	s.file = serviceConfig
	return []server.Diagnosis{{Harm: server.HarmNone, Part: "configuration", Detail: "it is that of the service, " + serviceConfig}}
}

// askServer returns what a server that runs says of itself.
func askServer(ctx context.Context, settings *settingFlags, given string, credentials *credentials) []server.Diagnosis {
	address, named, err := given, true, error(nil)
	if given == "" {
		address, named, err = settings.server(ctx, "")
	}
	// A server that nobody named may well not run: doctor is for a machine that is being set up, too.
	if given == "" && (err != nil || !answers(ctx, address)) {
		return []server.Diagnosis{{Harm: server.HarmNone, Part: "server", Detail: "none runs here"}}
	}
	var st client.Status
	if err == nil {
		var c *remote
		if c, err = dial(ctx, address, credentials, named); err == nil {
			st, err = c.Status(ctx)
			err = errors.Join(c.explain(err), c.Close())
		}
	}
	if err != nil {
		return []server.Diagnosis{{Harm: server.HarmWeak, Part: "server", Detail: hapax.Message(err), Do: "give --server and a token with the scope admin"}}
	}
	return diagnoses(st)
}

// diagnoses says what a server's status means.
func diagnoses(st client.Status) (all []server.Diagnosis) {
	add := func(harm server.Harm, part, detail, do, see string) {
		all = append(all, server.Diagnosis{Harm: harm, Part: part, Detail: detail, Do: do, See: see})
	}
	switch {
	case st.Code != "":
		add(server.HarmDanger, "server", fmt.Sprintf("it is %s: %s: %s", st.State, st.Code, st.Why), st.Command, st.See)
	case st.Why != "":
		add(server.HarmWeak, "server", fmt.Sprintf("it is %s: %s", st.State, st.Why), st.Command, st.See)
	default:
		add(server.HarmNone, "server", "it is "+st.State, "", "")
	}
	for _, a := range st.Alarms {
		detail := a.Detail
		if a.About != "" {
			detail = a.About + ": " + detail
		}
		harm := server.HarmSoon
		if a.Name == "store_went_back" || a.Name == "store_lost" || a.Name == "disk_full" {
			harm = server.HarmDanger
		}
		add(harm, "alarm "+a.Name, detail, "", a.See)
	}
	if b := st.Budget; b != nil {
		if st.Code == "" {
			add(server.HarmNone, "outage budget", budgetText(b), "", "")
		} else {
			add(server.HarmSoon, "outage budget", budgetText(b), "", signals.SeeAlarm(health.AlarmBudget))
		}
	}
	for _, f := range st.Forecasts {
		if slices.ContainsFunc(st.Alarms, func(a client.Alarm) bool { return a.Name == health.AlarmForecast && a.About == f.Name }) {
			continue // it is told above
		}
		add(server.HarmSoon, "forecast", fmt.Sprintf("%s of the %s %s will be used up at %s", health.Ending(f.What), f.Kind, f.Name, f.Ends.UTC().Format(time.RFC3339)), "", signals.SeeAlarm(health.AlarmForecast))
	}
	for _, n := range lost(st.Nodes) {
		add(server.HarmWeak, "nodes", fmt.Sprintf("%s at %s fell silent, and has not come back", n.Name, dash(n.Address)), "start it again, unless it is gone for good", signals.SeeAlert("HapaxDown"))
	}
	for _, n := range st.Nodes {
		if n.IsLive() && !n.Self && n.Seen > time.Minute {
			add(server.HarmWeak, "nodes", fmt.Sprintf("%s was last seen %v ago", n.Name, n.Seen.Round(time.Second)), "look at that machine", "")
		}
	}
	return all
}
