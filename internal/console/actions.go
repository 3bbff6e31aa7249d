package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// done are what a page says after something was done, by the word in its URL.
var done = map[string]string{
	"created": "The tag was created.", "changed": "The tag was changed. Nodes adopt it with their next grant.",
	"deleted": "The tag was deleted. Its mark stays; other nodes stop within the refresh interval.",
	"retired": "The worker ID is out of use until the clock passes its mark.",
	"spoken":  "It was taken down. The nodes go on by themselves as soon as everybody who can know has spoken.",
}

func doneText(v *visit) string { return done[v.URL.Query().Get("done")] }

type createForm struct{ Name, Kind, Step, Start, Pool, Code string }

type changeForm struct{ Step, MinStep, MaxStep, Floor string }

func formOf(t hapax.Tag) changeForm {
	return changeForm{fmt.Sprint(t.Step), fmt.Sprint(t.MinStep), fmt.Sprint(t.MaxStep), ""}
}

// number reads a field of a form; an empty one is nil.
func number(v *visit, field string) (*int64, error) {
	text := strings.TrimSpace(v.PostFormValue(field))
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, invalid(field, text, "a whole number")
	}
	return &n, nil
}

// may checks that the caller may change something, and writes down who was refused.
func (c *Console) may(v *visit, action string, p auth.Permission, name string) error {
	err := v.caller.Allow(p, name)
	if err != nil {
		c.svc.Attempted(v.Context(), action, err)
	}
	return err
}

func (c *Console) createTag(v *visit) error {
	form := createForm{
		Name: v.PostFormValue("name"), Kind: v.PostFormValue("kind"), Step: v.PostFormValue("step"),
		Start: v.PostFormValue("start"), Pool: v.PostFormValue("pool"),
	}
	err := c.may(v, "create tag", auth.Define, form.Name)
	if err != nil {
		return err
	}
	tag := hapax.Tag{Name: form.Name, Kind: hapax.Kind(form.Kind)}
	if tag.Kind == hapax.KindSnowflake {
		tag.Pool = cmp.Or(form.Pool, hapax.DefaultPool)
	} else {
		for _, f := range []struct {
			name string
			to   *int64
		}{{"step", &tag.Step}, {"start", &tag.Start}} {
			n, wrong := number(v, f.name)
			if err = cmp.Or(err, wrong); n != nil {
				*f.to = *n
			}
		}
	}
	if err == nil {
		_, err = c.svc.CreateTag(v.Context(), tag, hapax.CreateExplicit)
	}
	if err != nil {
		return c.showTags(v, statusOf(err), form, messageOf(err))
	}
	redirect(v.w, "tag?done=created&name="+url.QueryEscape(form.Name))
	return nil
}

func (c *Console) actOnTag(v *visit) error {
	if v.PostFormValue("do") == "delete" {
		return c.deleteTag(v)
	}
	return c.changeTag(v)
}

func (c *Console) changeTag(v *visit) error {
	name := v.PostFormValue("name")
	err := c.may(v, "change tag", auth.Define, name)
	if err != nil {
		return err
	}
	var u driver.TagUpdate
	for _, f := range []struct {
		name string
		to   **int64
	}{{"step", &u.Step}, {"min_step", &u.MinStep}, {"max_step", &u.MaxStep}, {"floor", &u.Floor}} {
		n, wrong := number(v, f.name)
		err, *f.to = cmp.Or(err, wrong), n
	}
	if err == nil {
		_, err = c.svc.UpdateTag(v.Context(), name, u)
	}
	if err != nil {
		form := changeForm{v.PostFormValue("step"), v.PostFormValue("min_step"), v.PostFormValue("max_step"), v.PostFormValue("floor")}
		return c.showTag(v, statusOf(err), name, &form, messageOf(err))
	}
	redirect(v.w, "tag?done=changed&name="+url.QueryEscape(name))
	return nil
}

