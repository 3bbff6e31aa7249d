package httpapi

import "bytes"

// A frontRequest is a request that the front may answer.
type frontRequest struct {
	tag           []byte
	count         int    // of numbers
	ids           bool   // it is one of POST …/ids, and not of GET …/next
	line          bool   // in a text, also one number ends its line
	json          bool   // the answer is JSON, and not text
	code          bool   // it is the texts that show the numbers
	authorization []byte // the header's value; nil: there is none
}

var (
	frontGet      = []byte("GET /v1/tags/")
	frontNext     = []byte("/next")
	frontPost     = []byte("POST /v1/tags/")
	frontIDs      = []byte("/ids")
	frontCount    = []byte("count=")
	frontCode     = []byte("format=code")
	frontID       = []byte("format=id")
	frontProtocol = []byte(" HTTP/1.1\r\n")
)

const (
	maxFrontTag  = 128 // bytes of a tag's name
	maxFrontName = 24  // bytes of a header's name
)

// match returns the request at the front of a buffer, and its length: 0 if it is not
// all there, or not one for the front.
func (c *frontConn) match(in []byte) (r frontRequest, size int) {
	if c.api == nil {
		return r, 0
	}
	r, headers, ok := matchTarget(in, c.api.svc.MaxCount())
	if !ok {
		return r, 0
	}
	if size, ok = c.matchHeaders(&r, headers); !ok {
		return r, 0
	}
	return r, len(in) - len(headers) + size
}

// matchTarget reads the first line, and returns what comes after it.
func matchTarget(in []byte, most int) (r frontRequest, headers []byte, ok bool) {
	route := frontNext
	rest, ok := bytes.CutPrefix(in, frontGet)
	if !ok {
		route, r.ids, r.line = frontIDs, true, true
		if rest, ok = bytes.CutPrefix(in, frontPost); !ok {
			return r, nil, false
		}
	}
	n := 0
	for n < len(rest) && isPlain(rest[n]) {
		n++
	}
	r.tag, r.count = rest[:n], 1
	// Of a name that begins with a dot the router decides, which takes . and .. for parts of the path.
	if rest, ok = bytes.CutPrefix(rest[n:], route); !ok || n == 0 || n > maxFrontTag || r.tag[0] == '.' {
		return r, nil, false
	}
	if query, asked := bytes.CutPrefix(rest, []byte("?")); asked {
		r.line = true
		if rest, ok = r.matchQuery(query, most); !ok {
			return r, nil, false
		}
	}
	headers, ok = bytes.CutPrefix(rest, frontProtocol)
	return r, headers, ok
}

// matchQuery reads a count, a format or both, and returns what comes after them.
func (r *frontRequest) matchQuery(in []byte, most int) (rest []byte, ok bool) {
	for counted, formatted := false, false; ; in = in[1:] {
		switch {
		case !counted && bytes.HasPrefix(in, frontCount):
			counted = true
			if r.count, in = leadingCount(in[len(frontCount):]); r.count < 1 || r.count > most {
				return nil, false
			}
		case !formatted && bytes.HasPrefix(in, frontCode):
			formatted, r.code, in = true, true, in[len(frontCode):]
		case !formatted && bytes.HasPrefix(in, frontID):
			formatted, in = true, in[len(frontID):]
		default:
			return nil, false
		}
		if len(in) == 0 || in[0] != '&' {
			return in, true
		}
	}
}

// matchHeaders reads headers, whose end must be there, and returns their length. A
// request with a body is none for the front, because no header of a body is harmless but
// the one that says that there is none.
func (c *frontConn) matchHeaders(r *frontRequest, in []byte) (size int, ok bool) {
	var accept []byte
	for at, hosts, lengths := 0, 0, 0; ; {
		end := bytes.IndexByte(in[at:], '\n')
		// A line feed alone ends a line for some and not for others, such as a proxy before this.
		if end < 1 || in[at+end-1] != '\r' {
			return 0, false
		}
		line := in[at : at+end-1]
		at += end + 1
		if len(line) == 0 {
			r.setForm(accept)
			// Which of two names counts is not the front's to say.
			return at, hosts == 1
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 || colon > maxFrontName {
			return 0, false
		}
		for _, b := range line { // a control byte could end a line elsewhere
			if (b < ' ' || b > '~') && b != '\t' {
				return 0, false
			}
		}
		var low [maxFrontName]byte
		name, value := lowered(low[:], line[:colon]), bytes.TrimSpace(line[colon+1:])
		var good bool
		switch string(name) {
		case "host":
			hosts++
			good = c.isGood(value)
		case "accept":
			good = accept == nil && len(value) > 0
			accept = value
		case "authorization":
			good = r.authorization == nil && len(value) > 0
			r.authorization = value
		case "content-length":
			lengths++
			good = string(value) == "0" && lengths == 1
		case "connection":
			good = bytes.EqualFold(value, []byte("keep-alive")) || string(value) == "Upgrade, HTTP2-Settings"
		case "upgrade":
			good = string(value) == "h2c"
		default:
			good = isHarmless(name)
		}
		if !good {
			return 0, false
		}
	}
}

// setForm chooses the form of the answer as the routes do.
func (r *frontRequest) setForm(accept []byte) {
	r.json = r.ids
	if accept == nil || string(accept) == "*/*" {
		return
	}
	if r.ids {
		r.json = !asksFor([]string{string(accept)}, "text/plain", jsonMedia)
	} else {
		r.json = asksFor([]string{string(accept)}, jsonMedia, "text/plain")
	}
}

// isHarmless reports whether neither the routes of numbers nor net/http heed a header of
// a request without a body. The names are those that clients and the proxies before
// them send by themselves: programs in Java ask for HTTP/2, which net/http does not
// grant in that way, with every request, and others name the type of a body that they do
// not send.
func isHarmless(name []byte) bool {
	switch string(name) {
	case "user-agent", "accept-encoding", "accept-language", "accept-charset", "content-type",
		"cache-control", "pragma", "keep-alive", "priority", "http2-settings", "sec-fetch-mode",
		"traceparent", "tracestate", "baggage", "x-request-id", "x-correlation-id",
		"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip":
		return true
	}
	return false
}

// lowered returns a header's name in small letters, in a buffer that is as long.
func lowered(buf, name []byte) []byte {
	for i, b := range name {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		buf[i] = b
	}
	return buf[:len(name)]
}

// leadingCount returns the number that digits begin with, of up to six without a leading
// zero, and what comes after them; 0 if there is none.
func leadingCount(in []byte) (n int, rest []byte) {
	at := 0
	for at < len(in) && at < 6 && '0' <= in[at] && in[at] <= '9' {
		n = 10*n + int(in[at]-'0')
		at++
	}
	if at == 0 || in[0] == '0' {
		return 0, in
	}
	return n, in[at:]
}

// isPlain reports whether a byte of a path stands for itself.
func isPlain(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '-' || b == '_' || b == '.' || b == '~'
}

// isGood reports whether a Host is one that the listener takes as it is.
func (c *frontConn) isGood(host []byte) bool {
	if len(host) > 0 && bytes.Equal(host, c.host) {
		return true
	}
	if len(host) == 0 {
		return false
	}
	for _, b := range host {
		if !isPlain(b) && b != ':' && b != '[' && b != ']' {
			return false
		}
	}
	if c.api != nil && c.api.hosts != nil && !c.api.hosts(string(host)) {
		return false
	}
	c.host = bytes.Clone(host)
	return true
}
