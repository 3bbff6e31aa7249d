package api

import "github.com/hapax-id/hapax"

// A Tag is a tag as an operator sees it. Numbers of its line are strings in JSON, as IDs are.
type Tag struct {
	Name     string     `json:"name"`
	Kind     hapax.Kind `json:"kind"`
	Start    *hapax.ID  `json:"start,omitempty"` // of a segment
	Step     int64      `json:"step,omitempty"`
	MinStep  int64      `json:"min_step,omitempty"`
	MaxStep  int64      `json:"max_step,omitempty"`
	Mark     *hapax.ID  `json:"mark,omitempty"`  // of a segment
	Delta    int64      `json:"delta,omitempty"` // 0: 1
	Rest     int64      `json:"remainder,omitempty"`
	Pool     string     `json:"pool,omitempty"` // of a snowflake
	Deleted  bool       `json:"deleted,omitempty"`
	Code     string     `json:"code,omitempty"`
	Old      []string   `json:"old_codes,omitempty"` // that still can be parsed, the latest first
	Strategy string     `json:"strategy,omitempty"`  // unless it is the kind

	FloorFrom []FloorFrom `json:"floor_from,omitempty"`
}

// A FloorFrom names a column that a tag's numbers are written to: no number at or below
// the highest in it is issued by a fleet that has no witness of earlier numbers.
type FloorFrom struct {
	URL    string `yaml:"url" json:"url"` // env:NAME or file:PATH of the database's URL
	Table  string `yaml:"table" json:"table,omitempty"`
	Column string `yaml:"column" json:"column,omitempty"`
}
