package server

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 16 << 20

// Config is what a server is run with. Its fields, but for Tokens, Tags, Pools, Plugins and Mounts, are
// described by Settings.
type Config struct {
	Data                 string
	Store                string
	StorePasswordFile    string
	HTTP                 string
	RESP                 string
	RESPConnections      int
	HTTPConnections      int
	Hosts                string
	RESPIdle             time.Duration
	RESPLargeNumbers     string
	AdminHTTP            string
	TLSCert              string
	TLSKey               string
	TLSClientCA          string
	AllowUnauthenticated bool
	AutoCreate           bool
	MaxTags              int
	MaxCount             int
	MaxWait              time.Duration
	Refresh              time.Duration
	TagIdle              time.Duration
	StoreTimeout         time.Duration
	Heartbeat            time.Duration
	Heal                 string
	Advertise            string
	Console              bool
	FleetKey             string
	Witness              string
	Ledger               string
	LedgerAge            time.Duration
	AlarmBudget          time.Duration
	AlarmForecast        time.Duration
	AlarmCertificate     time.Duration
	AlarmCommand         string
	AlarmURL             string
	LedgerSize           int
	RetireLines          time.Duration
	Drain                time.Duration
	LameDuck             time.Duration
	LogFormat            string
	LogLevel             string

	Tokens  map[string]auth.TokenConfig
	Tags    map[string]service.TagConfig
	Pools   map[string]service.PoolConfig
	Plugins map[string]PluginConfig
	// Mounts are the settings of the foreign systems that are on, by name.
	Mounts map[string]mount.Settings

	// CodeKeys tell where the keys of codes are, by key ID.
	CodeKeys map[string]string

	// Setup registers what the program that runs the server brings along; may be nil.
	Setup Setup

	strategies    *strategy.Registry // of the server, which the services beside it share
	crowded       func()             // of a server that starts: told of connections that are refused
	mounting      *mounts            // of a server that starts; nil: none
	ignored       []string           // settings of foreign systems that have no effect
	storePassword string             // given beside Store; empty: none
	address       string             // where a server that starts can be found
	keys          map[string][]byte  // what CodeKeys lead to
}

// Sources are where Load takes settings from, the weakest first. A setting that
// none of them gives has its default.
type Sources struct {
	File  string                           // path of a YAML file; empty: none
	Env   func(name string) (string, bool) // as os.LookupEnv; nil: none
	Flags map[string]string                // by the setting's name
}

// The values of heal.
const (
	healAuto   = "auto"
	healManual = "manual"
)

// The sections.
const (
	tokensKey  = "tokens"
	tagsKey    = "tags"
	poolsKey   = "pools"
	pluginsKey = "plugins"
	keysKey    = "code_keys"
	compatKey  = "compat"
)

// DefaultConfig returns the configuration with every default.
func DefaultConfig() Config {
	c, err := Load(Sources{})
	if err != nil {
		panic(err) // a default outside of its own range, which a test would show
	}
	return c
}

// Load reads the configuration. Errors are a *hapax.ValueError that names the
// setting as the user gave it and matches hapax.ErrInvalidArgument, or the
// file's own.
func Load(from Sources) (Config, error) {
	l := loader{merged: map[string]any{}, origin: map[string]string{}}
	if err := l.file(from.File); err != nil {
		return Config{}, err
	}
	if from.Env != nil {
		if err := l.texts(from.Env, Setting.Env); err != nil {
			return Config{}, err
		}
	}
	flags := func(name string) (string, bool) { v, ok := from.Flags[name]; return v, ok }
	if err := l.texts(flags, func(s Setting) string { return s.Name }); err != nil {
		return Config{}, err
	}
	c, err := l.config()
	if err != nil {
		return Config{}, err
	}
	if c.keys, err = readKeys(c.CodeKeys, from.Env); err != nil {
		return Config{}, err
	}
	if err := l.readMounts(&c, from.Env); err != nil {
		return Config{}, err
	}
	return c, l.completeStore(&c, from.Env)
}

// completeStore checks the store's URL, and finds the password that is given beside it.
func (l *loader) completeStore(c *Config, env func(string) (string, bool)) error {
	if err := checkStore(c.Store); err != nil {
		return l.named(err, "store")
	}
	if c.Data == "" {
		return l.named(&hapax.ValueError{Field: "data", Value: "", Allowed: "a directory", Err: hapax.ErrInvalidArgument}, "data")
	}
	password, err := mount.Passwords("store_password_file", c.StorePasswordFile, storePasswordEnv, env)
	if err != nil {
		return err
	}
	c.storePassword = strings.TrimRight(strings.Join(password, "\n"), "\n")
	_, err = withPassword(c.Store, c.storePassword)
	return err
}

// named makes an error name the setting as the user gave it.
func (l *loader) named(err error, setting string) error {
	if v, ok := errors.AsType[*hapax.ValueError](err); ok && l.origin[setting] != "" {
		v.Field = l.origin[setting]
	}
	return err
}

