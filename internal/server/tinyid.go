package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/compat/tinyid/routes"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/witness"
)

// tinyidName is TinyID in metrics, readiness and messages.
const tinyidName = "tinyid"

// A TinyIDConfig is what stands in for TinyID.
type TinyIDConfig struct {
	Databases    []string            `yaml:"databases"`
	PasswordFile string              `yaml:"password_file"`
	Tokens       map[string][]string `yaml:"tokens"`
	HTTP         string              `yaml:"http"`

	passwords []string // one for each database, or none
}

var tinyidKeys = []Key{
	{"databases", "list", "none", "mysql:// URLs of the databases with tiny_id_info and tiny_id_token; without any, the routes issue from the server's own tags"},
	{"password_file", "string", "none", "File with the password of the databases' accounts, where the URLs have none: one for all, or a line for each; instead, the variable " + TinyIDPasswordEnv + " may hold the one for all"},
	{"tokens", "mapping", "none", "Without databases, the tokens of each biz_type, as sha256: and the 64 hexadecimal digits that sha256sum prints of the token; with databases those in tiny_id_token count"},
	{"http", "string", "none", "Address of TinyID's routes; none is the main listener. Every call shows a token of its biz_type"},
}

// endpoints are the addresses of their own.
func (t *TinyIDConfig) endpoints() []endpoint {
	if t == nil {
		return nil
	}
	return []endpoint{{"compat.tinyid.http", t.HTTP, "127.0.0.1:9999", true, &foreignEndpoint{true}}}
}

func (t *TinyIDConfig) check() error {
	if len(t.Databases) > 0 && len(t.Tokens) > 0 {
		return compatError("tinyid.tokens", "(not shown)", "none beside databases, whose tiny_id_token counts")
	}
	if len(t.Databases) == 0 {
		if len(t.Tokens) == 0 {
			return compatError("tinyid.tokens", "", "at least one, as BIZ_TYPE: [\"sha256:…\"], or databases with tiny_id_token; without nobody could call")
		}
		_, err := t.hashes()
		return err
	}
	urls, err := t.urls()
	if err != nil {
		return err
	}
	if err := tinyid.Check(urls); err != nil {
		return configErrorf(err, "compat.tinyid.databases")
	}
	return nil
}

