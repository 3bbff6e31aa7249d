package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
)

// Where a command finds what it shows to servers. A token is not a flag, which
// every process of the machine could read.
const (
	tokenEnv = "HAPAX_TOKEN" //nolint:gosec // no token
	caEnv    = "HAPAX_CA_FILE"
	certEnv  = "HAPAX_CERT_FILE"

	maxCredentials = 1 << 20 // bytes of one file
)

// credentials are a command's token, and the authorities that it trusts.
type credentials struct {
	tokenFile, caFile, certFile string
}

func addCredentials(flags *pflag.FlagSet) *credentials {
	c := &credentials{}
	flags.StringVar(&c.tokenFile, "token-file", "", "file with the API token for the server (or the token in $"+tokenEnv+")")
	flags.StringVar(&c.caFile, "ca-file", "", "PEM file with the authorities to trust beside the system's (or $"+caEnv+")")
	flags.StringVar(&c.certFile, "cert-file", "", "PEM file with a client certificate and its key (or $"+certEnv+")")
	return c
}

// token returns the API token; empty for none.
func (c *credentials) token() (string, error) {
	if c.tokenFile == "" {
		return strings.TrimSpace(os.Getenv(tokenEnv)), nil
	}
	text, err := readCredentials("token-file", c.tokenFile)
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = &hapax.ValueError{Field: "--token-file", Value: c.tokenFile, Allowed: "a file with a token, as hapax token new prints it: it is empty", Err: hapax.ErrInvalidArgument}
	}
	return token, err
}

// tls returns the settings by which servers are trusted and shown the certificate.
func (c *credentials) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := either(c.caFile, caEnv); file != "" {
		text, err := readCredentials("ca-file", file)
		if err != nil {
			return nil, err
		}
		// Authorities of the system that cannot be read are no reason to distrust those of the file.
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			config.RootCAs = x509.NewCertPool()
		}
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, &hapax.ValueError{Field: "--ca-file", Value: file, Allowed: "a file with certificates in PEM form", Err: hapax.ErrInvalidArgument}
		}
	}
	if file := either(c.certFile, certEnv); file != "" {
		text, err := readCredentials("cert-file", file)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(text, text)
		if err != nil {
			return nil, &hapax.ValueError{Field: "--cert-file", Value: file, Allowed: "a file with a certificate and its key in PEM form", Err: hapax.ErrInvalidArgument}
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func either(flag, env string) string {
	if flag != "" {
		return flag
	}
	return os.Getenv(env)
}

func readCredentials(flag, path string) ([]byte, error) {
	f, err := openFile("--"+flag, path, "a file that can be read")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCredentials))
	if err != nil {
		return nil, fmt.Errorf("%w: --%s: %w", hapax.ErrInvalidArgument, flag, err)
	}
	return text, nil
}
