package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// maxTraced bounds how many nodes one command asks.
const maxTraced = 100

func traceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace NUMBER",
		Short: "Show which node was granted a number, and who got it",
		Long: `Trace shows which node was granted a number, when and under which token, or which
client leased it; and, if the plugin history is on, who got it and when. Each node
knows only its own grants: with --fleet the server asks the others, which answer it with a
fleet_key, or over TLS; or give --server for every node. For nodes that do not run, give
their data directories with --data.

The verdicts, one a line that the number may be on:

  issued         a history has it
  granted        and what became of it is not recorded
  handed_back    granted, and given back without being issued
  elsewhere      below the store's mark, and in no ledger that was asked
  never_granted  and so never issued
  unknown        in no ledger that was asked, and no store was

Without --tag and --layout the number is looked up on every line that the nodes
know. Without --server and --data, trace asks the data directory ./hapax-data, through
the server that runs there if one does, or else the server at 127.0.0.1:8080. The exit code is 1 if nothing is known of the
number, or no store has the tag.`,
		Example: `  hapax trace 777 --tag orders
  hapax trace 777 --tag orders --server http://a:8080 --fleet
  hapax trace 1874244142494674944 --layout leaf --server http://a:8080 --server http://b:8080
  hapax trace INV-20261121-0000018 --tag invoices --code
  hapax trace 777 --tag orders --server http://a:8080 --data /backup/node-b`,
		Args: arguments(1, 1),
	}
	flags := cmd.Flags()
	var req client.TraceRequest
	flags.StringVar(&req.Tag, "tag", "", "the tag that the number is of")
	flags.StringVar(&req.Layout, "layout", "", "the layout that the number is of: a built-in one or a spec (see hapax layouts)")
	flags.BoolVar(&req.Code, "code", false, "the argument is a code of the tag; nodes that run can read it")
	servers := flags.StringArray("server", nil, "URL of a server to ask; may be given several times (or $"+serverEnv+")")
	data := flags.StringArray("data", nil, "data directory of a node to ask; may be given several times (or $"+dataEnv+")")
	inFleet := flags.Bool("fleet", false, "have the server ask the other nodes of its store, too; with one --server at most")
	creds := addCredentials(flags)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Number = args[0]
		if req.Tag != "" && req.Layout != "" {
			return usagef("--tag and --layout exclude each other: a tag has its layout")
		}
		if req.Code && req.Tag == "" {
			return usagef("--code needs --tag")
		}
		if !req.Code { // before nodes are looked for: none would take it
			if _, err := hapax.ParseID(req.Number); err != nil {
				return err
			}
		}
		if *inFleet && len(*servers) > 1 {
			return usagef("--fleet and %d times --server exclude each other: every node would be asked by each", len(*servers))
		}
		if len(*servers)+len(*data) > maxTraced {
			return usagef("%d nodes are more than %d", len(*servers)+len(*data), maxTraced)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		traces, failed := traceAll(ctx, req, tracers(*servers, *data, creds, *inFleet))
		if len(traces) == 0 {
			return failed
		}
		merged := mergeTraces(traces)
		var err error
		if *asJSON {
			err = newOutput(cmd, true).add(merged)
		} else {
			err = printTrace(cmd, merged)
		}
		// A node that did not answer may know the number, and its error says more than this one.
		if err == nil && failed == nil && !merged.known() {
			err = fmt.Errorf("nothing is known of %s where it was looked for; ask all nodes that may have issued it", req.Number)
		}
		return errors.Join(err, failed)
	}
	return cmd
}

// A tracer asks one node, or has it ask all of its store.
type tracer func(ctx context.Context, req client.TraceRequest) ([]client.Trace, error)

// tracers returns the nodes to ask.
func tracers(servers, data []string, creds *credentials, fleet bool) (all []tracer) {
	if len(servers)+len(data) == 0 {
		if address := os.Getenv(serverEnv); address != "" {
			servers = []string{address}
		} else if c := server.DefaultConfig(); os.Getenv(dataEnv) == "" && !exists(c.Data) {
			return []tracer{traceDefault(c, creds, fleet)}
		} else {
			data = []string{cmp.Or(os.Getenv(dataEnv), c.Data)}
		}
	}
	for _, address := range servers {
		all = append(all, traceServer(address, creds, true, fleet))
	}
	for _, dir := range data {
		if !exists(dir) {
			all = append(all, func(context.Context, client.TraceRequest) ([]client.Trace, error) {
				return nil, &hapax.ValueError{Field: "--data", Value: dir, Allowed: "the data directory of a node; there is none with this name", Err: hapax.ErrInvalidArgument}
			})
			continue
		}
		all = append(all, func(ctx context.Context, req client.TraceRequest) ([]client.Trace, error) {
			address, trusted := server.Announced(dir)
			// The file stays behind a crash, so that an address is no proof of a server.
			if address != "" && answers(ctx, address) {
				return traceServer(address, creds, trusted, fleet)(ctx, req)
			}
			t, err := traceFiles(ctx, dir, req)
			if err != nil {
				return nil, err
			}
			return []client.Trace{t}, nil
		})
	}
	return all
}

