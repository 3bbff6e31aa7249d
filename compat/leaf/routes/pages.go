package routes

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax/internal/compat/spring"
)

// Leaf's own layout, in which /decodeSnowflakeId reads a number whatever it is.
const (
	twEpoch      = 1288834974657
	sequenceBits = 12
	workerBits   = 10
)

// decoded is what /decodeSnowflakeId answers, with its fields in order.
type decoded struct {
	Worker    string `json:"workerId"`
	Sequence  string `json:"sequenceId"`
	Timestamp string `json:"timestamp"`
}

func (h *handler) decode(w http.ResponseWriter, r *http.Request) {
	form, err := spring.Parameters(w, r)
	if err != nil {
		h.fail(w, r, http.StatusBadRequest, "", err.Error())
		return
	}
	if !form.Has("snowflakeId") {
		h.fail(w, r, http.StatusBadRequest, missingParameter, "Required String parameter 'snowflakeId' is not present")
		return
	}
	id, err := strconv.ParseInt(form.Text("snowflakeId"), 10, 64)
	if err != nil {
		spring.Object(w, r, h.time(), struct {
			Message string `json:"errorMsg"`
		}{undecodable})
		return
	}
	ms := id>>(sequenceBits+workerBits) + twEpoch
	spring.Object(w, r, h.time(), decoded{
		Worker:    strconv.FormatInt(id>>sequenceBits&(1<<workerBits-1), 10),
		Sequence:  strconv.FormatInt(id&(1<<sequenceBits-1), 10),
		Timestamp: fmt.Sprintf("%d(%s)", ms, time.UnixMilli(ms).In(h.Location).Format("2006-01-02 15:04:05.000")),
	})
}

// page answers with a monitor's rows.
func (h *handler) page(w http.ResponseWriter, r *http.Request, body func(context.Context) (string, error)) {
	if h.Monitor == nil {
		h.fail(w, r, http.StatusInternalServerError, illegalArgument, segmentOff)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.MaxWait)
	defer cancel()
	text, err := body(ctx)
	if err != nil {
		h.fail(w, r, http.StatusInternalServerError, "", "the table cannot be read now")
		return
	}
	spring.Page(w, text)
}

func (h *handler) cache(ctx context.Context) (string, error) {
	rows, err := h.Monitor.Cache(ctx)
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{
			r.Name, strconv.FormatBool(r.Init), strconv.FormatBool(r.Next), grouped(int64(r.Pos)),
			grouped(r.Value0), grouped(r.Max0), grouped(r.Step0), grouped(r.Value1), grouped(r.Max1), grouped(r.Step1),
		})
	}
	return cachePage.table([]string{"name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1"}, cells), err
}

func (h *handler) database(ctx context.Context) (string, error) {
	rows, err := h.Monitor.Database(ctx)
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{r.Tag, grouped(r.MaxID), grouped(r.Step), r.Updated})
	}
	return databasePage.table([]string{"tag", "max", "step", "update"}, cells), err
}

// grouped writes a number with separators of thousands.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	// As FreeMarker prints them.
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// A layout is how the lines of a page are indented: the head and the table's parts, the
// rows, the cells, and the blank line behind the headings, if there is one.
type layout struct{ outer, row, cell, blank string }

var (
	cachePage    = layout{"    ", "        ", "            ", "\n"}
	databasePage = layout{}
)

// table returns a page with one table, line by line as Leaf's.
func (l layout) table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(indent, text string) { b.WriteString(indent + text + "\n") }
	line("", `<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01 Transitional//EN" "http://www.w3.org/TR/html4/loose.dtd">`)
	line("", "<html>\n<head>")
	line(l.outer, `<meta http-equiv="Content-Type" content="text/html; charset=UTF-8">`)
	line(l.outer, "<title>Leaf</title>")
	line(l.outer, `<link href="/css/bootstrap.min.css" rel="stylesheet">`)
	line("", "</head>\n<body>\n"+`<table class="table table-hover">`)
	line(l.outer, "<thead>")
	line(l.outer, "<tr>")
	for _, h := range head {
		line(l.row, "<th>"+h+"</th>")
	}
	b.WriteString(l.blank)
	line(l.outer, "</tr>")
	line(l.outer, "</thead>")
	line(l.outer, "<tbody>")
	for _, r := range rows {
		line(l.row, "<tr>")
		for _, c := range r {
			line(l.cell, "<td>"+spring.Escape(c)+"</td>")
		}
		// Leaf's page has an empty row after each.
		for _, tag := range []string{"</tr>", "<tr>", "</tr>"} {
			line(l.row, tag)
		}
		b.WriteString("\n")
	}
	line(l.outer, "<tbody>")
	b.WriteString("</table>\n</body>\n</html>")
	return b.String()
}
