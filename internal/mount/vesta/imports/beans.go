package imports

import (
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax/internal/compat/springxml"
	"github.com/hapax-id/hapax/internal/moves"
)

// beans reads what XML says: the service, of either kind, with the beans that it refers to,
// and Dubbo's elements.
func (r *reader) beans(d *springxml.Document) error {
	is := func(b *springxml.Bean) bool { return slices.Contains(services, b.Is()) }
	var chosen string
	if r.bean != "" || slices.ContainsFunc(d.Beans, is) {
		b, err := d.One("service of Vesta's", r.bean, services...)
		if err != nil {
			return err
		}
		r.known++
		chosen = b.ID
		if b.Is() == services[0] {
			claim(d, b, r.texts(d, map[string]string{
				"providerType": provider, "machineId": machine, "ips": addresses, "type": kind, "version": version, "genMethod": genMethod,
				"dbUrl": dbURL, "dbName": dbName, "dbUser": dbUser, "dbPassword": dbSecret,
			}), nil)
		} else {
			r.service(d, b)
		}
	}
	// A file with a service of its own may ask another one, too.
	if at := slices.IndexFunc(d.Elements, func(e *springxml.Element) bool {
		return e.Name == "dubbo:reference" && strings.HasSuffix(e.Attr("interface"), ".IdService")
	}); at >= 0 && r.known == 0 {
		r.account.Refusef("<dubbo:reference interface="+moves.Quote(d.Elements[at].Attr("interface"))+">",
			"FILE is that of a client, which asks Vesta's central server: import the server's file, and leave the client's as it is")
		return r.account.Err()
	}
	// Another service's exports are not this one's, nor is Dubbo where it is for those alone.
	exported := func(e *springxml.Element) bool {
		return e.Name == "dubbo:service" && strings.HasSuffix(e.Attr("interface"), ".IdService")
	}
	of := func(e *springxml.Element) bool {
		ref := e.Attr("ref")
		return ref == "" || ref == chosen || !slices.ContainsFunc(d.Beans, func(b *springxml.Bean) bool { return b.ID == ref && is(b) })
	}
	others := slices.ContainsFunc(d.Elements, exported) &&
		!slices.ContainsFunc(d.Elements, func(e *springxml.Element) bool { return exported(e) && of(e) })
	for _, e := range d.Elements {
		switch prefix, name, _ := strings.Cut(e.Name, ":"); {
		case prefix != "dubbo", exported(e) && !of(e), others && (name == "registry" || name == "protocol"):
		case name == "registry":
			r.registry(d, e)
		case name == "protocol":
			r.protocol(d, e)
		case exported(e):
			d.ClaimElement(e, map[string]func(where, value string){
				"interface": r.setter(iface), "group": r.setter(group), "version": r.setter(revision),
			}, "id", "ref", "timeout", "retries", "loadbalance", "protocol", "registry", "application", "owner", "executes", "actives", "connections", "cluster", "delay", "weight", "async", "cache", "validation", "accesslog", "document", "dynamic", "register")
		case name == "application", name == "provider", name == "monitor", name == "module":
			var idle []string
			for _, a := range e.Attrs {
				idle = append(idle, a.Name)
			}
			d.ClaimElement(e, nil, idle...)
		}
	}
	for _, missing := range d.Missing {
		r.account.Refusef("<import resource="+moves.Quote(missing)+">", "the file was not found beside FILE or above: copy it there, or take the import out if nothing of Vesta's is in it")
	}
	d.Finish()
	return nil
}

// claim claims a bean of Vesta's, whose packages are that of the version that is published and
// that of the house where it was made.
func claim(d *springxml.Document, b *springxml.Bean, takers map[string]springxml.Taker, args func(where string, args []springxml.Property), idle ...string) {
	d.From("Vesta's own", b, "com.robert.vesta", "com.wanda.vesta")
	d.Claim(b, takers, args, idle...)
}

// services are the classes of Vesta's services.
var services = []string{"IdServiceFactoryBean", "IdServiceImpl", "MachineIdsIdServiceImpl"}

// leftOut is the note on a registry that is not wanted.
const leftOut = "Left out, so that consumers are to be told where the provider is"

// setter returns what sets a value of an element.
func (r *reader) setter(name string) func(where, value string) {
	return func(where, value string) { r.set(name, where, value) }
}

// texts returns takers of plain values.
func (r *reader) texts(d *springxml.Document, names map[string]string) map[string]springxml.Taker {
	takers := map[string]springxml.Taker{}
	for property, name := range names {
		takers[property] = func(where string, v springxml.Value) { r.set(name, where, d.Text(where, v)) }
		if name == dbSecret {
			takers[property] = func(where string, v springxml.Value) { r.set(name, where, d.Secret(where, v)) }
		}
	}
	return takers
}