// traceDefault asks the server that other commands turn to where there is no data directory.
func traceDefault(c server.Config, creds *credentials, fleet bool) tracer {
	named := os.Getenv(httpEnv) != ""
	if named {
		c.HTTP = os.Getenv(httpEnv)
	}
	return func(ctx context.Context, req client.TraceRequest) ([]client.Trace, error) {
		if address := c.URL(); answers(ctx, address) {
			return traceServer(address, creds, named, fleet)(ctx, req)
		}
		return nil, fmt.Errorf("no server answers on %s, and there is no data directory %s; give --server or --data of the nodes to ask", c.URL(), c.Data)
	}
}

// traceAll asks the nodes, and returns the answers and what went wrong.
func traceAll(ctx context.Context, req client.TraceRequest, nodes []tracer) (traces []client.Trace, err error) {
	var errs []error
	for _, ask := range nodes {
		told, err := ask(ctx, req)
		if err != nil {
			errs = append(errs, err)
		}
		traces = append(traces, told...)
	}
	return traces, errors.Join(errs...)
}

// traceServer asks a server, or has it ask all nodes of its store.
func traceServer(address string, creds *credentials, named, fleet bool) tracer {
	return func(ctx context.Context, req client.TraceRequest) (all []client.Trace, err error) {
		r, err := dial(ctx, address, creds, named)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		if !fleet {
			t, err := r.Trace(ctx, req)
			if err != nil {
				return nil, r.explain(err)
			}
			return []client.Trace{t}, nil
		}
		nodes, err := r.FleetTrace(ctx, req)
		if err != nil {
			return nil, r.explain(err)
		}
		var silent []error
		for _, n := range nodes {
			if n.Err != "" {
				silent = append(silent, fmt.Errorf("%s: %s", n.Name, n.Err))
				continue
			}
			all = append(all, n.Trace)
		}
		return all, errors.Join(silent...)
	}
}

// traceFiles reads the records in a data directory that no server runs in.
func traceFiles(ctx context.Context, dir string, req client.TraceRequest) (client.Trace, error) {
	var none client.Trace
	if _, err := os.Stat(filepath.Join(dir, ledger.Dir)); err != nil {
		return none, fmt.Errorf("%w: no server runs in %s, and it has no ledger; give --server or --data", hapax.ErrNotSupported, dir)
	}
	if req.Code {
		return none, fmt.Errorf("%w: no server runs in %s that can read a code; give --server, or the number with --tag and the line's name", hapax.ErrNotSupported, dir)
	}
	id, err := hapax.ParseID(req.Number)
	if err != nil {
		return none, err
	}
	q := ledger.Query{Number: id, Tag: req.Tag, AnyPool: true}
	if req.Layout != "" {
		if q.Layout, err = hapax.ParseLayout(req.Layout); err != nil {
			return none, err
		}
	}
	found, err := ledger.Find(ctx, filepath.Join(dir, ledger.Dir), q)
	if err != nil {
		return none, err
	}
	var history *strategy.HistoryFinding
	if kept := filepath.Join(dir, strategy.HistoryDir); exists(kept) {
		h, err := strategy.FindHistory(ctx, kept, id, func(tag, kind string) bool {
			return req.Tag == "" || tag == req.Tag || kind == string(hapax.KindSnowflake)
		})
		if err != nil {
			return none, err
		}
		history = &h
	}
	var candidates []ledger.Candidate
	// A tag that was named gets a line and a verdict even where this node was granted nothing on it.
	if req.Tag != "" && len(found.Lines) == 0 {
		candidates = []ledger.Candidate{{Name: witness.TagLine(req.Tag), Position: int64(id)}}
	}
	return ledger.Judge(id, cmp.Or(found.Node, dir), found, history, candidates), nil
}

// A mergedTrace is what several nodes know of a number.
type mergedTrace struct {
	Number hapax.ID     `json:"number"`
	Lines  []mergedLine `json:"lines"`
	Nodes  []tracedNode `json:"nodes"` // that were asked
	More   bool         `json:"more,omitempty"`
}