// A loader merges sources and remembers which one gave each setting.
type loader struct {
	merged map[string]any
	origin map[string]string // what the user calls the setting there, by its name
}

// merge puts the values of a stronger source over those of weaker ones, key by key.
func merge(into, stronger map[string]any) {
	for key, value := range stronger {
		below, isMap := value.(map[string]any)
		if old, ok := into[key].(map[string]any); ok && isMap {
			merge(old, below)
		} else {
			into[key] = value
		}
	}
}

func (l *loader) file(path string) error {
	if path == "" {
		return nil
	}
	data, err := mount.ReadBounded(path, maxConfigBytes)
	if err != nil {
		return mount.Unreadable("--config", path, "a file of YAML that can be read", err)
	}
	values, err := parseYAML(data)
	if err != nil {
		return mount.Errorf(err, "%s", path)
	}
	for name := range values {
		l.origin[name] = name
	}
	// Source by source, so that the error names the one with the wrong key.
	if err := checkKeys(values); err != nil {
		return mount.Errorf(err, "%s", path)
	}
	merge(l.merged, values)
	return nil
}

// texts merges a source that gives text.
func (l *loader) texts(lookup func(string) (string, bool), nameOf func(Setting) string) error {
	values := map[string]any{}
	for _, s := range settings {
		given, ok := lookup(nameOf(s))
		if !ok {
			continue
		}
		called := nameOf(s)
		if called == s.Name {
			called = "--" + s.Flag()
		}
		l.origin[s.Name] = called
		values[s.Name] = given
		if s.isSection() {
			inner, err := parseYAML([]byte(given))
			if err != nil && holdsSecrets(s.Name) {
				err = errors.New("it is not a mapping in YAML") // the reason might repeat a secret
			}
			if err == nil {
				err = checkKeys(map[string]any{s.Name: inner})
			}
			if err != nil {
				return mount.Errorf(err, "%s", called)
			}
			values[s.Name] = inner
		}
	}
	merge(l.merged, values)
	return nil
}

// config turns the merged values into a Config.
func (l *loader) config() (Config, error) {
	var c Config
	for _, s := range settings {
		if s.isSection() {
			continue
		}
		given := s.Default
		switch value := l.merged[s.Name].(type) {
		case nil:
		case []any, map[string]any:
			return Config{}, &hapax.ValueError{Field: s.Name, Value: value, Allowed: "one value", Err: hapax.ErrInvalidArgument}
		default:
			given = fmt.Sprint(value)
		}
		if err := s.set(&c, given); err != nil {
			return Config{}, l.named(err, s.Name)
		}
	}
	for _, section := range []struct {
		key  string
		into any
	}{{tokensKey, &c.Tokens}, {tagsKey, &c.Tags}, {poolsKey, &c.Pools}, {pluginsKey, &c.Plugins}, {keysKey, &c.CodeKeys}} {
		if err := decode(section.key, l.merged[section.key], section.into); err != nil {
			return Config{}, err
		}
	}
	// Made only to be judged: the server makes its own.
	_, err := auth.NewPolicy(c.Tokens)
	return c, err
}

// decode reads a section, or an entry of one.
func decode(key string, given, into any) error {
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		TagName:     "yaml",
		DecodeHook:  mapstructure.ComposeDecodeHookFunc(toDuration, wholeNumber, numberToText, oneForList),
		ErrorUnused: true,
		Result:      into,
	})
	if err != nil {
		return err
	}
	err = d.Decode(given)
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*mapstructure.DecodeError](err)
	if !ok {
		return mount.Errorf(err, "%s", key)
	}
	field := key + "." + strings.TrimPrefix(strings.NewReplacer("[", ".", "]", "").Replace(e.Name()), ".")
	if u, ok := errors.AsType[*mapstructure.UnconvertibleTypeError](err); ok {
		return &hapax.ValueError{Field: field, Value: showable(key, u.Value), Allowed: kindOf(u.Expected.Type()), Err: hapax.ErrInvalidArgument}
	}
	if m, ok := errors.AsType[*misfitError](err); ok {
		value := m.value
		if v, ok := value.(float64); ok && m.kind != reflect.TypeFor[time.Duration]() {
			value = fmt.Sprintf("(%v, written with a point, an exponent or more than 64 bits)", v)
		}
		return &hapax.ValueError{Field: field, Value: value, Allowed: kindOf(m.kind), Err: hapax.ErrInvalidArgument}
	}
	return mount.Errorf(e.Unwrap(), "%s", field)
}

// holdsSecrets reports whether somebody may have written a secret into a section: the
// token where its digest belongs, or a key where it is told where to find it.
func holdsSecrets(section string) bool { return section == tokensKey || section == keysKey }

// showable returns what an error may tell of a value in a section.
func showable(section string, value any) any {
	if holdsSecrets(section) {
		return "(not shown)"
	}
	return value
}