// service reads an IdServiceImpl.
func (r *reader) service(d *springxml.Document, b *springxml.Bean) {
	takers := r.texts(d, map[string]string{"genMethod": genMethod, "version": version})
	takers["type"] = func(where string, v springxml.Value) { r.kind(d, where, v) }
	for property, take := range map[string]func(where string, b *springxml.Bean){
		"machineIdProvider":  func(where string, b *springxml.Bean) { r.machines(d, where, b) },
		"machineIdsProvider": func(where string, b *springxml.Bean) { r.machines(d, where, b) },
		"idPopulator":        func(where string, b *springxml.Bean) { r.idPopulator(d, where, b) },
		"idMeta":             func(where string, b *springxml.Bean) { r.idMeta(d, where, b) },
		"idConverter":        func(where string, b *springxml.Bean) { r.idConverter(d, where, b) },
		"timer":              func(where string, b *springxml.Bean) { r.timer(d, where, b) },
	} {
		takers[property] = func(where string, v springxml.Value) {
			if b := d.Bean(where, v); b != nil {
				take(where, b)
			}
		}
	}
	claim(d, b, takers, func(where string, args []springxml.Property) {
		if len(args) != 1 {
			r.account.Refusef(where, "%d arguments are given; want the type alone", len(args))
			return
		}
		r.kind(d, where, args[0].Value)
	}, "storeFilePath", "storeFileName")
}

// kind reads a type: its name, or an IdType.
func (r *reader) kind(d *springxml.Document, where string, v springxml.Value) {
	text := ""
	if v.IsText() {
		text = d.Text(where, v)
	} else if b := d.Bean(where, v); b != nil {
		d.Claim(b, map[string]springxml.Taker{
			"staticField": func(where string, v springxml.Value) { text = d.Text(where, v) },
		}, func(where string, args []springxml.Property) {
			for _, a := range args {
				text = d.Text(where, a.Value)
			}
		})
	}
	text = text[strings.LastIndexByte(text, '.')+1:] // IdType.MAX_PEAK
	if _, ok := types[strings.ToLower(text)]; !ok {
		r.account.Refusef(where, "it is %q; want seconds or milliseconds, or IdType.MAX_PEAK or MIN_GRANULARITY", text)
		return
	}
	r.set(kind, where, strconv.Itoa(types[strings.ToLower(text)]))
}

// machines reads a provider of machine IDs.
func (r *reader) machines(d *springxml.Document, where string, b *springxml.Bean) {
	list := func(name string) springxml.Taker {
		return func(where string, v springxml.Value) { r.set(name, where, strings.Join(d.Texts(where, v), ",")) }
	}
	switch b.Is() {
	case "PropertyMachineIdProvider":
		claim(d, b, r.texts(d, map[string]string{"machineId": machine}), nil)
	case "PropertyMachineIdsProvider":
		claim(d, b, map[string]springxml.Taker{"machineIds": list(machines)}, nil)
	case "IpConfigurableMachineIdProvider":
		one := func(where string, args []springxml.Property) { list(addresses)(where, args[0].Value) }
		claim(d, b, map[string]springxml.Taker{"ips": list(addresses)}, one)
	case "DbMachineIdProvider":
		claim(d, b, map[string]springxml.Taker{"jdbcTemplate": func(where string, v springxml.Value) {
			if template := d.Bean(where, v); template != nil {
				r.template(d, template)
			}
		}}, nil)
	default:
		r.account.Refusef(where, "%s is a class that is not known here: say what its machine IDs are, by a PropertyMachineIdProvider or a PropertyMachineIdsProvider", b.Class)
	}
}

// template reads a JdbcTemplate.
func (r *reader) template(d *springxml.Document, b *springxml.Bean) {
	take := func(where string, v springxml.Value) {
		if source := d.Bean(where, v); source != nil {
			db := d.Database(source)
			r.table = &db
		}
	}
	d.Claim(b, map[string]springxml.Taker{"dataSource": take}, func(where string, args []springxml.Property) { take(where, args[0].Value) }, "*")
}

func (r *reader) idPopulator(d *springxml.Document, where string, b *springxml.Bean) {
	kinds := map[string]string{"LockIdPopulator": "mutex", "SyncIdPopulator": "mutex", "AtomicIdPopulator": "atomic"}
	if kinds[b.Is()] == "" {
		r.account.Refusef(where, "%s is a class that is not known here: write it in Go, see strategies in docs/strategies-and-plugins.md, or take it out", b.Class)
		return
	}
	r.set(populator, where, kinds[b.Is()])
	claim(d, b, nil, nil)
}

// metaArgs are the arguments of IdMeta's constructor, in their order.
var metaArgs = []string{"machine", "seq", "time", "genMethod", "type", "version"}