func (c *Console) deleteTag(v *visit) error {
	name := v.PostFormValue("name")
	if err := c.may(v, "delete tag", auth.Define, name); err != nil {
		return err
	}
	if v.PostFormValue("again") != name {
		return c.showTag(v, http.StatusBadRequest, name, nil, "Nothing was deleted: the name that was typed is another one.")
	}
	if _, err := c.svc.DeleteTag(v.Context(), name); err != nil {
		return err
	}
	redirect(v.w, "tag?done=deleted&name="+url.QueryEscape(name))
	return nil
}

func (c *Console) retireWorker(v *visit) error {
	pool := v.PostFormValue("pool")
	if err := c.may(v, "retire worker", auth.Workers, pool); err != nil {
		return err
	}
	id, err := strconv.ParseInt(v.PostFormValue("id"), 10, 64)
	if err != nil {
		return invalid("id", v.PostFormValue("id"), "a worker ID")
	}
	if _, err := c.svc.RetireWorker(v.Context(), pool, id); err != nil {
		return err
	}
	redirect(v.w, "worker?done=retired&pool="+url.QueryEscape(pool)+"&id="+strconv.FormatInt(id, 10))
	return nil
}

// maxRaisedShown is how many lines a page lists that would be raised.
const maxRaisedShown = 200

type fenceBody struct {
	Kept     bool // there is a witness
	Status   witness.Status
	Rows     []witness.Node
	StoreID  string
	Node     string // for whom is spoken; empty: all who are missing
	Floor    string
	Ahead    string
	Adoption *witness.Adoption // what would be done
	Raised   []driver.Raised
	More     int // lines that are not listed
	Command  string
}

func (c *Console) fence(v *visit) error {
	return c.showFence(v, http.StatusOK, fenceBody{Ahead: "10m"}, "")
}

func (c *Console) showFence(v *visit, status int, b fenceBody, wrong string) error {
	out := c.view(v, "Fence", "fence")
	out.Live, out.Error, out.Done = v.Method == http.MethodGet, wrong, doneText(v)
	out.Command = c.at("nodes", "--all")
	if g := c.svc.Guard(); g != nil {
		b.Kept, b.Status, b.StoreID = true, g.Status(), g.Witness().StoreID()
		b.Rows, _ = g.Nodes(v.Context()) // of a store that does not answer the status tells
		if b.Rows == nil {
			b.Rows = b.Status.Missing
		}
	}
	b.Command = c.statement(b)
	out.Body = b
	c.render(v.w, status, "fence", out)
	return nil
}

// statement returns the command that says the same as the form.
func (c *Console) statement(b fenceBody) string {
	words := []string{"adopt"}
	if b.Node != "" {
		words = []string{"nodes", "settle", b.Node}
	}
	if b.Floor != "" {
		words = append(words, "--floor", b.Floor)
	}
	return c.at(words...)
}

// speak is an operator's word for who is missing. Without the field do, it only tells
// what would happen.
func (c *Console) speak(v *visit) error {
	if err := c.may(v, "adopt", auth.Operate, ""); err != nil {
		return err
	}
	b := fenceBody{Node: v.PostFormValue("node"), Floor: strings.TrimSpace(v.PostFormValue("floor")), Ahead: strings.TrimSpace(v.PostFormValue("ahead"))}
	g := c.svc.Guard()
	if g == nil {
		return fmt.Errorf("%w: the server keeps no witness", hapax.ErrNotSupported)
	}
	st := witness.Statement{Row: b.Node, DryRun: v.PostFormValue("do") == ""}
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
	var a witness.Adoption
	if err == nil {
		declare := g.Adopt
		if b.Node != "" {
			declare = g.Settle
		}
		a, err = declare(v.Context(), st)
		if !st.DryRun {
			c.svc.Attempted(v.Context(), "adopt", err, "node", b.Node, "floor", st.Floor)
		}
	}
	if err == nil && !st.DryRun {
		redirect(v.w, "fence?done=spoken")
		return nil
	}
	if a.StoreID != "" {
		b.Adoption, b.Raised = &a, a.Raised
		if b.More = len(b.Raised) - maxRaisedShown; b.More > 0 {
			b.Raised = b.Raised[:maxRaisedShown]
		}
	}
	if err != nil {
		return c.showFence(v, statusOf(err), b, messageOf(err))
	}
	return c.showFence(v, http.StatusOK, b, "")
}
