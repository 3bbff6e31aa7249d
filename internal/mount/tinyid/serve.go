// Package tinyid mounts TinyID in a server: its routes, over its databases beside its own
// servers, or over the server's own tags.
package tinyid

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/compat/tinyid/routes"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// name is TinyID in metrics, readiness and messages.
const name = "tinyid"

// PasswordEnv is the variable that may hold the password of the databases.
const PasswordEnv = "HAPAX_TINYID_PASSWORD" //nolint:gosec // no password

// readyTimeout bounds how long a call waits for the tokens, if MaxWait does not.
const readyTimeout = 3 * time.Second

// System is TinyID.
var System = mount.System{
	Name:   name,
	Doc:    "Didi TinyID's routes, over its databases beside its own servers, or over the server's own tags",
	New:    func() mount.Settings { return new(Settings) },
	Import: importCommand,
	Env:    []string{PasswordEnv},
	Keys: []mount.Key{
		mount.NewKey("databases", "list", "none", "mysql:// URLs of the databases with tiny_id_info and tiny_id_token; without any, the routes issue from the server's own tags"),
		mount.NewKey("password_file", "string", "none", "File with the password of the databases' accounts, where the URLs have none: one for all, or a line for each; instead, the variable "+PasswordEnv+" may hold the one for all"),
		mount.NewKey("tokens", "mapping", "none", "Without databases, the tokens of each biz_type, as sha256: and the 64 hexadecimal digits that sha256sum prints of the token; with databases those in tiny_id_token count"),
		mount.NewKey("context_path", "string", routes.DefaultContextPath, "What stands before /id/ in the routes, as server.context-path does in TinyID's properties; / is none"),
		mount.NewKey("http", "string", "none", "Address of TinyID's routes; none is the main listener. Every call shows a token of its biz_type"),
	},
}

// Settings are those of compat.tinyid.
type Settings struct {
	Databases    []string            `yaml:"databases" url:"true"`
	PasswordFile string              `yaml:"password_file"`
	Tokens       map[string][]string `yaml:"tokens"`
	ContextPath  string              `yaml:"context_path"`
	HTTP         string              `yaml:"http"`

	passwords []string // one for each database, or none
}

var (
	_ mount.Secret = (*Settings)(nil)
	_ mount.Owner  = (*Settings)(nil)
)

// ReadSecrets implements mount.Secret.
func (t *Settings) ReadSecrets(env func(string) (string, bool)) (err error) {
	t.passwords, err = mount.Passwords("compat.tinyid.password_file", t.PasswordFile, PasswordEnv, env)
	return err
}

// Doors implements mount.Settings.
func (t *Settings) Doors() []mount.Door {
	return []mount.Door{{Name: name, Setting: "compat.tinyid.http", Address: t.HTTP, Example: "127.0.0.1:9999", Open: true}}
}

// Mount implements mount.Settings.
func (t *Settings) Mount(*mount.Plan) (mount.Mount, error) {
	p := &part{settings: t}
	if err := routes.CheckContextPath("tinyid.context_path", t.ContextPath); err != nil {
		return nil, mount.Errorf(err, "compat")
	}
	if len(t.Databases) > 0 && len(t.Tokens) > 0 {
		return nil, mount.Invalid("tinyid.tokens", "(not shown)", "none beside databases, whose tiny_id_token counts")
	}
	if len(t.Databases) == 0 {
		if len(t.Tokens) == 0 {
			return nil, mount.Invalid("tinyid.tokens", "", "at least one, as BIZ_TYPE: [\"sha256:…\"], or databases with tiny_id_token; without nobody could call")
		}
		var err error
		p.hashes, err = t.hashes()
		return p, err
	}
	urls, err := t.urls()
	if err != nil {
		return nil, err
	}
	if err := tinyid.Check(urls); err != nil {
		return nil, mount.Errorf(err, "compat.tinyid.databases")
	}
	return p, nil
}

// urls returns the databases' URLs with their passwords.
func (t *Settings) urls() ([]string, error) {
	var all []string
	for i, at := range t.Databases {
		password := ""
		if len(t.passwords) > 0 {
			if len(t.passwords) != 1 && len(t.passwords) != len(t.Databases) {
				return nil, mount.Invalid("tinyid.password_file", fmt.Sprintf("%d lines", len(t.passwords)), fmt.Sprintf("one line, or one for each of the %d databases", len(t.Databases)))
			}
			password = t.passwords[min(i, len(t.passwords)-1)]
		}
		full, err := mount.WithPassword("tinyid.databases", at, password)
		if err != nil {
			return nil, err
		}
		all = append(all, full)
	}
	return all, nil
}

// hashTokens are tokens by their hashes.
type hashTokens map[string]map[[sha256.Size]byte]bool

// Allows implements routes.Tokens.
func (h hashTokens) Allows(token, bizType string) bool {
	// By its hash: the time of a look-up tells nothing of a token.
	return token != "" && h[bizType][sha256.Sum256([]byte(token))]
}

