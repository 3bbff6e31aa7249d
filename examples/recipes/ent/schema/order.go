// Package schema has the table from which ent generates its code.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Order is a row whose key is a number from hapax.
type Order struct{ ent.Schema }

// Annotations implements ent.Interface.
func (Order) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("recipe_ent")}
}

// Fields implements ent.Interface. The database makes no key of its own.
func (Order) Fields() []ent.Field {
	incremental := false
	return []ent.Field{
		field.Int64("id").Annotations(entsql.Annotation{Incremental: &incremental}),
		field.String("what"),
	}
}
