package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
)

// A Harm is how bad a finding of a doctor is.
type Harm string

// The harms, the worst first.
const (
	HarmDanger Harm = "danger" // numbers may come twice, or none comes
	HarmSoon   Harm = "soon"   // this will be so
	HarmWeak   Harm = "weak"   // it works, and not as well as it could
	HarmNone   Harm = "ok"
)

var harms = []Harm{HarmDanger, HarmSoon, HarmWeak, HarmNone}

// A Diagnosis is a doctor's finding about one part.
type Diagnosis struct {
	Harm   Harm   `json:"harm"`
	Part   string `json:"part"`
	Detail string `json:"detail"`
	Do     string `json:"do,omitempty"`
	See    string `json:"see,omitempty"` // where the runbook tells of it
}

// SortDiagnoses puts the worst first.
func SortDiagnoses(all []Diagnosis) {
	slices.SortStableFunc(all, func(a, b Diagnosis) int { return cmp.Compare(slices.Index(harms, a.Harm), slices.Index(harms, b.Harm)) })
}

// Limits beyond which a doctor says something.
const (
	maxSync  = 50 * time.Millisecond // for a disk to write a little durably
	maxApart = time.Second           // for two clocks
	syncs    = 5
)

// Examine looks at the configuration and at what it names, as far as that can be done
// beside a server that runs, and changes nothing; of a data directory it writes, and
// removes, one small file. An error is one of the configuration.
func Examine(ctx context.Context, c Config) ([]Diagnosis, error) {
	found, err := Look(ctx, c)
	if err != nil {
		return nil, err
	}
	d := &doctor{c: c}
	running := slices.ContainsFunc(found, func(f Finding) bool { return f.Part == "witness" && strings.Contains(f.Detail, " is in use: ") })
	for _, f := range found {
		d.finding(f, running)
	}
	d.disk()
	d.owners()
	d.files()
	d.certificate(time.Now())
	d.store(ctx, running)
	if len(c.ignored) > 0 {
		d.add(HarmWeak, "configuration", "these settings have no effect: "+strings.Join(c.ignored, ", "), "remove them", "")
	}
	d.add(HarmNone, "version", build.Read().Version+", "+build.Read().Go, "", "")
	SortDiagnoses(d.found)
	return d.found, nil
}

type doctor struct {
	c     Config
	found []Diagnosis
}

func (d *doctor) add(harm Harm, part, detail, do, see string) {
	d.found = append(d.found, Diagnosis{harm, part, strings.ReplaceAll(detail, "\n", " "), do, see})
}

// finding takes over what Look has found. Where a server runs in the directory, that it
// holds the address, the directory and the store is as it should be.
func (d *doctor) finding(f Finding, running bool) {
	switch {
	case f.Part == partEnvironment:
		d.add(HarmWeak, f.Part, f.Detail, "correct or unset these variables", "")
	case f.Verdict != VerdictBlocked:
		d.add(HarmNone, f.Part, f.Detail, "", "")
	case running && (f.Part == "address" || f.Part == "witness"):
		d.add(HarmNone, f.Part, "in use by the server that runs here: "+f.Detail, "", "")
	default:
		d.add(HarmDanger, f.Part, f.Detail, "a server could not start, or would be granted nothing, while this is so", signals.SeeCode(string(f.Code)))
	}
}

// owners looks for files that the user of the data directory cannot open, as root leaves them who ran an
// older version, or copied them there.
func (d *doctor) owners() {
	for _, dir := range []string{d.c.Data, d.c.Witness} {
		if dir == "" {
			continue
		}
		paths, err := durable.Foreign(dir)
		if err != nil || len(paths) == 0 {
			continue // Look has told of a directory that cannot be read
		}
		more := ""
		if len(paths) > 1 {
			more = fmt.Sprintf(", and %d more", len(paths)-1)
		}
		d.add(HarmSoon, "owners", fmt.Sprintf("%s belongs to another user than its directory, %s%s", paths[0], dir, more), "give them to the user that the server runs as: chown -R USER "+dir, "")
	}
}

// disk measures how long the disk of the data directory takes.
func (d *doctor) disk() {
	if info, err := os.Stat(d.c.Data); err != nil || !info.IsDir() {
		return // Look has told
	}
	took, err := syncTime(d.c.Data)
	switch {
	case err != nil:
		d.add(HarmDanger, "disk", fmt.Sprintf("%s: %v", d.c.Data, err), "make room, or give the user the right to write", signals.SeeAlarm(health.AlarmDiskFull))
	case took > maxSync:
		d.add(HarmWeak, "disk", fmt.Sprintf("%s takes %v to write durably, which each grant waits for", d.c.Data, took.Round(time.Millisecond)), "use a faster disk for data or witness", "")
	default:
		d.add(HarmNone, "disk", fmt.Sprintf("%s takes %v to write durably", d.c.Data, took.Round(10*time.Microsecond)), "", "")
	}
}

