// Package signals is the one table of a server's messages to an operator: every error
// code, log message, alarm and alert, each with its meaning and the action to take.
//
// The runbook (docs/runbook.md) is made from it, and tests hold that none lacks.
package signals

//go:generate go run ../signalsdoc

import (
	"cmp"
	"slices"
	"strings"
)

// A Trouble is one thing that an operator may be told, under every name under which it
// is told. Messages of the log are as they stand in the code; Means, Cause, Do and Not
// are whole sentences.
type Trouble struct {
	ID    string // anchor in the runbook
	Title string

	Codes    []string // of errors
	Messages []string // of the log
	Alarms   []string
	Alerts   []string // of deploy/prometheus/rules.yml

	Means, Cause, Do, Not string

	Check string // the command that looks into it; empty: there is none
}

// Troubles returns the whole table, in the order of the runbook: by harm.
func Troubles() []Trouble { return slices.Clone(troubles) }

// runbook is the page with the whole table.
const runbook = "docs/runbook.md#"

// SeeCode returns the place in the runbook for an error code; "" if there is none.
func SeeCode(code string) string { return see(byCode[code]) }

// SeeMessage returns the place in the runbook for a message of the log.
func SeeMessage(message string) string { return see(byMessage[message]) }

// SeeLine returns the place in the runbook for a line of the log. The code of an error in the
// line decides: many lines report the same trouble, and answers have the code alone. A line
// without a code is known by its message.
func SeeLine(message, code string) string { return cmp.Or(SeeCode(code), SeeMessage(message)) }

// SeeAlarm returns the place in the runbook for an alarm.
func SeeAlarm(alarm string) string { return see(byAlarm[alarm]) }

// SeeCause returns the place in the runbook for an alarm whose cause is an error with this code,
// which decides; empty: the cause is no error.
func SeeCause(alarm, code string) string { return cmp.Or(SeeCode(code), SeeAlarm(alarm)) }

// CheckOf returns the command that looks into the trouble at a place in the runbook; "" if
// there is none.
func CheckOf(see string) string { return checks[strings.TrimPrefix(see, runbook)] }

// SeeAlert returns the place in the runbook for an alert.
func SeeAlert(alert string) string { return see(byAlert[alert]) }

func see(id string) string {
	if id == "" {
		return ""
	}
	return runbook + id
}

var byCode, byMessage, byAlarm, byAlert, checks = map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}

var troubles = slices.Concat(harmful, limiting, passing, ordinary)

func init() {
	for _, t := range troubles {
		checks[t.ID] = t.Check
		for _, names := range []struct {
			of  map[string]string
			are []string
		}{{byCode, t.Codes}, {byMessage, t.Messages}, {byAlarm, t.Alarms}, {byAlert, t.Alerts}} {
			for _, name := range names.are {
				if names.of[name] != "" {
					panic("signals: told twice: " + name)
				}
				names.of[name] = t.ID
			}
		}
	}
}

// Alarms returns the names of all alarms, sorted.
func Alarms() []string {
	var all []string
	for name := range byAlarm {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Sections are the parts of the runbook.
func Sections() []Section {
	return []Section{
		{"Numbers may come twice, or none can", harmful},
		{"Something cannot issue, or soon will not", limiting},
		{"What passes, and what callers did", passing},
		{"What only tells", ordinary},
	}
}

// A Section is a part of the runbook.
type Section struct {
	Title    string
	Troubles []Trouble
}

// Text returns a section of the runbook, in Markdown.
func (t Trouble) Text() string {
	var b strings.Builder
	b.WriteString("### <a id=\"" + t.ID + "\"></a>" + t.Title + "\n\n")
	for _, names := range []struct {
		what string
		are  []string
	}{{"Error code", t.Codes}, {"Alarm", t.Alarms}, {"Alert", t.Alerts}} {
		if len(names.are) > 0 {
			b.WriteString(names.what + ": `" + strings.Join(names.are, "`, `") + "`\n\n")
		}
	}
	for _, m := range t.Messages {
		b.WriteString("> " + strings.ReplaceAll(m, "`", "'") + "\n>\n")
	}
	if len(t.Messages) > 0 {
		b.WriteString("\n")
	}
	for _, part := range []struct{ what, text string }{{"Meaning", t.Means}, {"Cause", t.Cause}, {"Do", t.Do}, {"Do not", t.Not}} {
		b.WriteString("- **" + part.what + ":** " + part.text + "\n")
	}
	return b.String()
}
