package dubbo

import (
	"context"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
)

// maxName bounds the names in a request: versions, path, method and descriptor.
const maxName = 256

// A call is what a request asks for.
type call struct {
	service    string
	method     string
	descriptor string
	args       []int64
	echo       []byte // the argument of $echo
}

// echo is the method by which Dubbo's consumers test a connection.
const echo = "$echo"

// Descriptors of arguments, as Java writes them.
const (
	descLong   = "J"
	descObject = "Ljava/lang/Object;"
)

// parseCall reads the body of a request: the protocol's version, the service's path
// and version, the method, the descriptor of its arguments, these, and attachments.
func parseCall(body []byte) (c call, err error) {
	d := decoder{data: body}
	var version, serviceVersion string
	for _, f := range []struct {
		name string
		to   *string
	}{
		{"protocol version", &version},
		{"path", &c.service},
		{"service version", &serviceVersion},
		{"method", &c.method},
		{"parameter types", &c.descriptor},
	} {
		if *f.to, err = d.text(maxName); err != nil {
			return c, badRequest(fmt.Errorf("%s: %w", f.name, err))
		}
	}
	if c.method == echo && c.descriptor == descObject {
		// References within the value count from its beginning, in the request as
		// in the reply, so that its bytes mean the same there.
		if c.echo, err = d.raw(); err != nil {
			return c, badRequest(fmt.Errorf("argument of $echo: %w", err))
		}
		return c, nil
	}
	// makeId takes six at most: what has more arguments is no method, and they are not read.
	if n := len(c.descriptor); n > 6 || strings.Trim(c.descriptor, descLong) != "" {
		return c, serviceError(noSuchMethod(c))
	}
	for i := range len(c.descriptor) {
		v, err := d.long()
		if err != nil {
			return c, badRequest(fmt.Errorf("argument %d of %s: %w", i+1, c.method, err))
		}
		c.args = append(c.args, v)
	}
	if d.left() == 0 { // some consumers send no attachments
		return c, nil
	}
	if err := d.skip(maxDepth); err != nil {
		return c, badRequest(fmt.Errorf("attachments: %w", err))
	}
	return c, nil
}

func noSuchMethod(c call) error {
	return fmt.Errorf("no method %.64q with the parameters %.64q; there are genId(), expId(J), transTime(J) and makeId with two to six J", c.method, c.descriptor)
}

// idNames are the fields of Vesta's class Id, in their order.
var idNames = []string{"machine", "seq", "time", "genMethod", "type", "version"}

// run carries a call out and appends its result. A *hapax.ValueError is the caller's
// fault.
func (s *Server) run(ctx context.Context, dst []byte, c call) ([]byte, error) {
	if c.echo != nil {
		return append(append(dst, resultValue), c.echo...), nil
	}
	class, ok := s.classes[c.service]
	if !ok {
		return dst, serviceError(fmt.Errorf("no service %.128q; there is %s", c.service, strings.Join(s.opts.Interfaces, ", ")))
	}
	switch {
	case c.method == "genId" && len(c.args) == 0:
		id, err := s.ids.GenID(ctx)
		if err != nil {
			return dst, serviceError(err)
		}
		return appendLong(append(dst, resultValue), int64(id)), nil
	case c.method == "makeId" && len(c.args) >= 2:
		id, err := s.ids.MakeID(inOrder(c)...)
		if err != nil {
			return dst, err
		}
		return appendLong(append(dst, resultValue), int64(id)), nil
	case c.method == "expId" && len(c.args) == 1:
		p, err := s.ids.ExpID(hapax.ID(c.args[0]))
		if err != nil {
			return dst, err
		}
		values := []int64{p.Machine, p.Seq, p.Time, p.GenMethod, p.Type, p.Version}
		return appendObject(append(dst, resultValue), class, idNames, values), nil
	case c.method == "transTime" && len(c.args) == 1:
		t, err := s.ids.TransTime(c.args[0])
		if err != nil {
			return dst, err
		}
		return appendDate(append(dst, resultValue), t.UnixMilli()), nil
	}
	return dst, serviceError(noSuchMethod(c))
}

// machineFirst begins the name of the older interface, whose makeId takes the
// machine before time and sequence.
const machineFirst = "com.wanda."

// inOrder returns the arguments of makeId with the machine behind time and sequence.
func inOrder(c call) []int64 {
	n := len(c.args)
	if n < 3 || !strings.HasPrefix(c.service, machineFirst) {
		return c.args
	}
	machine, time, seq := c.args[n-3], c.args[n-2], c.args[n-1]
	c.args[n-3], c.args[n-2], c.args[n-1] = time, seq, machine
	return c.args
}

// classOf returns the name of the class that expId of an interface returns. The two
// stand side by side: com.robert.vesta.service has intf.IdService and bean.Id.
func classOf(service string) string {
	pkg := service[:max(0, strings.LastIndexByte(service, '.'))]
	if parent, ok := strings.CutSuffix(pkg, ".intf"); ok {
		return parent + ".bean.Id"
	}
	return pkg + ".Id"
}
