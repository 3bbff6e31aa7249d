// Package dump writes the rows of a store as text, and makes a store of that text.
//
// A dump is JSON lines: a header, a line for each row, and an end with counts and a
// checksum of all before it, so that a file that was cut or changed is refused:
//
//	{"hapax_dump":1,"store":"JV2C…","hapax":"…","at":"2026-11-24T15:00:00Z"}
//	{"table":"guard","name":"joins","value":"0000000000000000003"}
//	…
//	{"end":true,"rows":12,"tables":{"guard":1,…},"sha256":"…"}
package dump

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Format is the number of the form that dumps have.
const Format = 1

// maxLine bounds a line of a dump: JSON takes up to six bytes for one.
const maxLine = 6*(driver.MaxValueBytes+driver.MaxTableBytes+driver.MaxNameBytes) + 100

// A Header begins a dump.
type Header struct {
	Format int       `json:"hapax_dump"`
	Store  string    `json:"store"` // the identity
	Hapax  string    `json:"hapax"` // the version that has written it
	At     time.Time `json:"at"`    // when that began

	Retired *driver.Retirement `json:"-"` // where the store had been copied to, as its rows say
}

type line struct {
	Table string `json:"table"` // empty for the tags
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A Summary ends a dump.
type Summary struct {
	End    bool           `json:"end"`
	Rows   int            `json:"rows"`
	Tables map[string]int `json:"tables"`
	Sum    string         `json:"sha256"`
}

// add counts a row.
func (s *Summary) add(table string) {
	if s.Tables == nil {
		s.Tables = map[string]int{}
	}
	s.Tables[table]++
	s.Rows++
}

var identity = regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`)

// A reader reads a dump, and refuses what is none.
type reader struct {
	lines  *bufio.Scanner
	at     int // the line's number
	sum    hash.Hash
	header Header
	end    Summary // counted
	last   driver.Key
	seen   map[string]bool // tables
}

func newReader(r io.Reader) (*reader, error) {
	d := &reader{lines: bufio.NewScanner(r), sum: sha256.New(), seen: map[string]bool{}}
	d.lines.Buffer(nil, maxLine)
	raw, err := d.read()
	if err != nil {
		return nil, err
	}
	var said struct {
		Format *int `json:"hapax_dump"` // another format may come with other fields
	}
	if json.Unmarshal(raw, &said) != nil || said.Format == nil {
		return nil, d.refuse(`is not the header of a dump, which begins with {"hapax_dump":`)
	}
	if *said.Format != Format {
		return nil, d.refuse(fmt.Sprintf("says format %d, and this version, hapax %s, knows format %d: use the version that has written it", *said.Format, hapax.Version(), Format))
	}
	if err := strict(raw, &d.header); err != nil {
		return nil, d.refuse(err.Error())
	}
	if !identity.MatchString(d.header.Store) {
		return nil, d.refuse(fmt.Sprintf("names the store %.80q; an identity is 1 to 64 letters, digits, - and _", d.header.Store))
	}
	return d, nil
}

// refuse returns the error of the current line.
func (d *reader) refuse(why string) error {
	return fmt.Errorf("%w: line %d of the dump %s", hapax.ErrInvalidArgument, d.at, why)
}

// read returns the next line.
func (d *reader) read() ([]byte, error) {
	d.at++
	if d.lines.Scan() {
		return d.lines.Bytes(), nil
	}
	err := d.lines.Err()
	switch {
	case err == nil:
		return nil, d.refuse("is missing: the file was cut off before its end")
	case errors.Is(err, bufio.ErrTooLong):
		return nil, d.refuse(fmt.Sprintf("is longer than %d bytes", maxLine))
	}
	return nil, fmt.Errorf("%w: read line %d of the dump: %w", hapax.ErrInvalidArgument, d.at, err)
}

// next returns the next row, or false after the last one, if the summary that ends the dump is right.
func (d *reader) next() (row driver.Put, more bool, err error) {
	if d.at == 1 {
		d.add(d.lines.Bytes())
	}
	raw, err := d.read()
	if err != nil {
		return row, false, err
	}
	if bytes.HasPrefix(raw, []byte(`{"end":`)) {
		return row, false, d.finish(raw)
	}
	d.add(raw)
	var l line
	if err := strict(raw, &l); err != nil {
		return row, false, d.refuse(err.Error())
	}
	row = driver.Put{Key: driver.Key{Table: l.Table, Name: l.Name}, Value: []byte(l.Value)}
	if err := d.judge(row); err != nil {
		return row, false, d.refuse("is refused: " + err.Error())
	}
	d.end.add(l.Table)
	d.last = row.Key
	return row, true, nil
}

func (d *reader) add(raw []byte) {
	d.sum.Write(raw)
	d.sum.Write([]byte{'\n'})
}

// judge refuses a row that no store has there.
func (d *reader) judge(row driver.Put) error {
	if d.seen[row.Key.Table] && (d.last.Table != row.Key.Table || d.last.Name >= row.Key.Name) {
		return fmt.Errorf("row %.300q of table %.300q comes after a later row, or twice", row.Key.Name, row.Key.Table)
	}
	if !d.seen[row.Key.Table] && !slices.Contains(driver.CopyTables(), row.Key.Table) && !driver.IsTableOfWorkers(row.Key.Table) {
		return fmt.Errorf("there is no table %.300q in a store", row.Key.Table)
	}
	d.seen[row.Key.Table] = true
	return driver.CheckRow(row.Key, row.Value)
}

// finish judges the end.
func (d *reader) finish(raw []byte) error {
	var said Summary
	if err := strict(raw, &said); err != nil {
		return d.refuse(err.Error())
	}
	d.end.End, d.end.Sum = true, hex.EncodeToString(d.sum.Sum(nil))
	switch {
	case said.Rows != d.end.Rows, !maps.Equal(said.Tables, d.end.Tables):
		return d.refuse(fmt.Sprintf("counts %d rows, and there are %d: the file is not whole", said.Rows, d.end.Rows))
	case said.Sum != d.end.Sum:
		return d.refuse("has another checksum than what comes before it: the file was changed")
	}
	if _, err := d.read(); err == nil {
		return d.refuse("follows the end")
	} else if d.lines.Err() != nil {
		return err
	}
	return nil
}

// strict reads a line, without fields that this version does not know.
func strict(raw []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("is not as hapax writes it: %w", err)
	}
	if len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return errors.New("has something after its object")
	}
	return nil
}
