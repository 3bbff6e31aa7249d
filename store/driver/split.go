package driver

import "context"

// Around carries out a guarded call in a store that is Split, as one whose rows and
// tags lie apart: beat makes the beat before, and sees after it that the row still
// stands there and that there is no fence. A store that went back before the
// second beat is noticed by it, unless what was put back has the first one and
// lacks the change.
func Around[T any](ctx context.Context, p Pulse, beat func(context.Context, Pulse) (Contact, error), call func() (T, error)) (T, Contact, error) {
	var none T
	before, err := beat(ctx, p)
	if err != nil || !before.Met {
		return none, before, err
	}
	value, err := call()
	if err != nil {
		if !IsOfTag(err) {
			before = Contact{}
		}
		return none, before, err
	}
	after, err := beat(ctx, Pulse{Row: p.Row, Was: p.Now, Now: p.Now})
	if err != nil || !after.Met {
		return none, after, err
	}
	return value, after, nil
}
