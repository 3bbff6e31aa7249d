package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/service"
)

// remoteBatch is how many numbers a server is asked for at a time: what it allows by
// default.
const remoteBatch = 10_000

// A remote is a server that a command speaks to.
type remote struct {
	*client.Client

	address string
	kept    bool // there is a token, which the server was not shown

	credentials *credentials
}

// dial returns a server. One that nobody has named is shown no token: whoever got
// to its address first would have it. A server is named by a flag, a variable, the
// configuration, or the address in a data directory that nobody else can write to.
func dial(ctx context.Context, address string, c *credentials, named bool) (*remote, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	config, err := c.tls()
	if err != nil {
		return nil, err
	}
	r := &remote{address: address, kept: !named && token != "", credentials: c}
	if r.kept {
		token = ""
	}
	r.Client, err = client.Dial(ctx, client.Options{Token: token, TLS: config, Timeout: callTimeout, Once: true}, address)
	return r, err
}

// explain adds to an error what the user can do about it.
func (r *remote) explain(err error) error {
	switch {
	case !errors.Is(err, api.ErrUnauthenticated):
		return err
	case r.kept:
		return fmt.Errorf("%w; the one that is given was not shown, because nobody has named this server: give --server %s or $%s if it is the right one", err, r.address, serverEnv)
	}
	return fmt.Errorf("%w; give one in $%s or with --token-file", err, tokenEnv)
}

// A remoteTarget is a server as a target.
type remoteTarget struct{ *remote }

// Next implements target.
func (t remoteTarget) Next(ctx context.Context, tag string, n int) ([]hapax.ID, error) {
	ids := make([]hapax.ID, n)
	for done := 0; done < n; {
		got, err := t.NextN(ctx, tag, ids[done:min(n, done+remoteBatch)])
		done += got
		if err != nil {
			return ids[:done], err
		}
	}
	return ids, nil
}

// Codes implements target.
func (t remoteTarget) Codes(ctx context.Context, tag string, n int) (all []service.Issued, err error) {
	for done := 0; done < n; {
		issued, err := t.NextCodes(ctx, tag, min(n-done, remoteBatch))
		if err != nil {
			return all, err
		}
		// The period may end between two requests.
		if len(all) == 0 || all[len(all)-1].Period != issued.Period {
			all = append(all, service.Issued{Period: issued.Period})
		}
		part := &all[len(all)-1]
		part.IDs, part.Codes = append(part.IDs, issued.IDs...), append(part.Codes, issued.Texts...)
		done += len(issued.Texts)
	}
	return all, nil
}

// ParseCode implements target.
func (t remoteTarget) ParseCode(ctx context.Context, tag, code string) (service.ParsedCode, error) {
	p, err := t.Client.ParseCode(ctx, tag, code)
	if err != nil {
		return service.ParsedCode{}, err
	}
	parsed := service.ParsedCode{Code: code, ID: p.ID, Period: p.Period, Spec: p.Spec, Key: p.Key}
	if !p.From.IsZero() {
		parsed.From, parsed.Until = &p.From, &p.Until
	}
	return parsed, nil
}

// Close implements target.
func (t remoteTarget) Close(context.Context) error { return t.Client.Close() }
