package respapi

import "bytes"

// code answers HAPAX.CODE tag [COUNT n].
func (c *conn) code(args [][]byte) {
	n, many := 1, len(args) == 4 && bytes.EqualFold(args[2], []byte("COUNT"))
	if len(args) > 2 && !many {
		c.fail(errSyntax + ": HAPAX.CODE tag [COUNT n]")
		return
	}
	if many {
		var ok bool
		if n, ok = c.count(args[3], c.srv.svc.MaxCount()); !ok {
			return
		}
	}
	tag := c.tagName(args[1])
	issued, err := c.srv.svc.NextCodes(c.context(), tag, n)
	if err != nil {
		c.failWith(err)
		return
	}
	if many {
		c.b.out = appendArray(c.b.out, n)
	}
	for _, code := range issued.Codes {
		c.bulk(code)
		if len(c.b.out) >= maxUnsent {
			c.flush()
		}
	}
	c.issued(tag, issued.IDs[n-1])
}
