// Command configdoc writes the reference of the server's settings, which is made
// from the settings themselves, to standard output.
package main

import (
	"fmt"
	"os"
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
YAML file that ` + "`--config FILE`" + ` or ` + "`HAPAX_CONFIG`" + ` names. A flag wins over the
environment, and that over the file. A key that does not exist is an error, which
names the nearest one that does. ` + "`hapax serve --print-config`" + ` prints what results,
as a YAML file with comments, after the checks that a start makes; it hides the password of
the store. A variable that begins with ` + "`HAPAX_`" + ` and is no setting is named in the log.

Tags and pools are made in the store as the configuration has them, when they are first
used. So commands that open a store themselves need it, too: ` + "`hapax next t --store URL`" + `
refuses a tag that the store does not know yet, unless it is given the configuration of the
servers with ` + "`--config`" + ` or ` + "`HAPAX_CONFIG`" + `. A pool is never made by a misspelt name: each
tag's pool has to be configured, or be ` + "`default`" + `.

The setting ` + "`max_wait`" + ` is the flag ` + "`--max-wait`" + ` and the variable ` + "`HAPAX_MAX_WAIT`" + `, and
so on for all of them. Durations are written as in ` + "`1m30s`, `500ms` or `24h`" + `.

## Settings

| key | type | default | allowed | meaning |
|---|---|---|---|---|
`

const sections = `
As a flag or in the environment, the settings of type mapping are YAML too:
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

const directory = `
In a user, a password, a path and a parameter, ` + "`?`, `#`, `/`, `@` and `%`" + ` are written
` + "`%3F`, `%23`, `%2F`, `%40` and `%25`" + `; a URL that could be read in two ways is refused. A
password can stay out of the URL: in a file of its own that ` + "`store_password_file`" + ` names,
or in the variable ` + "`HAPAX_STORE_PASSWORD`" + `, as it is.

## The data directory

| file | what it holds |
|---|---|
| ` + "`hapax.db`" + ` | the embedded store, where the setting ` + "`store`" + ` names no other |
| ` + "`witness`" + ` | which store this node works with and how far it has used each line; its lock file keeps a second process out |
| ` + "`instance`" + ` | the identity by which this node finds its worker IDs again |
| ` + "`lease-…`" + ` | the lease of a pool with ` + "`cache: true`" + ` |
| ` + "`address`" + ` | the URL of the server that runs in the directory, for ` + "`hapax next`" + ` and other commands |

Do not copy the directory to a second place and use both. Where it was copied,
moved to another machine or restored from a backup, see ` + "`hapax adopt --help`" + `.
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
			for _, k := range e.Keys {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Type, cell(k.Default), cell(k.Doc))
			}
		}
	}
	b.WriteString(example)
	for _, form := range server.StoreForms() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", form.URL, cell(form.Doc))
	}
	b.WriteString(directory)
	return []byte(b.String())
}

// cell escapes what would end a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