func (t *Settings) hashes() (hashTokens, error) {
	all := hashTokens{}
	// In order, so that of several mistakes the same one is told at each start.
	for _, bizType := range slices.Sorted(maps.Keys(t.Tokens)) {
		field := "tinyid.tokens." + bizType
		if err := hapax.ValidateName("tag", bizType); err != nil {
			return nil, mount.Invalid(field, bizType, "a biz_type of 1 to 128 bytes")
		}
		all[bizType] = map[[sha256.Size]byte]bool{}
		for _, text := range t.Tokens[bizType] {
			digits, ok := strings.CutPrefix(text, "sha256:")
			raw, err := hex.DecodeString(digits)
			if !ok || err != nil || len(raw) != sha256.Size {
				return nil, mount.Invalid(field, "(not a hash)", "sha256: and 64 hexadecimal digits, as printf %s TOKEN | sha256sum prints them")
			}
			all[bizType][[sha256.Size]byte(raw)] = true
		}
	}
	return all, nil
}

// HasTable implements mount.Owner.
func (t *Settings) HasTable() bool { return len(t.Databases) > 0 }

// OpenTable implements mount.Owner.
func (t *Settings) OpenTable(ctx context.Context, o mount.TableOptions) (mount.Table, error) {
	return t.open(ctx, o)
}

func (t *Settings) open(ctx context.Context, o mount.TableOptions) (*tinyid.Store, error) {
	urls, err := t.urls()
	if err != nil {
		return nil, err
	}
	if len(urls) > 1 {
		o.Timeout = 0 // the other one is tried soon
	}
	return tinyid.Open(ctx, urls, tinyid.Options{Timeout: o.Timeout, Witness: o.Witness, Warn: o.Warn})
}

// databases are TinyID's databases, with the tokens in them.
type databases struct {
	*tinyid.Store
	tokens *tinyid.Tokens
}

// Close closes both.
func (d databases) Close() error {
	// They are read anew from the store, until they are closed.
	d.tokens.Close()
	return d.Store.Close()
}

// A part is TinyID's part of a server.
type part struct {
	settings *Settings
	hashes   hashTokens
	host     *mount.Host
	rows     *mount.Rows[databases]
	table    *service.Service // nil: native tags
}

// Open implements mount.Mount.
func (p *part) Open(ctx context.Context, h *mount.Host) (err error) {
	if p.host = h; !p.settings.HasTable() {
		return nil
	}
	p.rows, p.table, err = mount.OpenRows(ctx, h, name, name, func(ctx context.Context, o mount.TableOptions) (databases, error) {
		store, err := p.settings.open(ctx, o)
		if err != nil {
			return databases{}, err
		}
		tokens, err := tinyid.OpenTokens(ctx, store)
		if err != nil {
			return databases{}, errors.Join(err, store.Close())
		}
		return databases{store, tokens}, nil
	}, nil)
	if err != nil {
		return fmt.Errorf("compat.tinyid.databases: %w", err)
	}
	return nil
}

// Allows implements routes.Tokens. Before the tokens were read, none is good.
func (p *part) Allows(token, bizType string) bool {
	databases, err := p.databases(context.Background())
	return err == nil && databases.tokens.Allows(token, bizType)
}

// Ready implements routes.Readier: while the databases have not answered yet, no token
// can be judged.
func (p *part) Ready(ctx context.Context) error {
	_, err := p.databases(ctx)
	return err
}

// databases waits for them if they are not open yet.
func (p *part) databases(ctx context.Context) (databases, error) {
	if all, open := p.rows.Peek(); open {
		return all, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(readyTimeout, p.host.MaxWait))
	defer cancel()
	return p.rows.Get(ctx)
}

// Answer implements mount.Mount.
func (p *part) Answer(own *service.Service) ([]mount.Answer, error) {
	o := routes.Options{ContextPath: p.settings.ContextPath, MaxWait: min(p.host.MaxWait, time.Minute), Failed: func(err error) { own.Failed(name, err) }}
	// A connection that has shown a good token is not among those that make room for others.
	o.Known = func(ctx context.Context) { auth.ConnFromContext(ctx).Vouch() }
	issuing := own
	if p.table != nil {
		issuing = p.table
		o.Issuer, o.TryNext, o.Granter, o.Tokens = batches{p.table}, p.table.TryNext, p.rows, p
	} else {
		native := mount.NewNativeTags(own)
		o.Issuer, o.TryNext, o.Granter, o.Tokens = native, native.TryNext, native, p.hashes
	}
	h, err := routes.New(o)
	own.Counting(name)
	return []mount.Answer{{Handler: h, Patterns: []string{routes.Prefix(o.ContextPath)}, Routes: routes.Paths(o.ContextPath), Tokens: true, Issuing: []*service.Service{issuing}}}, err
}

// batches issue with a service, however many numbers are asked for.
type batches struct{ svc *service.Service }

// NextN implements routes.Issuer.
func (b batches) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	return mount.NextN(ctx, b.svc, tag, dst)
}
