package mongostore

import (
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/hapax-id/hapax/store/driver"
)

// srvOnly are the parameters that a URL without DNS has not.
var srvOnly = []string{"srvmaxhosts", "srvservicename"}

// withoutDNS returns a URL of the same parameters as one whose servers are in the DNS, for
// what can be judged without asking that.
func withoutDNS(url string) string {
	rest, ok := strings.CutPrefix(url, "mongodb+srv://")
	if !ok {
		return url
	}
	address, query, _ := strings.Cut(rest, "?")
	params := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		name, _, _ := strings.Cut(p, "=")
		return slices.Contains(srvOnly, strings.ToLower(name))
	})
	return "mongodb://" + address + "?" + strings.Join(params, "&")
}

// Parameters by the names of MongoDB's documents: those that URLs have, and those that other
// drivers alone take and that change nothing here.
var (
	known = []string{
		"appName", "authMechanism", "authMechanismProperties", "authSource", "compressors", "connectTimeoutMS", "directConnection", "heartbeatFrequencyMS",
		"journal", "loadBalanced", "localThresholdMS", "maxConnecting", "maxIdleTimeMS", "maxPoolSize", "maxStalenessSeconds", "minPoolSize", "prefix",
		"readConcernLevel", "readPreference", "readPreferenceTags", "replicaSet", "retryReads", "retryWrites", "serverMonitoringMode", "serverSelectionTimeoutMS",
		"socketTimeoutMS", "srvMaxHosts", "srvServiceName", "timeoutMS", "tls", "tlsCAFile", "tlsCertificateKeyFile", "tlsCertificateKeyFilePassword", "tlsInsecure",
		"w", "zlibCompressionLevel", "zstdCompressionLevel",
	}
	ofOthers = []string{"uuidrepresentation", "waitqueuemultiple", "waitqueuetimeoutms", "wtimeout", "wtimeoutms"}
)

// checkParams refuses a parameter that the driver would leave out without a word. A URL that
// cannot be read is for the driver to judge.
func checkParams(url string) error {
	c, err := connstring.Parse(withoutDNS(url))
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	for _, name := range slices.Sorted(maps.Keys(c.UnknownOptions)) {
		if !slices.Contains(ofOthers, name) {
			return driver.WrongParameter(name, known, "")
		}
	}
	return nil
}

// reason returns why the driver does not accept a URL, empty where that may quote a password:
// what it says of the URL without a user.
func reason(url string) string {
	scheme, rest, _ := strings.Cut(withoutDNS(url), "://")
	authority, tail, _ := strings.Cut(rest, "/")
	authority = authority[strings.LastIndexByte(authority, '@')+1:]
	if lower := strings.ToLower(tail); strings.Contains(lower, "password") || strings.Contains(lower, "authmechanism") || strings.Contains(tail, "@") {
		return ""
	}
	if err := options.Client().ApplyURI(scheme + "://" + authority + "/" + tail).Validate(); err != nil {
		return ": " + err.Error()
	}
	return ""
}
