package mongostore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax/store/driver"
)

// Step implements driver.KV. There is a write for each row that is raised, one for the changes
// of many rows, and a look at the conditions before the changes and after them:
//
//	raise  ->  look  -> not met: nothing was changed
//	             | met
//	             v
//	          change ->  look -> not met: what was changed is not told
//	                       | met
//	                       v
//	                     done
//
// A fence that is raised meanwhile, or a store that went back, is so met by the second look, and
// nobody uses a half step. A row is raised before the first look only where the step before has
// found it well: under a fence, or after it has ended, it is left alone. Rows that a step makes one after
// the other are one write. An insertion cannot ask for the store: the answer just before it has said
// which one there is, or that is asked.
func (s *space) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	r, err := s.step(ctx, step)
	if len(step.Raise) > 0 {
		if err == nil && r.Met {
			s.beaten.Store(&step.Raise[0].Key)
		} else {
			s.beaten.Store(nil)
		}
	}
	if err != nil {
		return driver.Result{}, s.failed(ctx, err)
	}
	return r, nil
}

func (s *space) step(ctx context.Context, step driver.Step) (r driver.Result, err error) {
	r.Then, r.Each = make([]driver.Outcome, len(step.Then)), make([]driver.Outcome, len(step.Each))
	var found rows
	if r.Met, found, err = s.raise(ctx, step); err != nil {
		return r, err
	}
	changes, sure := false, found != nil // no answer before the changes: none has said which store it is of
	for done := 0; r.Met && done < len(step.Then); {
		changes = true
		n := s.insertions(step.Then[done:])
		if n > 0 {
			err = s.insert(ctx, step.Then[done:done+n], r.Then[done:], sure)
		} else {
			n = 1
			r.Then[done], err = s.change(ctx, step.Then[done], sure)
		}
		if err != nil {
			return r, err
		}
		done, sure = done+n, false
		r.Met = r.Then[done-1].Done // else others were made: see driver.Step
	}
	if r.Met && len(step.Each) > 0 {
		changes = true
		if r.Each, err = s.changeEach(ctx, step.Each, sure && len(step.Each) == 1); err != nil {
			return r, err
		}
	}
	if changes && len(step.If)+len(step.Look) > 0 {
		if found, err = s.look(ctx, step); err != nil {
			return r, err
		}
		if r.Met = r.Met && holds(step, found, true); !r.Met {
			r.Each = make([]driver.Outcome, len(step.Each))
		}
	}
	for _, c := range step.If {
		if !r.Met {
			r.If = append(r.If, found.cell(c.Key))
		}
	}
	for _, key := range step.Look {
		r.Look = append(r.Look, found.cell(key))
	}
	if len(step.If) > 0 {
		r.Primary, err = s.primary(ctx)
	}
	return r, err
}

