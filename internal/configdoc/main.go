// Command configdoc writes the reference of the server's settings, which is made
// from the settings themselves, to standard output.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hapax-id/hapax/internal/server"
)

func main() {
	if _, err := os.Stdout.Write(reference()); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

const introduction = `# Configuration

<!-- Made by "go generate ./internal/server" from the settings in package server. -->

Every setting of ` + "`hapax serve`" + ` is a flag, an environment variable and a key of the
YAML file that ` + "`--config FILE`" + ` or ` + "`HAPAX_CONFIG`" + ` names. A flag takes precedence over
the environment, and the environment over the file. An unknown key is an error, which
names the nearest known one. ` + "`hapax serve --print-config`" + ` prints the result
as a YAML file with comments, after the checks that a start makes; it hides the password of
the store. A variable that begins with ` + "`HAPAX_`" + ` and is not a setting is named in the log.

Tags and pools are created in the store when they are first used, as the configuration
defines them. So commands that open a store themselves need the configuration, too:
` + "`hapax next t --store URL`" + ` refuses a tag that the store does not know yet, unless
` + "`--config`" + ` or ` + "`HAPAX_CONFIG`" + ` names the servers' configuration. A misspelt name never
creates a pool: each tag's pool has to be configured, or be ` + "`default`" + `.

The setting ` + "`max_wait`" + ` is the flag ` + "`--max-wait`" + ` and the variable ` + "`HAPAX_MAX_WAIT`" + `, and
so on for all settings. Durations are written as in ` + "`1m30s`, `500ms` or `24h`" + `.

## Settings

| key | type | default | allowed | meaning |
|---|---|---|---|---|
`

const sections = `
As a flag or in the environment, settings of the type mapping are written in YAML, too:
` + "`HAPAX_TAGS='{orders: {step: 5000}}'`" + `. Sources are merged key by key.
`

const example = `
## Example

` + "```yaml" + `
data: /var/lib/hapax
http: 127.0.0.1:8080
max_wait: 1s
tags:
  orders: {step: 5000, start: 100000}
  events: {kind: snowflake, pool: wide}
pools:
  wide: {layout: cosid-second, workers: 0-63}
` + "```" + `

## Store URLs

| URL | store |
|---|---|
`

const escapes = `
In a user, a password, a path and a parameter, ` + "`?`, `#`, `/`, `@` and `%`" + ` are written
` + "`%3F`, `%23`, `%2F`, `%40` and `%25`" + `; a URL that could be read in two ways is refused. A
password can stay out of the URL: unescaped, in a file that ` + "`store_password_file`" + ` names,
or in the variable ` + "`HAPAX_STORE_PASSWORD`" + `.

What the data directory holds is listed in [operating](operating.md#the-data-directory).
`

// reference returns the whole document.
func reference() []byte {
	var b strings.Builder
	b.WriteString(introduction)
	for _, s := range server.Settings() {
		allowed := s.Allowed
		if allowed == "" || s.Type == "bool" {
			allowed = "-"
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s |\n", s.Name, s.Type, s.Default, allowed, cell(s.Doc))
	}
	b.WriteString(sections)
	for _, s := range server.Settings() {
		if s.Keys == nil {
			continue
		}
		fmt.Fprintf(&b, "\n### Keys of `%s`\n\n| key | type | default | meaning |\n|---|---|---|---|\n", s.Name)
		for _, k := range s.Keys {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Type, cell(k.Default), cell(k.Doc))
		}
	}
	for _, s := range server.Settings() {
		for _, e := range s.Entries {
			fmt.Fprintf(&b, "\n### Keys of `%s.%s`\n\n%s.\n\n| key | type | default | meaning |\n|---|---|---|---|\n", s.Name, e.Name, e.Doc)
			for _, k := range slices.Concat(e.Keys, e.Ignored) {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Type, cell(k.Default), cell(k.Doc))
			}
		}
	}
	b.WriteString(example)
	for _, form := range server.StoreForms() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", form.URL, cell(form.Doc))
	}
	b.WriteString(escapes)
	return []byte(b.String())
}

// cell escapes what would end a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
