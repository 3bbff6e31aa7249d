package moves

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

// A Database is what a JDBC URL, and the settings beside it, say.
type Database struct {
	URL      string // mysql://user@host:port/database
	Password Secret
}

// idleParams are parameters of JDBC URLs, in lower case, that say how Java reads what the
// database answers, and do not matter to another reader.
var idleParams = words(`
	useUnicode characterEncoding characterSetResults connectionCollation passwordCharacterEncoding
	serverTimezone connectionTimeZone forceConnectionTimeZoneToSession useLegacyDatetimeCode useTimezone
	useGmtMillisForDatetimes useJDBCCompliantTimezoneShift zeroDateTimeBehavior noDatetimeStringSync
	sendFractionalSeconds yearIsDateType tinyInt1isBit transformedBitIsBoolean
	autoReconnect autoReconnectForPools maxReconnects initialTimeout failOverReadOnly autoCommit
	allowMultiQueries rewriteBatchedStatements useServerPrepStmts cachePrepStmts cacheCallableStmts
	prepStmtCacheSize prepStmtCacheSqlLimit useCursorFetch defaultFetchSize useAffectedRows
	useLocalSessionState useLocalTransactionState elideSetAutoCommits alwaysSendSetIsolation
	cacheServerConfiguration cacheResultSetMetadata metadataCacheSize maintainTimeStats
	holdResultsOpenOverStatementClose dontTrackOpenResources emulateUnsupportedPstmts
	generateSimpleParameterMetadata jdbcCompliantTruncation interactiveClient useOldAliasMetadataBehavior
	useInformationSchema nullCatalogMeansCurrent nullNamePatternMatchesAll useColumnNamesInFindColumn
	useCompression useReadAheadInput tcpKeepAlive tcpNoDelay tcpRcvBuf tcpSndBuf tcpTrafficClass
	logger profileSQL slowQueryThresholdMillis logSlowQueries explainSlowQueries dumpQueriesOnException
	gatherPerfMetrics includeInnodbStatusInDeadlockExceptions useHostsInPrivileges allowPublicKeyRetrieval
	useBulkStmts useMysqlMetadata pool minPoolSize maxPoolSize`)

func words(text string) map[string]bool {
	all := map[string]bool{}
	for word := range strings.FieldsSeq(strings.ToLower(text)) {
		all[word] = true
	}
	return all
}

// ReadDatabase turns a JDBC URL for MySQL or MariaDB, and the user and password beside
// it, into the database's URL. field names the setting in the account and in errors,
// which do not show the URL.
func ReadDatabase(a *Account, field, jdbc, user string, password Secret) (Database, error) {
	bad := &hapax.ValueError{Field: field, Value: "(not shown)", Allowed: "jdbc:mysql://host:port/database or jdbc:mariadb://host:port/database", Err: hapax.ErrInvalidArgument}
	rest, ok := strings.CutPrefix(jdbc, "jdbc:mysql://")
	if !ok {
		rest, ok = strings.CutPrefix(jdbc, "jdbc:mariadb://")
	}
	if !ok {
		if kind, _, found := strings.Cut(strings.TrimPrefix(jdbc, "jdbc:"), "://"); found && (strings.HasPrefix(kind, "mysql") || strings.HasPrefix(kind, "mariadb")) {
			bad.Allowed += fmt.Sprintf(", and not the kind jdbc:%s, which has several hosts: name the one that takes the writes", kind)
		}
		return Database{}, bad
	}
	hosts, _, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(hosts, ",()") {
		bad.Allowed += ", with one host: name the one that takes the writes, which is the first unless the URL says otherwise"
		return Database{}, bad
	}
	u, err := url.Parse("mysql://" + rest)
	name := ""
	if err == nil {
		name = strings.Trim(u.Path, "/")
	}
	if err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "" || name == "" || strings.Contains(name, "/") {
		return Database{}, bad
	}
	given, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Database{}, bad
	}
	out := url.URL{Scheme: "mysql", Host: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306")), Path: "/" + name}
	p := params{account: a, field: field, values: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		lower := strings.ToLower(key)
		if _, twice := p.values[lower]; twice || len(given[key]) > 1 {
			a.Refusef(field, "its parameter %q is given twice: give it once", key)
		}
		p.values[lower] = given[key][0]
		p.names = append(p.names, key)
	}
	out.RawQuery = p.read()
	d := Database{Password: password}
	for _, own := range []struct {
		param string
		value *string
	}{{"user", &user}, {"password", (*string)(&d.Password)}} {
		if inside := p.values[own.param]; inside != "" {
			if *own.value != "" && *own.value != inside {
				a.Refusef(field, "its parameter %s is not that given beside the URL: give one of them", own.param)
			}
			*own.value = inside
			if own.param == "password" {
				a.Note(Hidden, p.name("password"))
			}
		}
	}
	if user != "" {
		out.User = url.User(user)
	}
	d.URL = out.String()
	return d, nil
}

