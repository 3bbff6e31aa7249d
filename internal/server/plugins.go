package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/strategy"
)

// A PluginConfig configures a plugin: a built-in one of a kind or, without a kind, one
// that the program has registered.
type PluginConfig struct {
	Kind       string   `yaml:"kind"`
	Order      int      `yaml:"order"`
	Tags       []string `yaml:"tags"`
	Strategies []string `yaml:"strategies"`
	Off        bool     `yaml:"off"`

	By    string        `yaml:"by"`
	Limit int64         `yaml:"limit"`
	Per   time.Duration `yaml:"per"`

	Windows []time.Duration `yaml:"windows"`

	Key    string `yaml:"key"`
	Digits int    `yaml:"digits"`

	Sync bool          `yaml:"sync"`
	Age  time.Duration `yaml:"age"`
	Size int           `yaml:"size"`
}

var pluginKeys = []Key{
	mount.NewKey("kind", "string", "that of the program", "quota (at most so many numbers in a window), rate (counts numbers by tag and caller), scramble (replaces numbers so that order and amount do not show), history (records who got which numbers, for hapax trace); none for a plugin that the program has registered"),
	mount.NewKey("order", "int", "0; of a history 1000000", "Plugins with a smaller order are called first; those with the same order by name"),
	mount.NewKey("tags", "list", "all", "The tags that the plugin serves; scramble needs some"),
	mount.NewKey("strategies", "list", "all", "The strategies whose tags the plugin serves"),
	mount.NewKey("off", "bool", "false", "Whether the plugin starts switched off; hapax plugins on switches it on"),
	mount.NewKey("by", "string", "tag", "What a quota counts by: tag, or caller (the token's name or, without tokens, the address)"),
	mount.NewKey("limit", "int", "none", "How many numbers each tag or caller may ask for in a quota's window, from 1"),
	mount.NewKey("per", "duration", "none", "The length of a quota's window, from 1s; windows begin at multiples of it in UTC"),
	mount.NewKey("windows", "list", "[1m, 24h]", "The lengths of the windows in which rate counts, up to 8, from 1s"),
	mount.NewKey("key", "string", "none", "The ID of the key under code_keys with which scramble replaces numbers; key and digits are frozen in the store with the tag"),
	mount.NewKey("digits", "int", "none", "How many digits the numbers of scramble have at least, 2 to 19; longer numbers keep their length"),
	mount.NewKey("sync", "bool", "false", "Whether a call waits until the history has it on disk, and fails if it cannot be written. Otherwise a crash loses the last tenth of a second, a power loss the last second, and a disk that is full or slow whatever does not fit into memory"),
	mount.NewKey("age", "duration", "2160h", "How long a history goes back, from 1h"),
	mount.NewKey("size", "int", "256", "How many MiB a history holds at most; the oldest records are removed first"),
}

// maxOrder bounds the order of a plugin, which administrators give in 32 bits.
const maxOrder = 1_000_000_000

// commonKeys are what a plugin of any kind may have.
var commonKeys = []string{"kind", "order", "tags", "strategies", "off"}

// A pluginKind makes the built-in plugins of one kind.
type pluginKind struct {
	keys []string // that only this kind has
	make func(c Config, name string, p PluginConfig) (strategy.Plugin, error)
}

var pluginKinds = map[string]pluginKind{
	"history":  {[]string{"sync", "age", "size"}, newHistory},
	"quota":    {[]string{"by", "limit", "per"}, newQuota},
	"rate":     {[]string{"windows"}, newRate},
	"scramble": {[]string{"key", "digits"}, newScramble},
}

func newQuota(_ Config, name string, p PluginConfig) (strategy.Plugin, error) {
	by, ok := map[string]strategy.QuotaBy{"": strategy.ByTag, "tag": strategy.ByTag, "caller": strategy.ByCaller}[p.By]
	if !ok {
		return strategy.Plugin{}, invalid("by", p.By, "tag, caller")
	}
	return strategy.Quota(name, by, p.Limit, p.Per)
}

// maxWindows bounds the windows of a rate.
const maxWindows = 8

func newRate(_ Config, _ string, p PluginConfig) (strategy.Plugin, error) {
	sorted := slices.Sorted(slices.Values(p.Windows))
	if len(p.Windows) > maxWindows || len(slices.Compact(sorted)) < len(p.Windows) || len(sorted) > 0 && sorted[0] < time.Second {
		return strategy.Plugin{}, invalid("windows", p.Windows, "up to 8 durations from 1s, each once")
	}
	return strategy.NewRate(p.Windows...).Plugin(), nil
}

