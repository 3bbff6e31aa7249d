package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/audit"
)

// What audit prints, and the code it exits with.
func TestAudit(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"good.txt":   "1\r\n3\n2",
		"bad.txt":    "5\n6\n5\nx y\n-7\n5\n5\n",
		"ids.csv":    "name,id\n\"a, b\",5\nc,NULL\n",
		"snow.txt":   "2067301285494784000\n2067301285494784001\n-1\n",
		"grants.tsv": "tag/orders\t1\t3\tnode-a\t2026-01-02T03:04:05Z\ntag/orders\t3\t6\tnode-b\t2026-01-02T03:04:06Z\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		args, stdin string
		code        int
		out, errs   string
	}{
		{
			args: "good.txt",
			out:  "numbers\t3\ndifferent\t3\nsmallest\t1\nlargest\t3\nduplicates\t0\nlines without a number\t0\n",
		},
		{
			args: "--json good.txt",
			out:  `{"numbers":3,"distinct":3,"min":"1","max":"3","duplicates":{"numbers":0,"times":0,"list":[]},"invalid":{"lines":0,"list":[]},"unreadable":[]}` + "\n",
		},
		{args: "-", out: "numbers\t0\ndifferent\t0\nduplicates\t0\nlines without a number\t0\n"},
		{
			args: "bad.txt good.txt -", stdin: "5\n\n9\n1\n", code: 1,
			out: "numbers\t12\ndifferent\t7\nsmallest\t-7\nlargest\t9\nduplicates\t2\n" +
				"duplicate\t1\t2 times\tgood.txt:1, …\nduplicate\t5\t5 times\tbad.txt:1, bad.txt:3, bad.txt:6, …\n" +
				"lines without a number\t1\nno number\t\"x y\"\tbad.txt:4\n",
			errs: "hapax: 2 numbers occur more than once; 1 line holds no number\n",
		},
		{
			args: "--column id --grants grants.tsv --json ids.csv", code: 1,
			out: `{"numbers":1,"distinct":1,"min":"5","max":"5","duplicates":{"numbers":0,"times":0,"list":[]},` +
				`"invalid":{"lines":1,"list":[{"file":"ids.csv","line":3,"text":"NULL"}]},"unreadable":[],` +
				`"outside":{"numbers":0,"times":0,"list":[]},"nodes":[{"node":"node-b","numbers":1}]}` + "\n",
			errs: "hapax: 1 line holds no number\n",
		},
		{
			args: "--grants grants.tsv --tag orders --show 1 bad.txt", code: 1,
			out: "numbers\t6\ndifferent\t3\nsmallest\t-7\nlargest\t6\nduplicates\t1\nduplicate\t5\t4 times\tbad.txt:1, bad.txt:3, bad.txt:6, …\n" +
				"outside every grant\t2\noutside\t-7\tonce\tbad.txt:5\nlines without a number\t1\nno number\t\"x y\"\tbad.txt:4\nnode\tnode-b\t4\n",
			errs: "hapax: 1 number occurs more than once; 2 numbers are outside every grant; 1 line holds no number\n",
		},
		{
			args: "--layout leaf snow.txt", code: 1,
			out: "numbers\t3\ndifferent\t3\nsmallest\t-1\nlargest\t2067301285494784001\nduplicates\t0\n" +
				"not of the layout\t1\nmisfit\t-1\tonce\tsnow.txt:3\nlines without a number\t0\nworker\t512\t2\nday\t2026-06-17\t2\n",
			errs: "hapax: 1 number is not of the layout\n",
		},
		{args: "", code: 2, errs: "hapax: missing argument; usage: hapax audit FILE... [flags]\n"},
		{args: "gone.txt", code: 2, errs: "hapax: invalid file \"gone.txt\": want a file that can be read, or - for standard input: no such file or directory\n"},
		{args: "--grants gone.tsv good.txt", code: 2, errs: "hapax: open gone.tsv: no such file or directory\n"},
		{args: "--memory 1kB good.txt", code: 2, errs: "hapax: invalid memory \"1kB\": want up to 1TiB: an integer, followed by KiB, MiB, GiB or TiB\n"},
		{args: "--memory 1KiB good.txt", code: 2, errs: "hapax: invalid memory 1024: want 1048576 to 1099511627776 bytes\n"},
		{args: "--separator ab good.txt", code: 2, errs: "hapax: invalid separator \"ab\": want one character of ASCII, or tab\n"},
		{args: "--tag x good.txt", code: 2, errs: "hapax: --tag and --pool choose among grants: give --grants FILE, too\n"},
		{args: "--tag x --layout leaf --grants grants.tsv good.txt", code: 2, errs: "hapax: --tag is for numbers of a segment; --pool and --layout are for those that hold a time\n"},
		{args: "--pool x --grants grants.tsv good.txt", code: 2, errs: "hapax: --pool needs --layout: grants of a pool are ticks of its layout\n"},
		{args: "--layout x good.txt", code: 2, errs: "hapax: invalid layout"},
	} {
		t.Run(test.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := append([]string{"audit"}, strings.Fields(test.args)...)
			code := Main(t.Context(), args, Streams{strings.NewReader(test.stdin), &out, &errs})
			if code != test.code || out.String() != test.out || !strings.HasPrefix(errs.String(), test.errs) || test.errs == "" && errs.Len() > 0 {
				t.Errorf("code %d\n%s%s\nwant %d\n%s%s", code, out.String(), errs.String(), test.code, test.out, test.errs)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1048576": 1 << 20, "64KiB": 64 << 10, "512MiB": 512 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40, "0": 0,
		"2TiB": -1, "-1MiB": -1, "MiB": -1, "1.5GiB": -1, "1 GiB": -1, "9223372036854775807KiB": -1, "": -1,
	} {
		got, err := parseSize("memory", text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	for want, p := range map[string]audit.Progress{
		"reading [#####...............] 25 %, 20.0 M numbers/s, 31s left": {Phase: "reading", Done: 25, Total: 100, Numbers: 200e6, Elapsed: 10 * time.Second},
		"reading 200.0 M numbers, 20.0 M numbers/s":                       {Phase: "reading", Done: 25, Numbers: 200e6, Elapsed: 10 * time.Second},
		"merging [####################] 100 %, 50 numbers/s":              {Phase: "merging", Done: 100, Total: 100, Numbers: 100, Elapsed: 2 * time.Second},
		"locating [....................] 0 %, 0 B/s":                      {Phase: "locating", Total: 100, Numbers: 100},
	} {
		if got := progressLine(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	var out bytes.Buffer
	bar := &progressBar{w: &out}
	bar.update(audit.Progress{Phase: "reading", Numbers: 5000, Elapsed: time.Second})
	bar.update(audit.Progress{Phase: "reading", Numbers: 5, Elapsed: time.Second})
	bar.clear()
	line, short := "reading 5.0 k numbers, 5.0 k numbers/s", "reading 5 numbers, 5 numbers/s"
	blank := strings.Repeat(" ", len(line))
	if want := fmt.Sprintf("\r%s\r%-*s\r%s\r", line, len(line), short, blank); out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