// look reads the rows that a step depends on, and those that it looks at.
func (s *space) look(ctx context.Context, step driver.Step) (rows, error) {
	keys := slices.Clone(step.Look)
	for _, c := range step.If {
		keys = append(keys, c.Key)
	}
	for _, p := range step.Raise {
		keys = append(keys, p.Key)
	}
	for _, c := range step.Then {
		keys = append(keys, c.Key)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return s.read(ctx, keys)
}

// holds reports whether the conditions of a step hold; afterwards those that it has not
// changed itself, and what it has raised.
func holds(step driver.Step, found rows, afterwards bool) bool {
	for _, c := range step.If {
		// What the step has changed itself is no longer as its condition says.
		changed := slices.ContainsFunc(slices.Concat(step.Then, step.Each), func(own driver.Change) bool { return own.Key == c.Key })
		if !(afterwards && changed) && !c.Holds(found[c.Key].Value) {
			return false
		}
	}
	for _, p := range step.Raise {
		if afterwards && bytes.Compare(found[p.Key].Value, p.Value) < 0 {
			return false
		}
	}
	for _, c := range step.Then {
		if !afterwards && !(driver.Cond{Same: c.Old}).Holds(found[c.Key].Value) {
			return false
		}
	}
	return true
}

// raise raises the rows of a step if its conditions hold, and returns the rows as they are
// then.
func (s *space) raise(ctx context.Context, step driver.Step) (met bool, found rows, err error) {
	if last := s.beaten.Load(); last != nil && len(step.Raise) == 1 && *last == step.Raise[0].Key {
		for _, c := range step.If {
			if p := step.Raise[0]; c.Key == p.Key && c.Least != nil {
				// Not below Was, where the row went back, and not over a higher beat, which has overtaken this
				// one.
				between := bson.D{{Key: "$gte", Value: value(c.Least)}, {Key: "$lt", Value: value(p.Value)}}
				if _, err := s.write(ctx, driver.Change{Key: p.Key, Next: p.Value}, between); err != nil {
					return false, nil, err
				}
			}
		}
	}
	for range raceMost {
		if found, err = s.look(ctx, step); err != nil || !holds(step, found, false) {
			return false, found, err
		}
		lower := slices.DeleteFunc(slices.Clone(step.Raise), func(p driver.Put) bool {
			return bytes.Compare(found[p.Key].Value, p.Value) >= 0
		})
		if len(lower) == 0 {
			return true, found, nil
		}
		for _, p := range lower {
			if _, err := s.change(ctx, driver.Change{Key: p.Key, Old: found.cell(p.Key), Next: p.Value}, false); err != nil {
				return false, nil, err
			}
		}
	}
	return false, nil, fmt.Errorf("row %q changed %d times while it was to be raised", step.Raise[0].Key.Name, raceMost)
}

// change makes one change, if the row is as it was. An answer just before it has said which store
// there is, where that is sure.
func (s *space) change(ctx context.Context, c driver.Change, sure bool) (driver.Outcome, error) {
	if isInsertion(c) {
		one := make([]driver.Outcome, 1)
		err := s.insert(ctx, []driver.Change{c}, one, sure)
		return one[0], err
	}
	done, err := s.write(ctx, c, value(c.Old.Value))
	if err != nil || !done {
		return driver.Outcome{}, err
	}
	return made(c), nil
}

func isInsertion(c driver.Change) bool { return c.Old.Known && c.Old.Value == nil }

// insertions returns how many of the first changes make rows of one collection.
func (s *space) insertions(changes []driver.Change) (n int) {
	for _, c := range changes {
		in, _ := s.place(c.Key)
		first, _ := s.place(changes[0].Key)
		if !isInsertion(c) || in != first {
			break
		}
		n++
	}
	return n
}

// insert makes rows of one collection in their order, up to the first that is there.
func (s *space) insert(ctx context.Context, changes []driver.Change, outcomes []driver.Outcome, sure bool) error {
	if !sure { // an insertion has no filter that could ask for the store
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	in, _ := s.place(changes[0].Key)
	by := bson.NewObjectID()
	docs := make([]document, len(changes))
	for i, c := range changes {
		_, id := s.place(c.Key)
		docs[i] = document{id, s.id, c.Next, by}
	}
	_, err := in.InsertMany(ctx, docs)
	done := len(changes)
	if failed, ok := errors.AsType[mongo.BulkWriteException](err); ok && mongo.IsDuplicateKeyError(err) && len(failed.WriteErrors) == 1 && failed.WriteConcernError == nil {
		done, err = failed.WriteErrors[0].Index, nil
	}
	if err != nil {
		return err
	}
	for i, c := range changes[:done] {
		outcomes[i] = made(c)
	}
	return nil
}

func made(c driver.Change) driver.Outcome {
	return driver.Outcome{Done: true, Now: driver.Cell{Value: c.Next, Known: true}}
}

// write writes a row that is there and whose value matches, and reports whether there was one.
func (s *space) write(ctx context.Context, c driver.Change, match any) (bool, error) {
	in, id := s.place(c.Key)
	if c.Next == nil {
		res, err := in.DeleteOne(ctx, s.filter(id, match))
		return err == nil && res.DeletedCount == 1, err
	}
	res, err := in.UpdateOne(ctx, s.filter(id, match), update(c.Next, bson.NewObjectID()))
	return err == nil && res.MatchedCount == 1, err
}

func (s *space) filter(id string, match any) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "store", Value: s.id}, {Key: "value", Value: match}}
}

func update(next value, by bson.ObjectID) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: next}, {Key: "by", Value: by}}}}
}

// changeEach makes those changes whose rows are as they were. Several updates are one bulk
// write, of which the server tells only how many it has made: where that is not all, the rows
// are read, and one that another write has overtaken by then is told as not made. Its caller goes
// on as after a lost answer, from a row that may have it.
func (s *space) changeEach(ctx context.Context, changes []driver.Change, sure bool) ([]driver.Outcome, error) {
	outcomes := make([]driver.Outcome, len(changes))
	together := map[*mongo.Collection][]int{}
	for i, c := range changes {
		in, _ := s.place(c.Key)
		if c.Old.Value != nil && c.Next != nil && len(changes) > 1 {
			together[in] = append(together[in], i)
			continue
		}
		var err error
		if outcomes[i], err = s.change(ctx, c, sure); err != nil {
			return nil, err
		}
	}
	for in, of := range together {
		by := bson.NewObjectID()
		models, keys := make([]mongo.WriteModel, len(of)), make([]driver.Key, len(of))
		for i, at := range of {
			c := changes[at]
			_, id := s.place(c.Key)
			models[i] = mongo.NewUpdateOneModel().SetFilter(s.filter(id, value(c.Old.Value))).SetUpdate(update(c.Next, by))
			keys[i], outcomes[at] = c.Key, made(c)
		}
		res, err := in.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
		if err != nil {
			return nil, err
		}
		if res.MatchedCount == int64(len(of)) {
			continue
		}
		found, err := s.read(ctx, keys)
		if err != nil {
			return nil, err
		}
		for i, at := range of {
			outcomes[at] = driver.Outcome{Done: found[keys[i]].By == by, Now: found.cell(keys[i])}
		}
	}
	return outcomes, nil
}
