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
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// done are the messages of a page after an action, by the word in its URL.
var done = map[string]string{
	"created": "The tag was created.", "changed": "The tag was changed. Nodes follow within two grants.",
	"deleted": "The tag was deleted. Its mark stays; other nodes stop within the refresh interval.",
	"retired": "The worker ID is out of use until the clock passes its mark.",
	"spoken":  "It was taken down. The nodes go on by themselves as soon as everybody who can know has spoken.",
}

func doneText(v *visit) string { return done[v.URL.Query().Get("done")] }

// A createForm holds the fields of the form to create a tag.
type createForm struct {
	Name, Kind, Step, MinStep, MaxStep, Start, Delta, Remainder, Pool, Code, Zone string
}

// tag returns the definition that the form describes.
func (f createForm) tag() (hapax.Tag, error) {
	tag := hapax.Tag{Name: f.Name, Kind: hapax.Kind(f.Kind), Extra: define.CodeExtra(f.Code, f.Zone)}
	if tag.Kind == hapax.KindSnowflake {
		tag.Pool = cmp.Or(f.Pool, hapax.DefaultPool)
		return tag, nil
	}
	var err error
	for _, number := range []struct {
		name, text string
		to         *int64
	}{
		{"start", f.Start, &tag.Start},
		{"step", f.Step, &tag.Step},
		{"min_step", f.MinStep, &tag.MinStep},
		{"max_step", f.MaxStep, &tag.MaxStep},
		{"delta", f.Delta, &tag.Delta},
		{"remainder", f.Remainder, &tag.Remainder},
	} {
		n, wrong := parseNumber(number.name, number.text)
		if err = cmp.Or(err, wrong); n != nil {
			*number.to = *n
		}
	}
	return tag, err
}

// command returns the command that does the same.
func (f createForm) command() []string {
	words := []string{"tags", "create", f.Name}
	flags := []struct{ name, text string }{
		{"--start", f.Start}, {"--step", f.Step}, {"--min-step", f.MinStep}, {"--max-step", f.MaxStep}, {"--delta", f.Delta}, {"--remainder", f.Remainder},
	}
	if f.Kind == string(hapax.KindSnowflake) {
		flags = []struct{ name, text string }{{"--kind", f.Kind}, {"--pool", f.Pool}}
	}
	for _, flag := range append(flags, []struct{ name, text string }{{"--code", f.Code}, {"--zone", f.Zone}}...) {
		if flag.text != "" {
			words = append(words, flag.name, flag.text)
		}
	}
	return words
}

type changeForm struct{ Step, MinStep, MaxStep, Floor string }

func formOf(t hapax.Tag) changeForm {
	return changeForm{fmt.Sprint(t.Step), fmt.Sprint(t.MinStep), fmt.Sprint(t.MaxStep), ""}
}

// number reads a field of a form; an empty one is nil.
func number(v *visit, field string) (*int64, error) {
	return parseNumber(field, v.PostFormValue(field))
}

func parseNumber(field, text string) (*int64, error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, invalid(field, text, "a whole number")
	}
	return &n, nil
}

// may checks that the caller may change something, and records a refusal.
func (c *Console) may(v *visit, action string, p auth.Permission, name string) error {
	err := v.caller.Allow(p, name)
	if err != nil {
		c.svc.Attempted(v.Context(), action, err)
	}
	return err
}

// A creation is the outcome of the form to create a tag.
type creation struct {
	Tag     hapax.Tag
	Code    string
	Revived *hapax.Tag // the tombstone that would be used again
	Ends    time.Time  // of its pool
	Command string
}

// createTag creates a tag. Without the field do, it only tells what would happen.
func (c *Console) createTag(v *visit) error {
	form := createForm{}
	for _, f := range []struct {
		name string
		to   *string
	}{
		{"name", &form.Name},
		{"kind", &form.Kind},
		{"step", &form.Step},
		{"min_step", &form.MinStep},
		{"max_step", &form.MaxStep},
		{"start", &form.Start},
		{"delta", &form.Delta},
		{"remainder", &form.Remainder},
		{"pool", &form.Pool},
		{"code", &form.Code},
		{"zone", &form.Zone},
	} {
		*f.to = v.PostFormValue(f.name)
	}
	if err := c.may(v, "create tag", auth.Define, form.Name); err != nil {
		return err
	}
	b := tagsBody{Form: form}
	tag, err := form.tag()
	if err == nil && v.PostFormValue("do") != "" {
		if _, err = c.svc.CreateTag(v.Context(), tag, hapax.CreateExplicit); err == nil {
			redirect(v.w, "tag?done=created&name="+url.QueryEscape(form.Name))
			return nil
		}
	}
	if err != nil {
		return c.showTags(v, statusOf(err), b, messageOf(err))
	}
	would := creation{Command: c.at(form.command()...)}
	if would.Tag, would.Revived, err = c.svc.WouldCreate(v.Context(), tag); err != nil {
		return c.showTags(v, statusOf(err), b, messageOf(err))
	}
	would.Code = define.Shown(would.Tag).Code
	if would.Tag.Pool != "" {
		if l, err := c.svc.PoolLayout(v.Context(), would.Tag.Pool); err == nil {
			would.Ends = l.Ends()
		}
	}
	b.Would = &would
	return c.showTags(v, http.StatusOK, b, "")
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
