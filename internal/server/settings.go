package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/api/respapi"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/witness"
)

// A Setting describes one setting of the server. The command's flags, the
// environment, the YAML keys and the documentation are all made from Settings.
type Setting struct {
	Name    string // the YAML key, such as "max_wait"
	Type    string // what its values are called in help: "duration", …
	Default string
	Allowed string         // which values are allowed; empty: any
	Doc     string         // one sentence or more, without the period at the end
	Choices []string       // all values, where they are few names
	Keys    []Key          // of the entries of a section, which is a mapping by name; nil where the entries are texts
	Entries []mount.System // of a section whose entries have names and keys of their own

	set func(c *Config, text string) error // nil: a section
	get func(c *Config) any                // what YAML shows
}

// A Key describes one key of a definition in the YAML file.
type Key = mount.Key

// isSection reports whether the setting is a mapping from names to definitions. As a
// flag or in the environment it is given as YAML.
func (s Setting) isSection() bool { return s.set == nil }

// Flag returns the name of the setting's flag, without the dashes before it.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Name, "_", "-") }

// Env returns the name of the setting's environment variable.
func (s Setting) Env() string { return "HAPAX_" + strings.ToUpper(s.Name) }

// Settings returns every setting, in the order of the documentation.
func Settings() []Setting { return slices.Clone(settings) }

// The values of resp_large_numbers.
const (
	largeAsInteger = "integer"
	largeAsText    = "text"
)