// idMeta reads how many bits the fields have.
func (r *reader) idMeta(d *springxml.Document, where string, b *springxml.Bean) {
	if b.Is() != "IdMeta" {
		r.account.Refusef(where, "%s is a class that is not known here; want IdMeta", b.Class)
		return
	}
	bits := map[string]int{}
	take := func(field string) springxml.Taker {
		return func(where string, v springxml.Value) {
			n, err := strconv.Atoi(d.Text(where, v))
			if err != nil || n < 0 || n > 63 {
				r.account.Refusef(where, "want a number of bits, 0 to 63")
			}
			bits[field] = n
		}
	}
	takers := map[string]springxml.Taker{}
	for _, field := range metaArgs {
		takers[field+"Bits"] = take(field)
	}
	claim(d, b, takers, func(where string, args []springxml.Property) {
		for _, a := range args {
			switch field := strings.TrimSuffix(a.Name, "Bits"); {
			case a.Name == "" && a.Index >= 0 && a.Index < len(metaArgs):
				take(metaArgs[a.Index])(where, a.Value)
			case slices.Contains(metaArgs, field):
				take(field)(where, a.Value)
			default:
				r.account.Refusef(where, "want %s, in this order", strings.Join(metaArgs, "Bits, ")+"Bits")
			}
		}
	})
	for _, field := range metaArgs {
		if _, ok := bits[field]; !ok {
			r.account.Refusef(b.Title(), "%sBits is not given", field)
		}
	}
	if r.bits == nil {
		r.bits = bits
	}
}

// idConverter reads a converter, which has nothing of its own but an IdMeta.
func (r *reader) idConverter(d *springxml.Document, where string, b *springxml.Bean) {
	if b.Is() != "IdConverterImpl" {
		r.account.Refusef(where, "%s is a class that is not known here; want IdConverterImpl", b.Class)
		return
	}
	take := func(where string, v springxml.Value) {
		if meta := d.Bean(where, v); meta != nil {
			r.idMeta(d, where, meta)
		}
	}
	claim(d, b, map[string]springxml.Taker{"idMeta": take}, func(where string, args []springxml.Property) { take(where, args[0].Value) })
}

func (r *reader) timer(d *springxml.Document, where string, b *springxml.Bean) {
	if b.Is() != "SimpleTimer" {
		r.account.Refusef(where, "%s is a class that is not known here; want SimpleTimer", b.Class)
		return
	}
	takers := r.texts(d, map[string]string{"epoch": epoch})
	takers["idType"] = func(where string, v springxml.Value) { r.kind(d, where, v) }
	takers["idMeta"] = func(where string, v springxml.Value) {
		if meta := d.Bean(where, v); meta != nil {
			r.idMeta(d, where, meta)
		}
	}
	claim(d, b, takers, nil)
}

// registry reads where the provider is registered.
func (r *reader) registry(d *springxml.Document, e *springxml.Element) {
	address, scheme := "", ""
	d.ClaimElement(e, map[string]func(where, value string){
		"address":  func(_, value string) { address = value },
		"protocol": func(_, value string) { scheme = value },
	}, "id", "name", "check", "timeout", "session", "client", "file", "default", "dynamic", "register", "subscribe", "transporter", "wait")
	const where = "<dubbo:registry address>"
	if address == "" {
		return
	}
	if !strings.Contains(address, "://") && scheme != "" {
		address = scheme + "://" + address
	}
	r.registered(where, address)
}

// registered takes the address of a registry down.
func (r *reader) registered(where, address string) {
	switch {
	case address != "" && r.noRegistry:
		r.account.Note(leftOut, where+" "+address)
	case address != "" && !strings.HasPrefix(address, "zookeeper://"):
		r.account.Refusef(where, "it is %q; want zookeeper://HOST:PORT, the one kind of registry that is known here, or --no-registry, which leaves it out: consumers then name the provider's address", address)
	default:
		r.set(registry, where, address)
	}
}

// protocol reads where the provider listens.
func (r *reader) protocol(d *springxml.Document, e *springxml.Element) {
	d.ClaimElement(e, map[string]func(where, value string){
		"name": func(where, value string) {
			if value != "dubbo" {
				r.account.Refusef(where, "it is %q; want dubbo, the one protocol that is known here", value)
			}
		},
		"port": r.setter(port),
		"serialization": func(where, value string) {
			if value != "hessian2" {
				r.account.Refusef(where, "it is %q; want hessian2, the one serialization that is known here", value)
			}
		},
	}, "id", "host", "threadpool", "threads", "iothreads", "accepts", "payload", "codec", "charset", "buffer", "heartbeat", "queues", "transporter", "server", "client", "dispatcher", "dispather", "accesslog", "default")
}
