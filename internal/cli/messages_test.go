package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// A beginner's mistake is answered with the remedy, in one line,
// and with the exit code of its kind.
func TestMessages(t *testing.T) {
	for _, name := range []string{"HAPAX_SERVER", "HAPAX_DATA", "HAPAX_CONFIG", "HAPAX_STORE", "UNSET"} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil { // Setenv brings it back
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		config string // of serve --print-config, which is run where there are no args
		args   string
		code   int
		want   string // the error
	}{
		{
			name: "a zone that there is not, beside the code", config: "tags:\n  a: {code: 'A-{yyyy}{seq:6}', zone: Europe/Berln}\n", code: 2,
			want: `invalid tags.a.zone "Europe/Berln": want the IANA name of a time zone, such as Europe/Berlin or UTC; there is none with this name`,
		},
		{
			name: "a zone that there is not, in the code", config: "tags:\n  a: {code: '{zone:Europe/Berln}A-{yyyy}{seq:6}'}\n", code: 2,
			want: `such as Europe/Berlin or UTC; there is none with this name (at position 7, "Europe/Berln")`,
		},
		{
			name: "a code without a key", config: "tags:\n  a: {code: '{id:6:feistel}'}\n", code: 2,
			want: `want a key to scramble with, and none is given: name one under code_keys`,
		},
		{
			name: "a key that is not given", config: "tags:\n  a: {code: '{id:6:feistel=k}'}\n", code: 2,
			want: `want the ID of a key that is given (none is); "k" is missing`,
		},
		{
			name: "an exponent in a section", config: "tags:\n  a: {step: 1e3}\n", code: 2,
			want: `invalid tags.a.step (1000, written with a point, an exponent or more than 64 bits): want an integer`,
		},
		{name: "an exponent on the command line", args: "next orders -n 1e3", code: 2, want: `invalid -n "1e3": want an integer of 64 bits, without point or exponent`},
		{name: "no unit", config: "max_wait: 5\n", code: 2, want: `invalid max_wait "5": want a duration with its unit, such as 10s, from 1ms to 1h`},
		{name: "a variable that is not set", config: "code_keys: {k: 'env:UNSET'}\n", code: 2, want: `invalid code_keys.k "env:UNSET": want a variable that is set; $UNSET is not`},
		{name: "a tag without a name", config: "tags:\n  '': {step: 5}\n", code: 2, want: `missing name under tags: want valid UTF-8 of 1 to 128 bytes`},
		{name: "a pool without a name", config: "pools:\n  '': {layout: leaf}\n", code: 2, want: `missing name under pools: want valid UTF-8 of 1 to 128 bytes`},
		{name: "a tab", config: "tags:\n  a:\n\tstep: 1\n", code: 2, want: `line 3 is indented with a tab; YAML takes spaces only`},
		{name: "a key twice", config: "tags:\n  a: {step: 1}\n  a: {step: 2}\n", code: 2, want: `line 3: "a" is given a second time, after line 2; leave one out`},

		{name: "a zero for a step", config: "tags:\n  a: {step: 0}\n", code: 2, want: `invalid tags.a.step 0: want more than 0, or nothing for the default`},
		{name: "a zero for a start", config: "tags:\n  a: {start: 0}\n", code: 2, want: `invalid tags.a.start 0: want more than 0`},
		{name: "a zero for a delta", config: "tags:\n  a: {delta: 0}\n", code: 2, want: `invalid tags.a.delta 0: want more than 0`},
		{name: "a zero for a lease", config: "pools:\n  default: {lease: 0s}\n", code: 2, want: `invalid pools.default.lease "0s": want more than 0`},
		{name: "a zero for a rate", config: "tokens:\n  a: {rate: 0}\n", code: 2, want: `invalid tokens.a.rate 0: want more than 0`},
		{name: "a remainder of zero", config: "tags:\n  a: {delta: 2, remainder: 0}\n"},

		{name: "no database", args: "next --store postgres:// orders", code: 2, want: `invalid store URL "postgres://": want a server and a database, as in postgres://USER:PASSWORD@HOST:5432/DATABASE`},
		{name: "an unknown flag", args: "next --servr x", code: 2, want: `unknown flag: --servr (did you mean --server?); see hapax next --help`},
		{name: "an unknown flag of a setting", args: "serve --max-wiat 5s", code: 2, want: `unknown flag: --max-wiat (did you mean --max-wait?); see hapax serve --help`},
		{name: "a flag that is like no other", args: "next --xyzzy", code: 2, want: `unknown flag: --xyzzy; see hapax next --help`},
		{name: "no nodes", args: "plan --nodes 0", code: 2, want: `invalid --nodes 0: want more than 0`},
		{name: "a rate of nothing", args: "plan --rate 0", code: 2, want: `invalid --rate 0: want more than 0`},
		{name: "no years", args: "import uid-generator --years 0 x", code: 2, want: `invalid --years 0: want more than 0`},
		{name: "a tag without a step", args: "tags create a --min-step 0 --store memory:", code: 2, want: `invalid --min-step 0: want more than 0`},
		{name: "an unknown shell", args: "completion bsh", code: 2, want: `there is no command "completion bsh" (did you mean bash`},
		{name: "help on nothing", args: "help nosuch", code: 2, want: `there is no command "nosuch"; see hapax --help`},
		{name: "help on nothing below a command", args: "help tags nosuch", code: 2, want: `there is no command "tags nosuch"; see hapax --help`},
		{name: "help on a command", args: "help tags list"},
		{name: "a file to import that is missing", args: "import leaf nofile", code: 2, want: `invalid FILE "nofile": want a file that can be read, or - for standard input: no such file or directory`},
		{name: "a file to audit that is missing", args: "audit nofile", code: 2, want: `invalid file "nofile": want a file that can be read, or - for standard input: no such file or directory`},
		{name: "a configuration that is missing", args: "serve --config nofile --print-config", code: 2, want: `invalid --config "nofile": want a file of YAML that can be read: no such file or directory`},
		{name: "a worker of a fresh store", args: "workers show default 99999 --store memory:", code: 1, want: `"default" is not in the store, which gets it when one of its tags first issues, or from hapax pools create`},
		{name: "a pool of a fresh store", args: "pools delete default --store memory:", code: 1, want: `"default" is not in the store, which gets it when one of its tags first issues`},
		{name: "numbers as lines of JSON", args: "audit good.ndjson"},
		{name: "a number twice in lines of JSON", args: "audit bad.ndjson", code: 1, want: `1 number occurs more than once`},
		{name: "lines of JSON without numbers", args: "audit other.ndjson", code: 1, want: `3 lines hold no number`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			for name, text := range map[string]string{
				"good.ndjson": `{"id":"9007199254740993"}` + "\n" + `{"id":9007199254740992,"tag":"a"}` + "\n" + `{"ids":["3","4"]}` + "\n",
				"bad.ndjson":  `{"ids":["3","4"]}` + "\n" + `{"ids":["5","4"]}` + "\n",
				// A null that passed for 0 would hide a number.
				"other.ndjson": `{"id":null}` + "\n" + `{"ids":["1",null]}` + "\n" + `{"order":"1"}` + "\n" + `{"id":"7"}` + "\n",
				"hapax.yaml":   test.config,
			} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := strings.Fields(test.args)
			if len(args) == 0 {
				args = []string{"serve", "--config", "hapax.yaml", "--print-config"}
			}
			var out, errs bytes.Buffer
			code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if code != test.code || test.want != "" && !strings.Contains(errs.String(), test.want) || test.want == "" && errs.Len() > 0 {
				t.Errorf("exit code %d, want %d: %swant %s", code, test.code, errs.String(), test.want)
			}
			if strings.Count(errs.String(), "\n") > 1 {
				t.Errorf("the error has several lines: %s", errs.String())
			}
			if _, err := os.Stat("hapax-data"); err == nil {
				t.Error("a data directory was made")
			}
		})
	}
}