func (t *TinyIDConfig) urls() ([]string, error) {
	var all []string
	for i, at := range t.Databases {
		password := ""
		if len(t.passwords) > 0 {
			if len(t.passwords) != 1 && len(t.passwords) != len(t.Databases) {
				return nil, compatError("tinyid.password_file", fmt.Sprintf("%d lines", len(t.passwords)), fmt.Sprintf("one line, or one for each of the %d databases", len(t.Databases)))
			}
			password = t.passwords[min(i, len(t.passwords)-1)]
		}
		full, err := withCompatPassword("tinyid.databases", at, password)
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
	return token != "" && h[bizType][sha256.Sum256([]byte(token))]
}

func (t *TinyIDConfig) hashes() (hashTokens, error) {
	all := hashTokens{}
	for _, bizType := range slices.Sorted(maps.Keys(t.Tokens)) {
		field := "tinyid.tokens." + bizType
		if err := hapax.ValidateName("tag", bizType); err != nil {
			return nil, compatError(field, bizType, "a biz_type of 1 to 128 bytes")
		}
		all[bizType] = map[[sha256.Size]byte]bool{}
		for _, text := range t.Tokens[bizType] {
			digits, ok := strings.CutPrefix(text, "sha256:")
			raw, err := hex.DecodeString(digits)
			if !ok || err != nil || len(raw) != sha256.Size {
				return nil, compatError(field, "(not a hash)", "sha256: and 64 hexadecimal digits, as printf %s TOKEN | sha256sum prints them")
			}
			all[bizType][[sha256.Size]byte(raw)] = true
		}
	}
	return all, nil
}

func (t *TinyIDConfig) openStore(ctx context.Context, c Config, w *witness.Witness, warn func(code, message string)) (*tinyid.Store, error) {
	urls, err := t.urls()
	if err != nil {
		return nil, err
	}
	timeout := time.Duration(0) // with several databases the other one is tried soon
	if len(urls) == 1 {
		timeout = c.StoreTimeout
	}
	return tinyid.Open(ctx, urls, tinyid.Options{Timeout: timeout, Witness: w, Warn: warn})
}

// tinyidServer is TinyID's part of a server.
type tinyidServer struct {
	foreignHTTP

	config  *TinyIDConfig
	witness *witness.Witness
	rows    *tableStore[*tinyid.Store]
	tokens  *lazy[closingTokens]
	table   *service.Service // nil: native tags
}

// closingTokens are tokens whose Close tells nothing.
type closingTokens struct{ *tinyid.Tokens }

func (t closingTokens) Close() error {
	t.Tokens.Close()
	return nil
}

func (s *tinyidServer) listen(ctx context.Context, c Config) error {
	s.name = tinyidName
	return s.foreignHTTP.open(ctx, c, s.config.endpoints()[0], nil)
}

func (s *tinyidServer) open(ctx context.Context, c Config, n *Node, log *slog.Logger) error {
	if len(s.config.Databases) == 0 {
		return nil
	}
	var err error
	if s.witness, err = c.foreignWitness(tinyidName); err != nil {
		return err
	}
	warn := foreignWarn(n, log, tinyidName)
	s.rows = newTableStore(func(ctx context.Context) (*tinyid.Store, error) { return s.config.openStore(ctx, c, s.witness, warn) })
	s.tokens = newLazy(func(ctx context.Context) (closingTokens, error) {
		store, err := s.rows.get(ctx)
		if err != nil {
			return closingTokens{}, err
		}
		tokens, err := tinyid.OpenTokens(ctx, store)
		return closingTokens{tokens}, err
	})
	contact := func(ctx context.Context) error {
		if err := s.rows.Ping(ctx); err != nil {
			return err
		}
		_, err := s.tokens.get(ctx)
		return err
	}
	if err := firstContact(ctx, log, tinyidName, contact); err != nil {
		return fmt.Errorf("compat.tinyid.databases: %w", err)
	}
	opts, err := foreignOptions(c, n, log, tinyidName)
	if err != nil {
		return err
	}
	opts.Adopt = adoptForeign(tinyidName)
	s.table, err = service.New(ctx, s.rows, opts)
	return err
}

// Allows implements routes.Tokens. Before the tokens were read, none is good.
func (s *tinyidServer) Allows(token, bizType string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), foreignTimeout)
	defer cancel()
	tokens, err := s.tokens.get(ctx)
	return err == nil && tokens.Allows(token, bizType)
}

// Ready implements routes.Readier: while the databases have not answered yet, no token
// can be judged.
func (s *tinyidServer) Ready(ctx context.Context) error {
	_, err := s.tokens.get(ctx)
	return err
}

func (s *tinyidServer) besides() map[string]*service.Service {
	if s.table == nil {
		return nil
	}
	return map[string]*service.Service{tinyidName: s.table}
}

func (s *tinyidServer) build(c Config, own *service.Service, log *slog.Logger) error {
	o := routes.Options{MaxWait: min(c.MaxWait, time.Minute), Failed: func(err error) { own.Failed(tinyidName, err) }}
	o.Known = func(ctx context.Context) { auth.ConnFromContext(ctx).Vouch() }
	issuing := own
	if s.table != nil {
		issuing = s.table
		o.Issuer, o.Granter, o.Tokens = batches{s.table}, s.rows, s
	} else {
		hashes, err := s.config.hashes()
		if err != nil {
			return err
		}
		tags := newNativeTags(own, c)
		o.Issuer, o.Granter, o.Tokens = tags, own, hashes
	}
	h, err := routes.New(o)
	if err != nil {
		return err
	}
	own.Counting(tinyidName)
	s.handle(c, own, []*service.Service{issuing}, h, []string{"/tinyid/id/"}, log)
	return nil
}

// batches issue with a service, however many numbers are asked for.
type batches struct{ svc *service.Service }

func (b batches) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	return nextN(ctx, b.svc, tag, dst)
}

func (s *tinyidServer) close(ctx context.Context) error {
	errs := []error{s.foreignHTTP.close()}
	if s.table != nil {
		errs = append(errs, s.table.Close(ctx))
	}
	if s.tokens != nil {
		errs = append(errs, s.tokens.Close())
	}
	if s.rows != nil {
		errs = append(errs, s.rows.Close())
	}
	if s.witness != nil {
		errs = append(errs, s.witness.Close())
	}
	return errors.Join(errs...)
}
