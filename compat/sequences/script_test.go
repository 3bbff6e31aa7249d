package sequences

import (
	"os/exec"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var hostile = []string{
	"orders", "it's", `say "hi"`, "a%b", "$(id)`id`\\", "one\nHAPAX\nid", "HAPAX\nHAPAX1", "x$hapax$\\! id", "$hapax$ $hapax1$", "späße\u200b", "", "\x01",
}

func TestHereDocument(t *testing.T) {
	for _, text := range hostile {
		opening, rest := hereDocument(text)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "cat "+opening+"\n"+rest+"echo end").Output()
		if want := text + "\nend\n"; err != nil || string(out) != want {
			t.Errorf("%q: a shell reads %q, %v; want %q", text, out, err, want)
		}
	}
}

func TestDollarQuoted(t *testing.T) {
	for _, text := range hostile {
		literal := dollarQuoted("hapax", text)
		quote := literal[:strings.Index(literal[1:], "$")+2]
		if inside, rest, _ := strings.Cut(literal[len(quote):], quote); inside != text || rest != "" || !strings.HasPrefix(quote, "$hapax") {
			t.Errorf("%q: %s is %q, and then %q", text, literal, inside, rest)
		}
	}
}

func TestRedisText(t *testing.T) {
	for text, want := range map[string]string{
		"orders": `"orders"`, `a "b\`: `"a \"b\\"`, "ä\n\x00\u200b": `"\xc3\xa4\n\x00\xe2\x80\x8b"`, "\v\x7f": `"\x0b\x7f"`,
	} {
		if got := redisText(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestShellID(t *testing.T) {
	for _, tt := range []struct {
		id   any
		want string
	}{
		{`a"; drop()`, `"a\"; drop()"`},
		{int32(7), `EJSON.parse("{\"id\":{\"$numberInt\":\"7\"}}").id`},
		{bson.D{{Key: "a", Value: `"}); drop(); (`}}, `EJSON.parse("{\"id\":{\"a\":\"\\\"}); drop(); (\"}}").id`},
	} {
		if got := (part{id: tt.id}).shellID(); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.id, got, tt.want)
		}
	}
}