var settings = []Setting{
	text("data", "./hapax-data", "Data directory: the embedded store, this node's identity and its witness of what it used. Made, readable by its owner only, if it does not exist",
		func(c *Config) *string { return &c.Data }),
	text("store", "bolt:", "URL of the store: bolt:PATH (without a path: hapax.db in the data directory), memory:, or the URL of a shared store; see the documentation for the forms",
		func(c *Config) *string { return &c.Store }),
	text("store_password_file", "", "File that holds the password of the store's user, unescaped, where the URL has none. The variable HAPAX_STORE_PASSWORD can hold the password instead",
		func(c *Config) *string { return &c.StorePasswordFile }),
	text("http", "127.0.0.1:8080", "Address that HTTP listens on",
		func(c *Config) *string { return &c.HTTP }),
	text("resp", "127.0.0.1:6380", "Address that the Redis protocol listens on; empty for none",
		func(c *Config) *string { return &c.RESP }),
	text("hosts", "", "Host names, separated by commas, by which clients reach the HTTP listeners, in addition to IP addresses, this host's name and the names in the certificate; * for any. Where clients show no tokens, requests for other names are refused, because a web page could make a browser send them",
		func(c *Config) *string { return &c.Hosts }),
	integer("http_connections", defaultHTTPConnections, 1, 1_000_000, "How many connections each HTTP listener accepts; clients that have shown no token or certificate yet get at most an eighth of them",
		func(c *Config) *int { return &c.HTTPConnections }),
	integer("resp_connections", respapi.DefaultMaxConnections, 1, 1_000_000, "How many Redis clients may be connected; those that have shown no token or certificate yet get at most an eighth of the places",
		func(c *Config) *int { return &c.RESPConnections }),
	duration("resp_idle", time.Hour, 0, 30*24*time.Hour, "How long a Redis client may send no command before its connection is closed; 0s is never",
		func(c *Config) *time.Duration { return &c.RESPIdle }),
	choice("resp_large_numbers", largeAsInteger, []string{largeAsInteger, largeAsText}, "How INCR and INCRBY reply numbers above 2^53 - 1 to Redis clients that do not say who they are. Clients known to round integers (ioredis, node-redis) get text, and those known to keep 64 bits get integers, whatever is set here",
		func(c *Config) *string { return &c.RESPLargeNumbers }),
	text("admin_http", "", "Address of a second HTTP listener. If it is set, tags and workers can be administered, and metrics read, only there",
		func(c *Config) *string { return &c.AdminHTTP }),
	text("tls_cert", "", "File with the certificate, in PEM form, that all listeners show; empty for no TLS. It is reloaded when it changes, and on SIGHUP",
		func(c *Config) *string { return &c.TLSCert }),
	text("tls_key", "", "File with the certificate's key, in PEM form",
		func(c *Config) *string { return &c.TLSKey }),
	text("tls_client_ca", "", "File with the authorities, in PEM form, one of which must have signed the certificate that every client then has to show; empty for none",
		func(c *Config) *string { return &c.TLSClientCA }),
	boolean("allow_unauthenticated", false, "Listen beyond loopback without asking for tokens or certificates: whoever reaches the address can issue numbers and change tags",
		func(c *Config) *bool { return &c.AllowUnauthenticated }),
	boolean("auto_create", true, "Create an unknown tag as a segment tag when it is first used",
		func(c *Config) *bool { return &c.AutoCreate }),
	integer("max_tags", 10_000, 1, 1_000_000, "How many tags there may be before first use creates no more, so that misspelt names cannot pile up",
		func(c *Config) *int { return &c.MaxTags }),
	integer("max_count", 10_000, 1, 1_000_000, "How many numbers one request may ask for",
		func(c *Config) *int { return &c.MaxCount }),
	duration("max_wait", 2*time.Second, time.Millisecond, time.Hour, "How long a request waits for the store, for a worker ID or for the clock before it fails with 503",
		func(c *Config) *time.Duration { return &c.MaxWait }),
	duration("refresh", time.Minute, time.Second, 24*time.Hour, "How often deleted and changed tags are looked up in the store",
		func(c *Config) *time.Duration { return &c.Refresh }),
	duration("tag_idle", time.Hour, time.Second, 10_000*time.Hour, "How long a segment tag may be idle before this node hands back the numbers that it holds; the next use takes new ones",
		func(c *Config) *time.Duration { return &c.TagIdle }),
	duration("store_timeout", 5*time.Second, 10*time.Millisecond, time.Hour, "How long the store may take to answer one call",
		func(c *Config) *time.Duration { return &c.StoreTimeout }),
	duration("heartbeat", time.Second, 100*time.Millisecond, time.Minute, "How often, at least, this node writes to a shared store, so that it notices one that went back. Give all nodes of a store the same: one that starts waits for two heartbeats of the others, and for five where one of them does not answer",
		func(c *Config) *time.Duration { return &c.Heartbeat }),
	choice("heal", healAuto, []string{healAuto, healManual}, "What happens when the store is found to have gone back, and every node that can know has said what it used: with auto the nodes raise the marks and go on by themselves; with manual on one of them they wait for hapax adopt",
		func(c *Config) *string { return &c.Heal }),
	short("advertise", "", witness.MaxAddress, "Where operators find this node, as hapax nodes tells it, and other nodes ask it for their consoles; empty for the address that HTTP, or admin_http where it is set, listens on",
		func(c *Config) *string { return &c.Advertise }),
	boolean("console", true, "Serve the web console, at / of the HTTP listener, or of admin_http where that is set",
		func(c *Config) *bool { return &c.Console }),
	text("fleet_key", "", "File with a key, the same on all nodes, by which they ask each other for what the console, status --fleet and trace --fleet show; empty: only nodes that listen on loopback or, over TLS, that know its certificate are asked. 16 to 1024 bytes, such as openssl rand -hex 32 prints",
		func(c *Config) *string { return &c.FleetKey }),
	text("witness", "", "File, outside the store, that records what this node has used; empty for the file witness in the data directory. On another disk it outlives that directory",
		func(c *Config) *string { return &c.Witness }),
	choice("ledger", ledgerOn, []string{ledgerOn, ledgerRequired, ledgerOff}, "Whether each grant that this node takes is recorded in the data directory, for hapax trace. If it cannot be written, for example because the disk is full, that is reported and issuing goes on; with required no grant is taken then, and each record is durable before its grant is used",
		func(c *Config) *string { return &c.Ledger }),
	duration("ledger_age", journal.DefaultAge, time.Hour, maxKept, "How long the ledger goes back",
		func(c *Config) *time.Duration { return &c.LedgerAge }),
	integer("ledger_size", journal.DefaultBytes>>20, 1, maxKeptMiB, "How many MiB the ledger holds at most; the oldest grants are removed first",
		func(c *Config) *int { return &c.LedgerSize }),
	duration("retire_lines", service.DefaultRetireLines, time.Hour, 3650*24*time.Hour, "For codes with a period: how long after the period the line of its numbers is deleted. Its mark stays, so that a clock that was wrong goes on above it",
		func(c *Config) *time.Duration { return &c.RetireLines }),
	duration("alarm_budget", service.DefaultAlarmBudget, time.Millisecond, 24*time.Hour, "There is an alarm when a tag or pool in use could not be issued from for this long if the store answered nothing any more: at once while the store is away, and otherwise when that lasts for a minute",
		func(c *Config) *time.Duration { return &c.AlarmBudget }),
	duration("alarm_forecast", service.DefaultAlarmForecast, time.Hour, 3650*24*time.Hour, "There is an alarm when the numbers of a tag, the time of a layout or the worker IDs of a pool end within this time at the present rate",
		func(c *Config) *time.Duration { return &c.AlarmForecast }),
	duration("alarm_certificate", 14*24*time.Hour, time.Hour, 3650*24*time.Hour, "There is an alarm when the certificate ends within this time",
		func(c *Config) *time.Duration { return &c.AlarmCertificate }),
	text("alarm_command", "", "A program that is run for each alarm that is raised or cleared, without arguments: JSON is on its standard input, and HAPAX_ALARM, HAPAX_ALARM_STATE, HAPAX_ALARM_ABOUT and HAPAX_ALARM_DETAIL are in its environment. It may take 10 s and is tried three times; empty for none",
		func(c *Config) *string { return &c.AlarmCommand }),
	text("alarm_url", "", "A URL to which the same JSON is sent by POST for each alarm, likewise; empty for none",
		func(c *Config) *string { return &c.AlarmURL }),
	duration("lame_duck", 5*time.Second, 0, time.Hour, "How long the server goes on, and reports that it is not ready, after SIGTERM and before it closes its listeners, so that load balancers send no more to it. SIGINT, or a second signal, skips it",
		func(c *Config) *time.Duration { return &c.LameDuck }),
	duration("drain", 10*time.Second, 0, time.Hour, "How long requests in flight may take to finish when the server is told to stop",
		func(c *Config) *time.Duration { return &c.Drain }),
	choice("log_format", "auto", []string{"auto", "text", "json"}, "Form of the log on standard error; auto is text on a terminal and JSON elsewhere",
		func(c *Config) *string { return &c.LogFormat }),
	choice("log_level", "info", []string{"debug", "info", "warn", "error"}, "The least important messages to log. It is reloaded on SIGHUP",
		func(c *Config) *string { return &c.LogLevel }),
	section(tokensKey, "API tokens by name. If there are any, every client must show one; see hapax token new. They are reloaded on SIGHUP", tokenKeys,
		func(c *Config) any { return sparse(c.Tokens) }),
	section(tagsKey, "Definitions of tags by name. A definition takes effect when the tag is first used; of a tag that the store knows already, the store's definition counts", tagKeys,
		func(c *Config) any { return sparse(c.Tags) }),
	section(poolsKey, "Worker pools of snowflake tags by name. A pool's layout is frozen in the store when the pool is first used", poolKeys,
		func(c *Config) any { return sparse(c.Pools) }),
	section(pluginsKey, "Plugins around the issuing of numbers, by name. This node calls them, so every node needs the same ones", pluginKeys,
		func(c *Config) any { return sparse(c.Plugins) }),
	section(keysKey, "Where the keys of scrambled codes are, by key ID: file:PATH or env:VARIABLE. A key is a text of 16 to 64 bytes, as random as can be, and is never shown. Keep a key for as long as codes made with it are to be read", nil,
		func(c *Config) any { return textsOf(c.CodeKeys) }),
	{
		Name: compatKey, Type: "mapping", Default: "{}", Entries: systems,
		Doc: "Foreign systems that the server stands in for, by name: " + systemNames() + ". A system that is not named is off",
		get: func(c *Config) any { return c.shownMounts() },
	},
}