// params are the parameters of a JDBC URL.
type params struct {
	account *Account
	field   string
	names   []string          // as written
	values  map[string]string // by their names in lower case
}

// read accounts for all parameters, and returns those of the database's URL.
func (p *params) read() string {
	query := url.Values{}
	p.tls(query)
	for _, name := range p.names {
		value := p.values[strings.ToLower(name)]
		switch lower := strings.ToLower(name); {
		case lower == "user", lower == "password", tlsParams[lower]:
		case lower == "connecttimeout":
			p.timeout(query, name, value, "timeout")
		case lower == "sockettimeout":
			p.timeout(query, name, value, "readTimeout", "writeTimeout")
		case lower == "enabledtlsprotocols", lower == "tlsversions", lower == "enabledsslprotocolsuites":
			p.account.Note("Without effect here, where TLS is of version 1.2 or later", p.name(name))
		case idleParams[lower]:
			p.account.Note(IdlePool, p.name(name))
		default:
			p.account.Refusef(p.field, "its parameter %q is not known here: take it out if the database can be used without it", name)
		}
	}
	return query.Encode()
}

// name is a parameter as the account names it.
func (p *params) name(param string) string { return p.field + "?" + param }

func (p *params) timeout(query url.Values, name, value string, as ...string) {
	ms, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		p.account.Refusef(p.field, "its parameter %s is %q; want milliseconds", name, value)
	}
	if ms == 0 {
		p.account.Note("Without effect here, where every call is bounded", p.name(name))
		return
	}
	for _, param := range as {
		query.Set(param, value+"ms")
	}
}

// tlsParams are the parameters of JDBC URLs, in lower case, that say whether and how the
// connection is encrypted.
var tlsParams = words("useSSL requireSSL verifyServerCertificate sslMode trustServerCertificate disableSslHostnameVerification serverSslCert")

// tls puts tls=true where any of the parameters asks for encryption: it is never weaker than
// what Java was told, and always verified.
func (p *params) tls(query url.Values) {
	var on, off, weak []string
	for _, name := range p.names {
		lower := strings.ToLower(name)
		if !tlsParams[lower] {
			continue
		}
		value := p.values[lower]
		said := p.name(name) + "=" + value
		yes, no := strings.EqualFold(value, "true"), strings.EqualFold(value, "false")
		switch {
		case lower == "sslmode":
			switch strings.NewReplacer("-", "_").Replace(strings.ToLower(value)) {
			case "disable", "disabled":
				off = append(off, said)
			case "verify_identity", "verify_full":
				on = append(on, said)
			case "preferred", "required", "trust", "verify_ca":
				on, weak = append(on, said), append(weak, said)
			default:
				p.account.Refusef(p.field, "its parameter %s is %q; want DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY, or for MariaDB disable, trust, verify-ca or verify-full", name, value)
			}
		case lower == "serversslcert":
			if !strings.HasPrefix(value, "/") {
				p.account.Refusef(p.field, "its parameter %s is no path of a file: put the certificate into a PEM file", name)
			}
			on = append(on, said)
			query.Set("tls_ca", value)
		case !yes && !no:
			p.account.Refusef(p.field, "its parameter %s is %q; want true or false", name, value)
		case lower == "usessl" && no:
			off = append(off, said)
		case lower == "usessl", lower == "requiressl" && yes, lower == "verifyservercertificate" && yes:
			on = append(on, said)
		case lower == "requiressl", lower == "disablesslhostnameverification" && no, lower == "trustservercertificate" && no:
			p.account.Note(IdlePool, said)
		default: // verifyServerCertificate=false and its kind
			weak = append(weak, said)
		}
	}
	switch {
	case len(on) > 0 && len(off) > 0:
		p.account.Refusef(p.field, "%s asks for encryption, and %s for none: give one of them", strings.Join(on, ", "), strings.Join(off, ", "))
	case len(on) > 0:
		query.Set("tls", "true")
		if len(weak) > 0 {
			p.account.Note("The certificate is verified here (tls=true), against the authorities that this machine trusts or those in the file that tls_ca=FILE in the URL names", weak...)
		}
	default:
		if weak = append(weak, off...); len(weak) > 0 {
			p.account.Note("Not encrypted, as before", weak...)
		}
	}
}