func newScramble(c Config, _ string, p PluginConfig) (strategy.Plugin, error) {
	key, ok := c.keys[p.Key]
	if !ok {
		return strategy.Plugin{}, invalid("key", p.Key, "the ID of a key under code_keys ("+cmp.Or(strings.Join(slices.Sorted(maps.Keys(c.keys)), ", "), "there is none")+")")
	}
	if len(p.Tags) == 0 {
		return strategy.Plugin{}, invalid("tags", "", "the names of new tags: the numbers of a tag that was used before cannot be scrambled")
	}
	for tag := range c.mounting.plan.Defined {
		if slices.Contains(p.Tags, tag) {
			return strategy.Plugin{}, invalid("tags", tag, "other tags: clients of "+tag+" take its numbers apart")
		}
	}
	s, err := strategy.NewScrambler(key, p.Digits)
	if err != nil {
		return strategy.Plugin{}, err
	}
	return s.Plugin(p.Tags...), nil
}

// historyOrder has a history see what callers get: numbers that others replaced.
const historyOrder = 1_000_000

// newHistory returns the plugin of a history that is opened with the data directory.
func newHistory(_ Config, name string, p PluginConfig) (strategy.Plugin, error) {
	if p.Age != 0 && (p.Age < time.Hour || p.Age > maxKept) {
		return strategy.Plugin{}, invalid("age", p.Age, "1h to "+formatDuration(maxKept))
	}
	if p.Size < 0 || p.Size > maxKeptMiB {
		return strategy.Plugin{}, invalid("size", p.Size, fmt.Sprintf("1 to %d", maxKeptMiB))
	}
	h := strategy.NewHistory(strategy.HistoryOptions{
		Sync: p.Sync, Age: p.Age, Bytes: int64(p.Size) << 20, Caller: service.CallerOf,
	})
	return h.Plugin(name, 0), nil
}

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// addPlugins adds the configured plugins to a registry which has those of the
// program.
func (c Config) addPlugins(r *strategy.Registry) error {
	for _, name := range slices.Sorted(maps.Keys(c.Plugins)) {
		if err := c.addPlugin(r, name, c.Plugins[name]); err != nil {
			return inPlugin(name, err)
		}
	}
	return nil
}

func (c Config) addPlugin(r *strategy.Registry, name string, p PluginConfig) error {
	kind, ok := pluginKinds[p.Kind]
	kinds := slices.Sorted(maps.Keys(pluginKinds))
	switch {
	case p.Kind == "":
		kind.keys = nil
	case !ok:
		return invalid("kind", p.Kind, "one of "+strings.Join(kinds, ", "))
	}
	for key := range setFields(reflect.ValueOf(p)) {
		if !slices.Contains(commonKeys, key) && !slices.Contains(kind.keys, key) {
			return invalid(key, "(given)", "none for the kind "+cmp.Or(p.Kind, "of the program"))
		}
	}
	if p.Kind == "" {
		if len(p.Tags)+len(p.Strategies) > 0 {
			return invalid("tags", p.Tags, "none: the program says what its plugin serves")
		}
		if !slices.ContainsFunc(r.Plugins(), func(q strategy.Plugin) bool { return q.Name == name }) {
			return invalid("kind", "", "one of "+strings.Join(kinds, ", ")+", because the program has registered no plugin of this name")
		}
		return errors.Join(r.Reorder(name, p.Order), r.Switch(name, !p.Off))
	}
	if p.Order < -maxOrder || p.Order > maxOrder {
		return invalid("order", p.Order, fmt.Sprintf("%d to %d", -maxOrder, maxOrder))
	}
	for _, tag := range p.Tags {
		if hapax.ValidateName("tags", tag) != nil {
			return invalid("tags", tag, "names of tags")
		}
		if strings.HasSuffix(tag, "*") { // it would serve a tag of that very name, and no other
			return invalid("tags", tag, "whole names of tags, or none for all: beginnings followed by * are for tokens")
		}
	}
	known := append(r.Strategies(), string(hapax.KindSegment), string(hapax.KindSnowflake))
	for _, s := range p.Strategies {
		if !slices.Contains(known, s) {
			return invalid("strategies", s, "one of "+strings.Join(known, ", "))
		}
	}
	plugin, err := kind.make(c, name, p)
	if err != nil {
		return err
	}
	if r.History() != nil && p.Kind == "history" {
		return invalid("kind", p.Kind, "one plugin of this kind")
	}
	if p.Kind == "history" && p.Order == 0 {
		p.Order = historyOrder
	}
	plugin.Name, plugin.Order, plugin.Off, plugin.Tags, plugin.Strategies = name, p.Order, p.Off, p.Tags, p.Strategies
	return r.Use(plugin)
}

// inPlugin names the setting in which err occurred.
func inPlugin(name string, err error) error {
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		named := *v
		named.Field = pluginsKey + "." + name
		if v.Field != "plugin" {
			named.Field += "." + v.Field
		}
		return &named
	}
	return mount.Errorf(err, "%s.%s", pluginsKey, name)
}