var tokenKeys = []Key{
	mount.NewKey("hash", "string", "none", "The token's SHA-256, as hapax token new prints it. Only tokens that it made are taken"),
	mount.NewKey("certificate", "string", "none", "A name in a client's certificate (URI, DNS name, e-mail address or common name) that stands for the token, in addition to a hash or instead of it; needs tls_client_ca"),
	mount.NewKey("expires", "string", "never", "When the token expires, in RFC 3339"),
	mount.NewKey("scopes", "list", "[issue]", "What the token is for: issue (numbers), lease (stretches of numbers and workers, for the Go client), admin (tags, pools, workers, metrics, the console), metrics, read (to see what admin sees, and change nothing)"),
	mount.NewKey("tags", "list", "all", "The tags that the token is for: names, or beginnings of names followed by *"),
	mount.NewKey("pools", "list", "none; for admin all, unless there are tags", "The pools whose workers the token may lease or administer, written as for tags"),
	mount.NewKey("rate", "int", "no limit", "How many requests a second the token is good for; a batch is one request"),
	mount.NewKey("burst", "int", "rate", "How many requests may come at once before the rate applies"),
	mount.NewKey("requests", "int", "no limit", "How many requests may be in flight at the same time"),
	mount.NewKey("connections", "int", "no limit", "How many connections may use the token at the same time"),
	mount.NewKey("numbers_per_minute", "int", "no limit", "How many numbers may be taken and leased with the token in a minute"),
	mount.NewKey("numbers_per_day", "int", "no limit", "The same in 24 hours"),
	mount.NewKey("leases", "int", "no limit", "How many workers may be leased with the token at a time; the lease of a program that crashed counts until it expires"),
	mount.NewKey("new_tags", "int", strconv.Itoa(auth.DefaultNewTags), "How many tags may be created by first use with the token in 24 hours; no limit for admin"),
}