// toDuration reads a duration, which has a unit: a bare number would be nanoseconds.
func toDuration(_, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() {
		return value, nil
	}
	switch v := value.(type) {
	case string:
		d, err := time.ParseDuration(v)
		if err != nil {
			return nil, &misfitError{value, to}
		}
		return d, nil
	case int:
		if v != 0 {
			return nil, &misfitError{value, to}
		}
	case float64:
		return nil, &misfitError{value, to}
	}
	return value, nil
}

// wholeNumber refuses a number with a fraction, or one of more than 64 bits, where an
// integer belongs: the decoder would cut it off.
func wholeNumber(from, to reflect.Type, value any) (any, error) {
	if from.Kind() == reflect.Float64 && (to.Kind() == reflect.Int64 || to.Kind() == reflect.Int) {
		return nil, &misfitError{value, to}
	}
	return value, nil
}

// A misfitError is a value that is not of the kind that belongs there.
type misfitError struct {
	value any
	kind  reflect.Type
}

func (e *misfitError) Error() string { return "not " + kindOf(e.kind) }

// numberToText lets YAML's numbers stand for text, as in "workers: 7".
func numberToText(from, to reflect.Type, value any) (any, error) {
	if to.Kind() == reflect.String && from.Kind() == reflect.Int {
		return fmt.Sprint(value), nil
	}
	return value, nil
}

// oneForList lets one text stand for a list, as in "scopes: admin".
func oneForList(from, to reflect.Type, value any) (any, error) {
	if to.Kind() == reflect.Slice && from.Kind() == reflect.String {
		return []any{value}, nil
	}
	return value, nil
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration with its unit, such as 10s"
	case t.Kind() == reflect.Int64, t.Kind() == reflect.Int:
		return "an integer"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "a list, such as [a, b]"
	case t.Kind() == reflect.Map:
		return "a mapping from names to integers"
	}
	return "text"
}

// checkKeys refuses keys that mean nothing, and names the one that was probably
// meant.
func checkKeys(values map[string]any) error {
	var known []string
	for _, s := range settings {
		known = append(known, s.Name)
	}
	if err := checkKnown("", values, known); err != nil {
		return err
	}
	for _, s := range settings {
		if !s.isSection() {
			continue
		}
		if err := checkSection(s, values[s.Name]); err != nil {
			return err
		}
	}
	return nil
}

func checkSection(s Setting, value any) error {
	entries, ok := value.(map[string]any)
	if !ok && value != nil {
		return &hapax.ValueError{Field: s.Name, Value: showable(s.Name, value), Allowed: "a mapping from names to definitions", Err: hapax.ErrInvalidArgument}
	}
	if s.Keys == nil && s.Entries == nil {
		return nil // its entries are texts, which decode checks
	}
	var known []string
	for _, k := range s.Keys {
		known = append(known, k.Name)
	}
	if s.Entries != nil {
		var names []string
		for _, e := range s.Entries {
			names = append(names, e.Name)
		}
		if err := checkKnown(s.Name+".", entries, names); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if i := slices.IndexFunc(s.Entries, func(e mount.System) bool { return e.Name == name }); i >= 0 {
			known = nil
			for _, k := range slices.Concat(s.Entries[i].Keys, s.Entries[i].Ignored) {
				known = append(known, k.Name)
			}
		}
		entry, ok := entries[name].(map[string]any)
		if !ok && entries[name] != nil {
			return &hapax.ValueError{Field: s.Name + "." + name, Value: showable(s.Name, entries[name]), Allowed: "a mapping", Err: hapax.ErrInvalidArgument}
		}
		if err := checkKnown(s.Name+"."+name+".", entry, known); err != nil {
			return err
		}
		for _, key := range noZeros[s.Name] {
			if isZero(entry[key]) {
				return &hapax.ValueError{Field: s.Name + "." + name + "." + key, Value: entry[key], Allowed: "more than 0, or nothing for the default", Err: hapax.ErrInvalidArgument}
			}
		}
	}
	return nil
}

// noZeros are the keys of which a zero that is given must not stand for the default.
var noZeros = map[string][]string{
	tagsKey:   {"start", "step", "min_step", "max_step", "delta"},
	poolsKey:  {"lease", "grant", "max_grant", "max_ahead", "max_skew"},
	tokensKey: {"rate", "burst", "requests", "connections", "numbers_per_minute", "numbers_per_day", "leases", "new_tags"},
}

func isZero(value any) bool {
	switch v := value.(type) {
	case int:
		return v == 0
	case string:
		d, err := time.ParseDuration(v)
		return err == nil && d == 0
	}
	return false
}

func checkKnown(path string, values map[string]any, known []string) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, key) {
			return mount.Errorf(nil, "there is no setting %s%s; did you mean %s%s?", path, key, path, driver.Nearest(key, known))
		}
	}
	return nil
}