type mergedLine struct {
	client.TraceLine
	By []string `json:"by"` // the nodes behind Why
}

type tracedNode struct {
	Node    string               `json:"node"`
	Ledger  client.TraceCoverage `json:"ledger"`
	History client.TraceCoverage `json:"history"`
}

// mergeTraces puts the answers of several nodes together: on each line the
// strongest verdict, and all that is known.
func mergeTraces(traces []client.Trace) mergedTrace {
	m := mergedTrace{Number: traces[0].Number, Lines: []mergedLine{}}
	at := map[string]int{}
	for _, t := range traces {
		m.Nodes = append(m.Nodes, tracedNode{t.Node, t.Ledger, t.History})
		m.More = m.More || t.More
		for _, l := range t.Lines {
			i, known := at[l.Name]
			if !known {
				at[l.Name] = len(m.Lines)
				m.Lines = append(m.Lines, mergedLine{l, []string{t.Node}})
				continue
			}
			old := &m.Lines[i]
			old.Grants = append(old.Grants, l.Grants...)
			old.Issued = append(old.Issued, l.Issued...)
			switch strongest := ledger.Strongest(old.Verdict, l.Verdict); {
			case l.Verdict == old.Verdict:
				if l.Why != old.Why && l.Verdict != api.VerdictNeverGranted {
					old.Why += "; " + l.Why
				}
				old.By = append(old.By, t.Node)
			case strongest == l.Verdict:
				old.Verdict, old.Why, old.By = l.Verdict, l.Why, []string{t.Node}
			}
		}
	}
	if m.known() { // what nobody knows is no line of the number's
		m.Lines = slices.DeleteFunc(m.Lines, func(l mergedLine) bool { return l.Verdict == api.VerdictUnknown })
	}
	return m
}

// known reports whether somebody knows something of the number.
func (m mergedTrace) known() bool {
	return slices.ContainsFunc(m.Lines, func(l mergedLine) bool { return l.Verdict != api.VerdictUnknown })
}

// printTrace prints a row for each fact, its name first.
func printTrace(cmd *cobra.Command, m mergedTrace) error {
	out := newOutput(cmd, false)
	rows := [][]string{{"number", m.Number.String()}}
	if len(m.Lines) == 0 {
		rows = append(rows, []string{"verdict", "unknown"}, []string{"why", "no node that was asked knows a line that it was granted on"})
	}
	for _, l := range m.Lines {
		rows = append(rows, []string{"line", l.Name})
		if l.Shown != nil {
			rows = append(rows, []string{"shown for", l.Shown.String()})
		}
		if l.Time != nil {
			rows = append(rows, []string{"time", l.Time.UTC().Format(time.RFC3339Nano)})
		}
		rows = append(rows, []string{"verdict", string(l.Verdict)}, []string{"why", l.Why})
		for _, g := range l.Grants {
			row := []string{
				"granted", strconv.FormatInt(g.Lo, 10) + ".." + strconv.FormatInt(g.Hi-1, 10), g.Node,
				g.Time.UTC().Format(time.RFC3339Nano), "token " + dash(g.Key+g.Token), "to " + dash(strings.TrimSpace(g.Caller+" "+g.Address)),
			}
			if g.GivenAt != nil {
				row = append(row, "given "+g.Given+" "+g.GivenAt.UTC().Format(time.RFC3339Nano))
			}
			rows = append(rows, row)
		}
		for _, i := range l.Issued {
			rows = append(rows, []string{
				"issued", i.First.String() + ".." + i.Last.String(), i.Tag,
				i.From.UTC().Format(time.RFC3339Nano) + ".." + i.Until.UTC().Format(time.RFC3339Nano),
				"to " + dash(strings.TrimSpace(i.Caller+" "+i.Address)),
			})
		}
	}
	for _, n := range m.Nodes {
		rows = append(rows, []string{"node", n.Node, "ledger " + coverage(n.Ledger), "history " + coverage(n.History)})
	}
	for _, row := range rows {
		if err := out.add(nil, row...); err != nil {
			return err
		}
	}
	return out.flush()
}

func coverage(c client.TraceCoverage) string {
	switch {
	case !c.On:
		return "off"
	case c.Since == nil:
		return "empty"
	case c.Lost > 0 || c.Damaged > 0:
		return fmt.Sprintf("since %s, %d lost, %d damaged", c.Since.UTC().Format(time.RFC3339Nano), c.Lost, c.Damaged)
	}
	return "since " + c.Since.UTC().Format(time.RFC3339Nano)
}