var tagKeys = []Key{
	mount.NewKey("kind", "string", "segment", "segment counts; snowflake issues numbers that hold time and worker"),
	mount.NewKey("strategy", "string", "kind", "What issues the tag's numbers: segment, snowflake, or a strategy that the program has registered; frozen in the store with the tag"),
	mount.NewKey("start", "int", "1", "The first number of a segment tag"),
	mount.NewKey("step", "int", "1000", "How many numbers a segment begins with, before it adapts to the rate"),
	mount.NewKey("min_step", "int", "step", "Lower bound of the adaptive step"),
	mount.NewKey("max_step", "int", "1000000, or step if that is more", "Upper bound of the adaptive step"),
	mount.NewKey("delta", "int", "1", "Of a segment tag only the numbers are issued that leave remainder when divided by delta, so that the stores of two regions, with delta 2 and the remainders 0 and 1, never issue the same one; frozen in the store with the tag, which is refused where the store has it otherwise"),
	mount.NewKey("remainder", "int", "0", "0 to delta - 1"),
	mount.NewKey("pool", "string", "default", "The worker pool of a snowflake tag"),
	mount.NewKey("floor_from", "list", "none", "Up to 8 columns that the tag's numbers are written to, as {url, table, column}, with env:NAME or file:PATH for the URL: before the first grant of a fleet that has no witness of the tag, its mark is raised above their highest numbers"),
	mount.NewKey("reader_bits", "int", "none", "How many bits the narrowest reader of the tag's numbers keeps, such as 53 for JavaScript or 31 for an INT column; the server forecasts when the numbers outgrow it"),
	mount.NewKey("code", "string", "none", "How the tag's numbers are shown: a spec such as INV-{yyyy}{MM}{dd}-{seq:6}{check}; frozen in the store with the tag"),
	mount.NewKey("zone", "string", "none", "The time zone of the code's periods, such as Europe/Berlin"),
}

var poolKeys = []Key{
	mount.NewKey("layout", "string", "leaf", "Name or spec of the layout; see hapax layouts"),
	mount.NewKey("workers", "string", "all of the layout", "The worker IDs that this node may use, such as 0-63, or 7 to fix it"),
	mount.NewKey("identity", "string", "pool", "Which of these worker IDs this node uses: pool (any that is free), fixed:ID, env:VARIABLE, statefulset or statefulset:BASE (the ordinal of the host name), address:IP,IP (the index of this host's address), list:ID,ID (another one while the last one is still in use), or disposable (each start uses one up)"),
	mount.NewKey("split", "string", "none", "Parts of the worker ID, from the highest bits down, written as NAME:BITS or NAME:BITS:START, such as service:8:1,rack:2:1"),
	mount.NewKey("parts", "mapping", "none", "Values of those parts of the split that are fixed for this node: numbers, or env:VARIABLE"),
	mount.NewKey("cache", "bool", "false", "Also keep the lease in a file of the data directory, so that a restart goes on within the granted time even while the store is away"),
	mount.NewKey("lease", "duration", "30s", "How long past the end of its grant a silent node keeps its worker ID"),
	mount.NewKey("grant", "duration", "10s, or 20s with one worker ID", "How much time is granted at first; doubled with each extension. With one worker ID (workers: 7, fixed, statefulset, env, address) it does not grow: an outage of the store is ridden out for at least a quarter of it, and a start after a crash may wait for all of it"),
	mount.NewKey("max_grant", "duration", "5m, or grant with one worker ID", "How far grants grow: an outage of the store is ridden out for at least a quarter of it"),
	mount.NewKey("max_ahead", "duration", "10ms, or a tick if that is more", "How far numbers may lead the clock"),
	mount.NewKey("max_behind", "duration", "0s", "How far numbers may lag behind the clock, so that a burst uses ticks just past"),
	mount.NewKey("max_skew", "duration", "10s", "How far the local clock may be ahead of the store's, where the store has one; with on_rollback: refuse also behind"),
	mount.NewKey("sequence_start", "string", "zero", "Where the sequence begins in a tick: zero, continue, or a number n for random below n"),
	mount.NewKey("populator", "string", "atomic", "What produces tick and sequence: atomic or mutex, which issue the same numbers, or the name of one that a program registers, which runs the server"),
	mount.NewKey("on_rollback", "string", "continue", "What to do while the clock is behind what it was: continue, which is safe, or refuse"),
	mount.NewKey("fields", "mapping", "0 each", "Values of the layout's other fields, by name"),
}

