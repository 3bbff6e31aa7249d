package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// sessionTime is how long a session lasts.
const sessionTime = 12 * time.Hour

// maxSecrets bounds the file of sessions, in bytes.
const maxSecrets = 4 << 20

// sessions signs cookies, and knows which sessions were ended before their time. A cookie
// holds "ID.BADGE.UNIX.MAC": the session, the digest of its token, when it ends.
type sessions struct {
	path string // empty: kept in memory
	warn func(error)
	name string // of the cookie; browsers do not tell the ports of a host apart

	mu   sync.Mutex // guards kept
	kept keptSessions
}

// keptSessions is the content of the file.
type keptSessions struct {
	Key   []byte           `json:"key"`
	Ended map[string]int64 `json:"ended"` // by ID: when the cookie ends anyway
}

// openSessions reads the file, or makes it. Where it cannot be, sessions end with the
// process.
func openSessions(o Options) *sessions {
	s := &sessions{path: o.Secrets, warn: func(err error) {
		o.Logger.Error("the console's sessions cannot be kept; they end when the server stops, and one that was ended is good again then", "err", err)
	}}
	if s.path != "" {
		data, err := os.ReadFile(s.path)
		if err == nil && len(data) <= maxSecrets {
			_ = json.Unmarshal(data, &s.kept) // what cannot be read is replaced below
		}
	}
	if s.kept.Ended == nil {
		s.kept.Ended = map[string]int64{}
	}
	if len(s.kept.Key) != sha256.Size {
		s.kept.Key = make([]byte, sha256.Size)
		_, _ = rand.Read(s.kept.Key) // it never fails
		s.keepLocked()               // nobody else has s yet
	}
	s.name = "hapax-" + hex.EncodeToString(s.mac("name")[:6])
	return s
}

func (s *sessions) keepLocked() {
	if s.path == "" {
		return
	}
	data, err := json.Marshal(s.kept)
	if err == nil {
		err = durable.Replace(durable.OS, s.path, func(*os.File) ([]byte, error) { return data, nil })
	}
	if err != nil {
		s.warn(err)
	}
}

func (s *sessions) mac(text string) []byte {
	h := hmac.New(sha256.New, s.kept.Key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// begin gives a browser a session of a caller.
func (s *sessions) begin(w http.ResponseWriter, r *http.Request, c *auth.Caller) {
	ends := time.Now().Add(sessionTime)
	text := fmt.Sprintf("%s.%s.%d", rand.Text(), c.Badge(), ends.Unix())
	s.cookie(w, r, text+"."+base64.RawURLEncoding.EncodeToString(s.mac(text)), sessionTime)
}

func (s *sessions) cookie(w http.ResponseWriter, r *http.Request, value string, age time.Duration) {
	// A proxy in front may speak TLS: then the browser says where its page is from.
	secure := r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
	// Without a path it is sent to the console alone, wherever a proxy has that.
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // on loopback there may be no TLS
		Name: s.name, Value: value, MaxAge: int(age / time.Second), HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	})
}

// parse returns what the cookie of a request says, if it is one of ours and good.
func (s *sessions) parse(r *http.Request) (id, badge string, ends int64) {
	cookie, err := r.Cookie(s.name)
	if err != nil || len(cookie.Value) > 512 {
		return "", "", 0
	}
	at := strings.LastIndexByte(cookie.Value, '.')
	if at < 0 {
		return "", "", 0
	}
	mac, err := base64.RawURLEncoding.DecodeString(cookie.Value[at+1:])
	if err != nil || !hmac.Equal(mac, s.mac(cookie.Value[:at])) {
		return "", "", 0
	}
	parts := strings.Split(cookie.Value[:at], ".")
	if len(parts) != 3 {
		return "", "", 0
	}
	if ends, err = strconv.ParseInt(parts[2], 10, 64); err != nil || time.Now().Unix() >= ends {
		return "", "", 0
	}
	s.mu.Lock()
	_, ended := s.kept.Ended[parts[0]]
	s.mu.Unlock()
	if ended {
		return "", "", 0
	}
	return parts[0], parts[1], ends
}

// badge returns the digest of the token in a request's session; empty for none.
func (s *sessions) badge(r *http.Request) string {
	_, badge, _ := s.parse(r)
	return badge
}

// end ends the session of a request.
func (s *sessions) end(w http.ResponseWriter, r *http.Request) {
	if id, _, ends := s.parse(r); id != "" {
		s.mu.Lock()
		// Cookies that are over by themselves need not be remembered: the file holds half a day's at most.
		maps.DeleteFunc(s.kept.Ended, func(_ string, ends int64) bool { return time.Now().Unix() >= ends })
		s.kept.Ended[id] = ends
		s.keepLocked()
		s.mu.Unlock()
	}
	s.cookie(w, r, "", -time.Second)
}

func (c *Console) loginForm(w http.ResponseWriter, r *http.Request) {
	if _, _, err := c.who(r); err == nil {
		redirect(w, "./")
		return
	}
	c.render(w, http.StatusOK, "login", view{Title: "Log in", Bare: true})
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	caller, err := c.opts.Policy.From(r.Context(), r.RemoteAddr, strings.TrimSpace(r.PostFormValue("token")))
	if err == nil {
		err = caller.Allow(auth.Watch, "")
	}
	// Also where it is refused: somebody who tries tokens shows in the log.
	c.svc.Attempted(auth.NewContext(r.Context(), caller, r.RemoteAddr), "log in", err)
	if err != nil {
		c.render(w, statusOf(err), "login", view{Title: "Log in", Bare: true, Error: messageOf(err)})
		return
	}
	// Where no token is asked for, a session would be nobody's.
	if c.opts.Policy.HasTokens() {
		c.sessions.begin(w, r, caller)
	}
	redirect(w, "./")
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	caller, _, err := c.who(r)
	c.svc.Attempted(auth.NewContext(r.Context(), caller, r.RemoteAddr), "log out", err)
	// Whoever it was: a cookie that is good no more is taken back, too.
	c.sessions.end(w, r)
	redirect(w, "login")
}
