package cli

import (
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

func floorFlags(flags *pflag.FlagSet) *[]string {
	return flags.StringArray("floor-from", nil, "URL,TABLE,COLUMN: a column that the numbers are written to, with env:NAME or file:PATH, of the servers, for the URL; up to 8 times")
}

// floorExtra puts columns into a tag's Extra.
func floorExtra(extra string, given []string) (string, error) {
	var all []api.FloorFrom
	for _, text := range given {
		f, err := define.ParseFloor(text)
		if err != nil {
			return "", err
		}
		all = append(all, f)
	}
	return define.WithFloors(extra, all)
}

// floorUpdate puts what is said of columns into an update.
func floorUpdate(u *driver.TagUpdate, given []string, none, stated bool) error {
	extra := ""
	if u.Extra != nil {
		extra = *u.Extra
	}
	var err error
	switch {
	case len(given) > 0 && (none || stated), none && stated:
		return usagef("--floor-from, --no-floor-from and --floor-stated exclude each other")
	case len(given) > 0:
		extra, err = floorExtra(extra, given)
	case none:
		extra, err = define.WithFloors(extra, define.FloorsNone())
	case stated:
		extra, err = define.WithFloors(extra, define.FloorsStated())
	default:
		return nil
	}
	u.Extra = &extra
	return err
}
