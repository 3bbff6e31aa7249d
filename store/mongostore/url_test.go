package mongostore

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// A parameter that the driver would leave out is named, with the one probably meant.
func TestMistypedParameters(t *testing.T) {
	for given, meant := range map[string]string{
		"replicast=rs": "replicaSet", "retrywrite=true": "retryWrites", "serverSelectionTimeout=5000": "serverSelectionTimeoutMS", "authsorce=admin": "authSource",
		"tlsca=x": "", "tlsAllowInvalidCertificates=true": "", "prefx=a": "prefix", "tlsCertificateKeyFilePasword=s3cret": "tlsCertificateKeyFilePassword",
	} {
		name, _, _ := strings.Cut(given, "=")
		for _, scheme := range []string{"mongodb", "mongodb+srv"} {
			err := CheckURL(scheme + "://u:s3cret@h.example.org/db?w=majority&" + given)
			v, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || v.Field != "store URL parameter" || !strings.EqualFold(v.Value.(string), name) || meant != "" && !strings.HasPrefix(v.Allowed, meant+", if that is meant; ") || !strings.Contains(v.Allowed, "replicaSet") {
				t.Errorf("%s, %s: %v; want it to mean %q", scheme, given, err, meant)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error %q holds the password", err)
			}
		}
	}
}

// What the driver takes passes, whatever the case, and so does what other drivers take and
// would change nothing here.
func TestParametersPass(t *testing.T) {
	for url, query := range map[string]string{
		"mongodb://h/db":   "",
		"mongodb://h":      "",
		"mongodb://u:p@h/": "authSource=admin&authMechanism=SCRAM-SHA-256&appName=x&compressors=zlib&zlibCompressionLevel=1&connectTimeoutMS=5&heartbeatFrequencyMS=1000",
		"mongodb://a,b/db": "replicaSet=rs&w=majority&wtimeoutMS=5&journal=true&retryWrites=true&retryReads=false&readPreference=secondary&readPreferenceTags=dc:a&maxStalenessSeconds=100&readConcernLevel=majority",
		"mongodb://h/x":    "MAXPOOLSIZE=5&minpoolsize=1&maxConnecting=2&maxIdleTimeMS=5&localThresholdMS=5&serverSelectionTimeoutMS=5&serverMonitoringMode=auto&socketTimeoutMS=5&timeoutMS=9&directConnection=true",
		"mongodb://h/y":    "tls=true&tlsInsecure=true", "mongodb://h/z": "loadBalanced=true", "mongodb://h/p": "prefix=a_", "mongodb://h/o": "uuidRepresentation=standard&waitQueueTimeoutMS=5",
		"mongodb+srv://h.example.org/db": "srvMaxHosts=2&srvServiceName=mongo&retryWrites=true", "mongodb+srv://h.example.org": "",
	} {
		if query != "" {
			url += "?" + query
		}
		if err := CheckURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, name := range known {
		if err := CheckURL("mongodb://h/db?" + name + "=a"); err != nil && strings.Contains(err.Error(), "store URL parameter") {
			t.Errorf("%s is called known: %v", name, err)
		}
	}
}
