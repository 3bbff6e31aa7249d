package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/witness"
)

// However much is wrong at once, so many alarms are up; each is raised once and cleared
// once.
func TestAlarmsAreBounded(t *testing.T) {
	var a alarms
	var hold []Condition
	for i := range 10 * MaxAlarms {
		hold = append(hold, Condition{Alarm: AlarmCannot, About: fmt.Sprint(i), Detail: "it cannot"})
	}
	if raised, cleared := a.look(hold, time.Now()); len(raised) != MaxAlarms || len(cleared) != 0 || len(a.list()) != MaxAlarms {
		t.Errorf("%d are raised, %d cleared, %d up", len(raised), len(cleared), len(a.list()))
	}
	if raised, cleared := a.look(hold, time.Now()); len(raised)+len(cleared) != 0 {
		t.Errorf("the same again: %d are raised, %d cleared", len(raised), len(cleared))
	}
	if raised, cleared := a.look(nil, time.Now()); len(raised) != 0 || len(cleared) != MaxAlarms || len(a.list()) != 0 {
		t.Errorf("when all is well: %d are raised, %d cleared, %d up", len(raised), len(cleared), len(a.list()))
	}
}

// What an operator is told to do is what the guard knows to be needed, or else the command
// that looks into it; where the runbook tells of it follows from the error's code. A start that
// joins as it should is told nothing.
func TestAdvise(t *testing.T) {
	unavailable, unsafe := hapax.ErrStoreUnavailable.Code(), hapax.ErrStoreUnsafe.Code()
	for name, c := range map[string]struct {
		st           witness.Status
		see, command string
	}{
		"a start that joins":         {witness.Status{State: witness.Joining, Code: unavailable, Waits: true}, "not-joined", ""},
		"a start that takes long":    {witness.Status{State: witness.Joining, Code: unavailable, Waits: true, Trouble: true}, "not-joined", "hapax nodes"},
		"a store that is away":       {witness.Status{State: witness.Joining, Code: unavailable, Trouble: true}, "store-lost", "hapax doctor"},
		"... while numbers are left": {witness.Status{State: witness.Serving, Code: unavailable}, "store-lost", "hapax doctor"},
		"a store that is read-only":  {witness.Status{State: witness.Joining, Code: unsafe, Trouble: true}, "store-unsafe", "hapax doctor"},
		"what the guard knows":       {witness.Status{State: witness.Fenced, Code: hapax.ErrFenced.Code(), Command: "hapax nodes settle b --floor 7"}, "store-went-back", "hapax nodes settle b --floor 7"},
		"a node that serves":         {witness.Status{State: witness.Serving}, "", ""},
	} {
		see, command := Advise(c.st)
		if place := see[strings.IndexByte(see, '#')+1:]; place != c.see || command != c.command {
			t.Errorf("%s: %q, %q; want %q, %q", name, see, command, c.see, c.command)
		}
	}
}

// Every alarm has an entry in the runbook.
func TestAlarmsAreInTheRunbook(t *testing.T) {
	known := []string{
		AlarmStoreLost, AlarmWentBack, AlarmNotJoined, AlarmDiskFull, AlarmBudget, AlarmForecast, AlarmCannot, AlarmRollback, AlarmSkew, AlarmWorkers,
		AlarmPoisoned, AlarmRecords, AlarmPlugin, AlarmBeside, AlarmWrongTokens, AlarmConnections, AlarmCertificate, AlarmCertificateBad, AlarmConfig, AlarmFloor, AlarmUnreadable,
	}
	slices.Sort(known)
	if all := signals.Alarms(); !slices.Equal(all, known) {
		t.Errorf("the runbook has the alarms %q, this package %q", all, known)
	}
}