// syncTime returns how long a small durable write takes, as the median of some.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return 0, bare(err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	var took []time.Duration
	for range syncs {
		began := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, bare(err)
		}
		if err := f.Sync(); err != nil {
			return 0, bare(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// files compares the limit on open files with the settings.
func (d *doctor) files() {
	files, ok := maxFiles()
	if !ok {
		return
	}
	c := d.c
	limits := []*int{&c.HTTPConnections}
	if c.RESP != "" {
		limits = append(limits, &c.RESPConnections)
	}
	if share, lowered := fit(files, c.listeners(), limits...); lowered {
		d.add(HarmWeak, "open files", fmt.Sprintf("the limit of %d allows %d connections for each listener, fewer than the settings", files, share), "raise it (ulimit -n, LimitNOFILE); this is that of this shell, and the server's may differ", signals.SeeAlarm(health.AlarmConnections))
		return
	}
	d.add(HarmNone, "open files", fmt.Sprintf("the limit is %d", files), "", "")
}

// certificate looks at when it ends; that it can be used the configuration's check says.
func (d *doctor) certificate(now time.Time) {
	certs, err := newCertificates(d.c, slog.New(slog.DiscardHandler))
	if err != nil || certs == nil {
		return
	}
	ends := certs.current.Load().expires
	detail := "the certificate ends at " + ends.UTC().Format(time.RFC3339)
	switch left := ends.Sub(now); {
	case left <= 0:
		d.add(HarmDanger, "certificate", detail, "put a new one in place", signals.SeeAlarm(health.AlarmCertificate))
	case left < d.c.AlarmCertificate:
		d.add(HarmSoon, "certificate", detail, "put a new one in place", signals.SeeAlarm(health.AlarmCertificate))
	default:
		d.add(HarmNone, "certificate", detail, "", "")
	}
}

// store looks at the settings and the clock of a store that others may use, too.
func (d *doctor) store(ctx context.Context, running bool) {
	o := newOpener(d.c, slog.New(slog.DiscardHandler))
	if isVolatile(o.url) {
		d.add(HarmDanger, "store", "it forgets everything when the server stops: its numbers will repeat", "use another store for anything but tests", signals.SeeMessage("the store forgets everything when the server stops: its numbers will repeat"))
		return
	}
	// The server that runs holds the file's lock.
	if boltPath(o.url, o.data) != "" && running {
		return
	}
	o.look = true
	told := &collector{}
	o.log = slog.New(told)
	store, err := o.open(ctx)
	if err != nil {
		return // Look has told
	}
	defer store.Close()
	for _, w := range told.warnings {
		d.add(HarmWeak, "store", w, "change the store's settings", signals.SeeCode(string(hapax.ErrStoreUnsafe.Code())))
	}
	d.floors(ctx, store)
	clock, ok := store.(driver.Clock)
	if !ok {
		return
	}
	before := time.Now()
	at, err := clock.StoreTime(ctx)
	took := time.Since(before)
	if err != nil {
		return
	}
	// The store's answer counts as one from the middle of the round trip, of which nobody knows more.
	apart := before.Add(took / 2).Sub(at)
	if apart.Abs() > maxApart+took {
		way := "ahead of"
		if apart < 0 {
			way = "behind"
		}
		d.add(HarmDanger, "clock", fmt.Sprintf("this machine's clock is %v %s the store's", apart.Abs().Round(time.Millisecond), way), "set both by NTP", signals.SeeAlarm(health.AlarmSkew))
	} else {
		d.add(HarmNone, "clock", fmt.Sprintf("within %v of the store's, which answers in %v", (apart.Abs()+took).Round(time.Millisecond), took.Round(10*time.Microsecond)), "", "")
	}
}

// A collector keeps what a driver warns of.
type collector struct{ warnings []string }

// Enabled implements slog.Handler.
func (*collector) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (c *collector) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += "; " + a.Key + ": " + a.Value.String()
		return true
	})
	c.warnings = append(c.warnings, text)
	return nil
}

// WithAttrs implements slog.Handler.
func (c *collector) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler.
func (c *collector) WithGroup(string) slog.Handler { return c }
