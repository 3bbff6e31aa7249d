package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// Limits on the input and the lists of the fence's page.
const (
	maxRaisedShown = 200
	maxRowsShown   = 200

	// maxWitness bounds a request with a witness file, in bytes; a larger one is given to
	// the command on the data directory.
	maxWitness = 16 << 20
)

type fenceBody struct {
	Kept     bool // there is a witness
	Status   witness.Status
	Rows     []witness.Node
	MoreRows int // that are not listed
	StoreID  string
	Node     string // the node that is spoken for; empty: all missing ones
	Floor    string
	Ahead    string
	File     string            // the witness file that was given, by its name
	Wrong    string            // with the statement
	Adoption *witness.Adoption // what would be done
	Raised   []driver.Raised
	More     int // lines that are not listed
	Command  string
	Needed   bool // the form is shown open: a fence stands, a process is missing, or somebody is at it
}

func (c *Console) fence(v *visit) error {
	q := v.URL.Query()
	return c.showFence(v, http.StatusOK, fenceBody{Node: q.Get("node"), Floor: q.Get("floor"), Ahead: cmp.Or(q.Get("ahead"), "10m")})
}

func (c *Console) showFence(v *visit, status int, b fenceBody) error {
	out := c.view(v, "Fence", "fence")
	out.Live, out.Done = v.Method == http.MethodGet, doneText(v)
	out.Command = c.at("nodes", "--all")
	if g := c.svc.Guard(); g != nil {
		b.Kept, b.Status, b.StoreID = true, g.Status(), g.Witness().StoreID()
		b.Rows, _ = g.Nodes(v.Context()) // of a store that does not answer the status tells
		if b.Rows == nil {
			b.Rows = slices.Clone(b.Status.Missing)
		}
		slices.SortStableFunc(b.Rows, func(x, y witness.Node) int { return cmp.Compare(fleet.Weight(x), fleet.Weight(y)) })
		if b.MoreRows = max(0, len(b.Rows)-maxRowsShown); b.MoreRows > 0 {
			b.Rows = b.Rows[:maxRowsShown]
		}
	}
	b.Needed = b.Status.Fence != nil || len(b.Status.Missing) > 0 || b.Node != "" || b.Wrong != "" || b.Adoption != nil
	b.Command = c.statement(b)
	out.Body = b
	if v.Header.Get("Hx-Request") != "" { // the program swaps in any answer
		status = http.StatusOK
	}
	c.render(v.w, status, "fence", out)
	return nil
}

// statement returns the command that states the same as the form.
func (c *Console) statement(b fenceBody) string {
	words := []string{"adopt"}
	if b.Node != "" {
		words = []string{"nodes", "settle", b.Node}
	}
	if b.Floor != "" {
		words = append(words, "--floor", b.Floor)
	}
	if b.File != "" {
		words = append(words, "--witness-file", b.File)
	}
	return c.at(words...)
}

// speak is an operator's word for missing nodes. Without the field do, it only tells
// what would happen.
func (c *Console) speak(v *visit) error {
	// Before the body is read, which may be long.
	if err := c.may(v, "adopt", auth.Operate, ""); err != nil {
		return err
	}
	b, st, err := statementOf(v)
	g := c.svc.Guard()
	if g == nil {
		return fmt.Errorf("%w: the server keeps no witness", hapax.ErrNotSupported)
	}
	var a witness.Adoption
	if err == nil {
		declare := g.Adopt
		if b.Node != "" {
			declare = g.Settle
		}
		a, err = declare(v.Context(), st)
		// A dry run is no act.
		if !st.DryRun {
			c.svc.Attempted(v.Context(), "adopt", err, "node", b.Node, "floor", st.Floor, "witness_file", b.File)
		}
	}
	if err == nil && !st.DryRun {
		redirect(v.w, "fence?done=spoken")
		return nil
	}
	// Also with an error, which may be that nodes are missing.
	if a.StoreID != "" {
		b.Adoption, b.Raised = &a, a.Raised
		if b.More = max(0, len(b.Raised)-maxRaisedShown); b.More > 0 {
			b.Raised = b.Raised[:maxRaisedShown]
		}
	}
	if err != nil {
		b.Wrong = messageOf(err)
		return c.showFence(v, statusOf(err), b)
	}
	return c.showFence(v, http.StatusOK, b)
}

// statementOf reads the form, and the witness file that may be with it.
func statementOf(v *visit) (b fenceBody, st witness.Statement, err error) {
	if err := v.ParseMultipartForm(maxWitness); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return b, st, invalid("form", "(not shown)", fmt.Sprintf("one of up to %d MiB; a larger witness file is given to the command", maxWitness>>20))
	}
	b = fenceBody{Node: strings.TrimSpace(v.PostFormValue("node")), Floor: strings.TrimSpace(v.PostFormValue("floor")), Ahead: strings.TrimSpace(v.PostFormValue("ahead"))}
	st = witness.Statement{Row: b.Node, DryRun: v.PostFormValue("do") == ""}
	floor, err := number(v, "floor")
	if floor != nil {
		st.Floor = *floor
	}
	if b.Ahead != "" {
		var wrong error
		if st.Ahead, wrong = time.ParseDuration(b.Ahead); wrong != nil {
			err = cmp.Or(err, invalid("ahead", b.Ahead, "a duration such as 10m"))
		}
	}
	file, header, missing := v.FormFile("witness")
	if missing != nil { // a form without a file is whole
		return b, st, err
	}
	defer func() { _ = file.Close() }()            // it was read
	if header.Filename == "" && header.Size == 0 { // none was chosen
		return b, st, err
	}
	b.File = header.Filename
	t, wrong := witness.ReadFrom(file, b.File)
	if wrong != nil {
		return b, st, cmp.Or(err, invalid("witness", b.File, "a witness file, as it lies in a data directory: "+messageOf(wrong)))
	}
	st.Witness = append(st.Witness, t)
	return b, st, err
}
