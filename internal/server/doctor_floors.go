package server

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
)

// maxDoctorFloors bounds how many tags have their columns read.
const maxDoctorFloors = 100

// floors compares the marks of tags with the columns that their numbers are written to.
func (d *doctor) floors(ctx context.Context, store driver.Store) {
	see, read := signals.SeeAlarm(health.AlarmFloor), 0
	for after := ""; ; {
		page, err := store.Tags(ctx, after, service.MaxPage)
		if err != nil {
			return // Look has told of the store
		}
		for _, t := range page {
			after = t.Name
			if t.Kind == hapax.KindUnreadable {
				if _, err := store.Tag(ctx, t.Name); err != nil {
					d.add(HarmDanger, "tags", hapax.Message(err), "correct the row", signals.SeeAlarm(health.AlarmUnreadable))
				}
				continue
			}
			columns := define.Shown(t).FloorFrom
			if t.Deleted || len(columns) == 0 {
				continue
			}
			if read++; read > maxDoctorFloors {
				d.add(HarmWeak, "floors", fmt.Sprintf("the columns of more than %d tags were not read", maxDoctorFloors), "", "")
				return
			}
			for _, f := range columns {
				most, err := Columns(ctx, f.URL, f.Table, f.Column)
				name := fmt.Sprintf("tag %s: %s.%s of %s", t.Name, f.Table, f.Column, f.URL)
				switch {
				case err != nil:
					d.add(HarmSoon, "floors", name+" cannot be read: "+hapax.Message(err), "mend that: a fleet that begins anew refuses the tag until it can be read", see)
				case t.Kind == hapax.KindSegment && most >= t.Mark:
					d.add(HarmDanger, "floors", fmt.Sprintf("%s holds %d, at or above the mark %d", name, most, t.Mark), fmt.Sprintf("hapax tags set %s --floor %d", signals.Word(t.Name), most+1), see)
				default:
					d.add(HarmNone, "floors", fmt.Sprintf("%s holds %d at most, below what is issued next", name, most), "", "")
				}
			}
		}
		if len(page) < service.MaxPage {
			return
		}
	}
}