// How long, and how many MiB of it, a ledger and a history may be kept.
const (
	maxKept    = 10 * 365 * 24 * time.Hour
	maxKeptMiB = 1 << 20
)

// The values of the setting ledger.
const (
	ledgerOn       = "on"
	ledgerRequired = "required"
	ledgerOff      = "off"
)

func section(name, doc string, keys []Key, get func(*Config) any) Setting {
	return Setting{Name: name, Type: "mapping", Default: "{}", Doc: doc, Keys: keys, get: get}
}

func newSetting(name, kind, standard, allowed, doc string, get func(*Config) any, set func(*Config, string) bool) Setting {
	return Setting{
		Name: name, Type: kind, Default: standard, Allowed: allowed, Doc: doc, get: get,
		set: func(c *Config, text string) error {
			if !set(c, text) {
				return &hapax.ValueError{Field: name, Value: text, Allowed: wanted[kind] + allowed, Err: hapax.ErrInvalidArgument}
			}
			return nil
		},
	}
}

// wanted begins what an error says is allowed, by the kind of setting.
var wanted = map[string]string{"string": "one of ", "int": "an integer from ", "duration": "a duration with its unit, such as 10s, from "}

func text(name, standard, doc string, field func(*Config) *string) Setting {
	return newSetting(name, "string", standard, "", doc,
		func(c *Config) any { return *field(c) },
		func(c *Config, text string) bool { *field(c) = text; return true })
}

func short(name, standard string, most int, doc string, field func(*Config) *string) Setting {
	s := text(name, standard, doc, field)
	s.Allowed = fmt.Sprintf("at most %d bytes", most)
	s.set = func(c *Config, text string) error {
		if *field(c) = text; len(text) > most {
			return &hapax.ValueError{Field: name, Value: fmt.Sprintf("(%d bytes)", len(text)), Allowed: s.Allowed, Err: hapax.ErrInvalidArgument}
		}
		return nil
	}
	return s
}

func choice(name, standard string, options []string, doc string, field func(*Config) *string) Setting {
	s := newSetting(name, "string", standard, strings.Join(options, ", "), doc,
		func(c *Config) any { return *field(c) },
		func(c *Config, text string) bool { *field(c) = text; return slices.Contains(options, text) })
	s.Choices = options
	return s
}

func boolean(name string, standard bool, doc string, field func(*Config) *bool) Setting {
	return newSetting(name, "bool", strconv.FormatBool(standard), "true or false", doc,
		func(c *Config) any { return *field(c) },
		func(c *Config, text string) bool {
			*field(c) = text == "true"
			return text == "true" || text == "false"
		})
}

func integer(name string, standard, lo, hi int, doc string, field func(*Config) *int) Setting { //nolint:unparam // as of the other kinds, both bounds are told
	return newSetting(name, "int", strconv.Itoa(standard), fmt.Sprintf("%d to %d", lo, hi), doc,
		func(c *Config) any { return *field(c) },
		func(c *Config, text string) bool {
			v, err := strconv.Atoi(text)
			*field(c) = v
			return err == nil && v >= lo && v <= hi
		})
}

func duration(name string, standard, lo, hi time.Duration, doc string, field func(*Config) *time.Duration) Setting {
	return newSetting(name, "duration", formatDuration(standard), formatDuration(lo)+" to "+formatDuration(hi), doc,
		func(c *Config) any { return formatDuration(*field(c)) },
		func(c *Config, text string) bool {
			v, err := time.ParseDuration(text)
			*field(c) = v
			return err == nil && v >= lo && v <= hi
		})
}

// formatDuration writes a duration without the zeros of smaller units: 1m, not
// 1m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
